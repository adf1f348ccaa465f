"""Parallel text from anywhere into one Arrow table: `src | tgt | file | line`.

Two line-aligned text files, a table (TSV, CSV, JSONL, Parquet), a `datasets` data set from the hub or from disk, or the
built-in quickstart corpus: all come through `load`. Files are read once, written as Arrow under a key of their paths,
sizes, modification times and settings, and memory-mapped from then on, so that a corpus may be larger than memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from transformer_mt import __version__
from transformer_mt.config.section import MAY_CHANGE, PathName, Section, section_error
from transformer_mt.data.languages import check_language
from transformer_mt.data.progress import blocks
from transformer_mt.data.sources import Source, read_source
from transformer_mt.data.text_files import SentencePair
from transformer_mt.errors import UserError
from transformer_mt.system.files import atomic_shared_folder

if TYPE_CHECKING:
    from datasets import Dataset

LAYOUT = 2  # of a cached table; part of its key
BLOCK = 10_000  # pairs held in memory at a time
NAMED = 5  # rows whose origin is told, of many
REST = "rest-"  # what is left for training where validation pairs are cut out: with this begins the selection's name


def _one_line(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ValueError("must stand on one line")
    return text


OneLine = Annotated[str, AfterValidator(_one_line)]
Language = Annotated[OneLine, AfterValidator(check_language)]


class DataConfig(Section):
    """The sentence pairs."""

    src_lang: Language
    """source language, an ISO 639 code such as en; required"""
    tgt_lang: Language
    """target language; it also chooses the tokeniser of BLEU; required"""
    train: Source
    """the training pairs; required"""
    validation: Source | None = None
    """validation pairs; without them, some are cut from the training pairs"""
    validation_size: int = Field(default=1000, ge=1)
    """how many pairs are cut where `validation` is missing (at most a tenth)"""
    test: dict[OneLine, Source] = Field(default={})
    """test sets by name, scored once, at the end, with the best checkpoint"""
    cache_dir: Annotated[PathName, MAY_CHANGE] = "runs/.cache"
    """folder of the memory-mapped tables; it may be deleted whenever nothing trains"""
    max_length: int = Field(default=256, ge=2)
    """longest side of a training pair, in tokens, end symbol included"""
    too_long: Literal["drop", "truncate"] = "drop"
    """what is done with a longer training pair: drop, or truncate"""

    @model_validator(mode="after")
    def _names_of_test_sets(self) -> DataConfig:
        if taken := {"train", "validation"} & self.test.keys():
            raise section_error("test", f"{min(taken)} is the name of other pairs: give the test set another")
        return self

    @model_validator(mode="after")
    def _splits_held_out(self) -> DataConfig:
        held_out = {"validation": self.validation, **{f"test.{name}": source for name, source in self.test.items()}}
        for key, source in held_out.items():
            if source is not None and (source.builtin or source.dataset) and source.split is None:
                raise section_error(f"{key}.split", "say which; without it, it is train, which is learnt from")
        return self


@dataclass(frozen=True)
class ParallelCorpus:
    """An Arrow table `src | tgt | file | line`, and the key under which it is cached."""

    table: Dataset
    files: list[str]
    key: str
    fingerprint: str  # SHA-256 of the text that was read, and behind a hyphen what was chosen of it
    selected: NDArray[np.int64] | None = None  # which of the rows, ascending; None: all

    def __len__(self) -> int:
        return len(self.table if self.selected is None else self.selected)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The sentence pairs in order, read in blocks: not through the map, whose pages would stay in memory."""
        import pyarrow

        pa: Any = pyarrow
        start = 0
        with pa.OSFile(self.table.cache_files[0]["filename"]) as file:
            for block in pa.ipc.open_stream(file):
                end = start + len(block)
                if self.selected is not None:
                    block = block.take(
                        pa.array(self.selected[slice(*np.searchsorted(self.selected, (start, end)))] - start)
                    )
                yield from zip(block["src"].to_pylist(), block["tgt"].to_pylist(), strict=True)
                start = end

    def column(self, name: Literal["src", "tgt"]) -> list[str]:
        """One side, in memory; for validation and test sets."""
        return [pair[name == "tgt"] for pair in self]

    def describe_line(self, row: int) -> str:
        """Where a pair was read: `file:line`."""
        found = cast(dict[str, Any], self.table[row if self.selected is None else int(self.selected[row])])
        return f"{self.files[found['file']]}:{found['line']}"

    def describe_lines(self, rows: Sequence[int], count: int | None = None) -> str:
        """Where the first few of some rows were read, and how many more there are (`count` in all)."""
        more = (len(rows) if count is None else count) - NAMED
        return ", ".join(map(self.describe_line, rows[:NAMED])) + (f", ... and {more:,} more" if more > 0 else "")

    def select(self, rows: NDArray[np.int64], name: str) -> ParallelCorpus:
        """The table of some of its rows, ascending; `name` tells the selection's key and fingerprint from others'."""
        chosen = rows if self.selected is None else self.selected[rows]
        return ParallelCorpus(self.table, self.files, f"{self.key}-{name}", f"{self.fingerprint}-{name}", chosen)


def load_corpus(source: Source, src_lang: str, tgt_lang: str, cache_dir: Path) -> ParallelCorpus:
    """Read a source into its table, or take the table from the cache.

    Raises `UserError` for whatever cannot be read, naming file, line and remedy.
    """
    from datasets import Dataset

    columns = (source.src_column or src_lang, source.tgt_column or tgt_lang)
    key = _key(source, columns)
    folder = cache_dir / f"table-{key}"
    if not folder.exists():
        with atomic_shared_folder(folder) as beside:
            if _write(read_source(source, columns), beside) == 0:
                raise UserError(f"{_describe(source)}: holds no sentence pairs; is it the right file?")
            if _key(source, columns) != key:  # else another text would be found under its name
                raise UserError(f"{_describe(source)}: has changed while it was read; begin again")
    about = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    return ParallelCorpus(Dataset.from_file(str(folder / "pairs.arrow")), about["files"], folder.name, about["sha256"])


def split_off_validation(table: ParallelCorpus, size: int, seed: int) -> tuple[ParallelCorpus, ParallelCorpus]:
    """Split a table into training and validation pairs, at random but always alike for one seed.

    The order of the training pairs stays; at most a tenth of the pairs is cut. Raises `UserError` below 10 pairs.
    """
    if len(table) < 10:
        raise UserError(f"data.validation: missing, and {len(table)} training pairs are too few to cut some; name one")
    size = min(size, len(table) // 10)
    shuffled = np.random.default_rng([seed, len(table)]).permutation(len(table))
    held_out, kept = np.sort(shuffled[:size]), np.sort(shuffled[size:])
    name = f"seed{seed}-{size}"
    return table.select(kept, f"{REST}{name}"), table.select(held_out, f"cut-{name}")


def has_split_off_validation(fingerprint: str) -> bool:
    """Whether validation pairs were cut out of a table's text."""
    return f"-{REST}" in fingerprint


def is_split_differently(fingerprint: str, other: str) -> bool:
    """Whether validation pairs were cut out of the text of the first table, and of the other, of the same text, were
    not, or other ones."""
    text = fingerprint.partition(f"-{REST}")[0]
    return has_split_off_validation(fingerprint) and other.partition(f"-{REST}")[0] == text and other != fingerprint


def _describe(source: Source) -> str:
    name = source.builtin or source.dataset or ", ".join((*source.src, *source.tgt, *source.table))
    return name + (f" ({source.split})" if source.split else "")


def _key(source: Source, columns: tuple[str, str]) -> str:
    """The cache's key: settings, and path, size and modification time of each file."""
    files = [Path(name) for name in (*source.src, *source.tgt, *source.table)]
    if source.dataset and Path(source.dataset).is_dir():
        files += sorted(path for path in visible(Path(source.dataset)) if path.is_file())
    stats = [(str(path.resolve()), *_size_and_time(path)) for path in files]
    text = json.dumps([LAYOUT, __version__ if source.builtin else "", source.model_dump(mode="json"), columns, stats])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def visible(folder: Path, around: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """What lies in a folder, but not in hidden ones: the cache, which is being written, may be one. Nor in those that
    are `around` it, to which a link may lead back."""
    around |= {folder.resolve()}
    for path in folder.iterdir():
        if not path.name.startswith("."):
            yield path
            if path.is_dir() and path.resolve() not in around:
                yield from visible(path, around)


def _size_and_time(path: Path) -> tuple[int, int]:
    if not path.exists():
        raise UserError(f"{path}: no such file (looked in {Path.cwd()})")
    if path.is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    return path.stat().st_size, path.stat().st_mtime_ns


def _write(pairs: Iterator[SentencePair], folder: Path) -> int:
    """Write a table, and return the number of its pairs."""
    import pyarrow

    pa: Any = pyarrow
    schema = pa.schema([("src", pa.string()), ("tgt", pa.string()), ("file", pa.int32()), ("line", pa.int64())])
    digest, files, n_pairs = hashlib.sha256(), dict[str, int](), 0
    with pa.OSFile(str(folder / "pairs.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for block in blocks(pairs, BLOCK, "read"):
            n_pairs += len(block)
            src, tgt, names, lines = zip(*block, strict=True)
            digest.update("".join(f"{pair.src}\n{pair.tgt}\n" for pair in block).encode())
            columns = src, tgt, [files.setdefault(name, len(files)) for name in names], lines
            arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    about = {"sha256": digest.hexdigest(), "files": list(files)}
    (folder / "table.json").write_text(json.dumps(about), encoding="utf-8")
    return n_pairs
