"""Parallel text from any source, as one memory-mapped Arrow table `src | tgt | file | line`.

`load_corpus` reads a source once and caches the table. The key of the cache covers the settings and the files' paths,
sizes and modification times. Later calls memory-map the table, so a corpus may exceed the main memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import QUICKSTART_FILE, read_source
from transformer_mt.data.text_files import SentencePair, read_file_state
from transformer_mt.errors import UserError
from transformer_mt.system.files import build_cached_folder, check_cache_space, measure_folder
from transformer_mt.system.log import ProgressReport

if TYPE_CHECKING:
    from datasets import Dataset

BLOCK_SIZE = 10_000  # pairs in memory at a time

T = TypeVar("T")
B = TypeVar("B", bound=Sized)


def split_into_blocks(pairs: Iterator[T], verb: str, total: int | None = None) -> Iterator[list[T]]:
    """Yield the pairs in lists of BLOCK_SIZE, and log the progress."""
    return log_progress(iter(lambda: list(islice(pairs, BLOCK_SIZE)), []), verb, total)


def log_progress(blocks: Iterable[B], verb: str, total: int | None = None, start: int = 0) -> Iterator[B]:
    """Yield the blocks, and log messages such as `data: encoded 40,000 of 90,000 pairs`, counted from `start`."""
    with ProgressReport(f"data: {verb}", total, "pairs").show(start, bar=False) as progress:
        count = start
        for block in blocks:
            n_pairs = len(block)  # the consumer may change it
            yield block
            count += n_pairs
            progress.update(count)


COLUMNS = {"src": "string", "tgt": "string", "file": "int32", "line": "int64"}

Integers = Sequence[int] | NDArray[np.integer[Any]]


class TableWriter(ExitStack):
    """Writes a table, and hashes its text. A context manager."""

    def __init__(self, path: Path, extra_columns: Sequence[str] = ()) -> None:
        super().__init__()
        import pyarrow

        self._pa: Any = pyarrow
        kinds = {**COLUMNS, **dict.fromkeys(extra_columns, "int64")}
        self._schema = self._pa.schema([(name, getattr(self._pa, kind)()) for name, kind in kinds.items()])
        self._digest = hashlib.sha256()
        self._stream = self.enter_context(
            self._pa.ipc.new_stream(self.enter_context(self._pa.OSFile(str(path), "wb")), self._schema)
        )
        self.n_pairs = 0

    def write(self, src: Sequence[str], tgt: Sequence[str], *columns: Integers) -> None:
        """Append pairs, with their `file`, `line` and any extra columns."""
        self.n_pairs += len(src)
        self._digest.update("".join(f"{a}\n{b}\n" for a, b in zip(src, tgt, strict=True)).encode())
        values = dict(zip(self._schema.names, (src, tgt, *columns), strict=True))
        self._stream.write_batch(self._pa.RecordBatch.from_pydict(values, schema=self._schema))

    def text_hash(self) -> str:
        """Return the SHA-256 of the text that was written so far."""
        return self._digest.hexdigest()


def read_batches(path: str | Path) -> Iterator[Any]:
    """Yield the record batches of a table. Unlike a memory map, this keeps its pages out of resident memory."""
    import pyarrow

    pa: Any = pyarrow
    with pa.OSFile(str(path)) as file:
        yield from pa.ipc.open_stream(file)


FORMAT_VERSION = 2  # of a cached table; part of its key
MAX_LISTED = 5  # pairs that a message lists
SAMPLE_WINDOW = 100  # consecutive pairs of a sample
MIN_GZIP_RATIO = 2  # by which gzip compresses text at least
TABLE_KEYS = {"builtin", "src", "tgt", "table", "dataset", "subset", "split", "src_column", "tgt_column", "reverse"}
"""Keys of a source that determine its table, in addition to the names of the columns."""
REST = "rest-"  # name prefix of the training pairs that are left after validation pairs were split off


class PairExample(NamedTuple):
    """A pair that a filter or check has found, with its text before any change."""

    location: str  # file:line
    src: str
    tgt: str
    reason: str


@dataclass(frozen=True)
class FilterReport:
    """The effect of a filter on a corpus."""

    name: str
    removes: bool  # False: it changes pairs
    n_seen: int  # pairs that the filters before have left
    n_affected: int
    examples: tuple[PairExample, ...]  # spread evenly over the affected pairs

    def describe(self) -> str:
        """Return one sentence for the log."""
        verb = "removed" if self.removes else "changed"
        share = self.n_affected / max(1, self.n_seen)
        return f"filter {self.name} {verb} {self.n_affected:,} of {self.n_seen:,} pairs ({share:.1%})"


@dataclass(frozen=True)
class ParallelCorpus:
    """Sentence pairs in a memory-mapped Arrow table `src | tgt | file | line`, or a selection of its rows."""

    table: Dataset
    files: list[str]  # names for the `file` column
    key: str  # identifies the cached table and the selection
    fingerprint: str  # SHA-256 of the text, and the name of the selection
    selected: NDArray[np.int64] | None = None  # ascending row numbers; None: all rows
    filters: tuple[FilterReport, ...] = ()  # what the filters of data.filters have removed
    source_sizes: Mapping[str, int] = field(default_factory=dict[str, int])  # of a mixture: number of rows by name

    def __len__(self) -> int:
        return len(self.table if self.selected is None else self.selected)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield the sentence pairs in order."""
        for batch in self.batches():
            yield from zip(batch["src"].to_pylist(), batch["tgt"].to_pylist(), strict=True)

    @property
    def _path(self) -> Path:
        return Path(cast(str, self.table.cache_files[0]["filename"]))

    @property
    def n_bytes(self) -> int:
        """Return the size of the cached table on the disk."""
        return measure_folder(self._path.parent)

    def batches(self) -> Iterator[Any]:
        """Yield the rows in order, as Arrow record batches."""
        start = 0
        for batch in read_batches(self._path):
            end = start + len(batch)
            if self.selected is not None:
                first, last = np.searchsorted(self.selected, (start, end))
                batch = batch.take(self.selected[first:last] - start)
            yield batch
            start = end

    def rows(self, start: int, end: int) -> Iterator[tuple[str, str]]:
        """Yield the pairs of some consecutive rows."""
        for first in range(start, end, BLOCK_SIZE):
            rows = np.arange(first, min(end, first + BLOCK_SIZE))
            found = cast(dict[str, list[str]], self.table[rows if self.selected is None else self.selected[rows]])
            yield from zip(found["src"], found["tgt"], strict=True)

    def source_bounds(self) -> NDArray[np.int64]:
        """Return the first row of each source, and the number of rows: [K + 1]. A single source has no name."""
        bounds = np.cumsum([0, *self.source_sizes.values()]) if self.source_sizes else np.array([0, len(self.table)])
        return bounds if self.selected is None else np.searchsorted(self.selected, bounds)

    def split_sources(self) -> list[ParallelCorpus]:
        """Return the corpus of each source: this one if it has a single source."""
        if not self.source_sizes:
            return [self]
        bounds: list[int] = self.source_bounds().tolist()
        ranges = zip(self.source_sizes, pairwise(bounds), strict=True)
        return [self.select(np.arange(first, end), name) for name, (first, end) in ranges]

    def sample(self, size: int) -> list[tuple[str, str]]:
        """Return at most `size` pairs, in runs that are spread evenly over the corpus.

        Single rows would map nearly every page of the file.
        """
        starts = [*range(0, len(self), SAMPLE_WINDOW)]
        if len(self) > size:
            starts = np.linspace(0, len(self) - SAMPLE_WINDOW, size // SAMPLE_WINDOW).astype(np.int64).tolist()
        return [pair for start in starts for pair in self.rows(start, min(start + SAMPLE_WINDOW, len(self)))]

    def column(self, name: Literal["src", "tgt"]) -> list[str]:
        """Return one side as a list. Meant for validation and test sets, which fit in memory."""
        return [pair[name == "tgt"] for pair in self]

    def describe_line(self, row: int) -> str:
        """Return the file and line of a pair as `file:line`."""
        pair = cast(dict[str, Any], self.table[row if self.selected is None else int(self.selected[row])])
        return f"{self.files[pair['file']]}:{pair['line']}"

    def describe_lines(self, rows: Sequence[int], count: int | None = None) -> str:
        """Return `file:line` of the first few rows, and how many more of `count` (default: all rows) there are."""
        more = (len(rows) if count is None else count) - MAX_LISTED
        return ", ".join(map(self.describe_line, rows[:MAX_LISTED])) + (f", ... and {more:,} more" if more > 0 else "")

    def example(self, row: int, reason: str) -> PairExample:
        """Return a pair with its file and line, and the reason why it is shown."""
        return PairExample(self.describe_line(row), *next(self.rows(row, row + 1)), reason)

    def select_evenly(self, size: int) -> ParallelCorpus:
        """Return the corpus of at most `size` rows, spread evenly."""
        rows = np.unique(np.linspace(0, len(self) - 1, min(size, len(self)), dtype=np.int64))
        return self.select(rows, f"sample-{size}")

    def select(self, rows: NDArray[np.int64], name: str) -> ParallelCorpus:
        """Return the corpus of some rows, in ascending order. `name` extends its key and fingerprint."""
        selected = rows if self.selected is None else self.selected[rows]
        keys = f"{self.key}-{name}", f"{self.fingerprint}-{name}"
        return ParallelCorpus(self.table, self.files, *keys, selected, self.filters, self.source_sizes)


def load_corpus(source: Source, src_lang: str, tgt_lang: str, cache_dir: Path) -> ParallelCorpus:
    """Map the cached table of a source, after reading the source if needed.

    The languages are those of the configuration, for a source that names no other ones.

    Raises:
        UserError: The source cannot be read; with file and line.
    """
    source.check_may_be_read()
    from datasets import Dataset

    languages = source.languages(src_lang, tgt_lang)
    if source.reverse:
        languages = languages[::-1]
    columns = (source.src_column or languages[0], source.tgt_column or languages[1])
    folder = cache_dir / f"table-{_cache_key(source, columns)}"

    def fill(temporary: Path) -> None:
        check_cache_space(cache_dir, _min_text_bytes(source), f"{_source_name(source)}: the sentence pairs")
        if _write_table(read_source(source, columns), temporary) == 0:
            raise UserError(f"{_source_name(source)}: holds no sentence pairs; is it the right file?")

    build_cached_folder(folder, fill)
    info = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    return ParallelCorpus(Dataset.from_file(str(folder / "pairs.arrow")), info["files"], folder.name, info["sha256"])


# --- validation pairs split off from the training pairs ---------------------------------------------------------------


def split_off_validation(corpus: ParallelCorpus, size: int, seed: int) -> tuple[ParallelCorpus, ParallelCorpus]:
    """Split a corpus at random into training and validation pairs, each in the corpus' order.

    The split depends only on the seed, the size and the number of pairs. Validation gets at most a tenth of them.
    Raises `UserError` below 10 pairs.
    """
    if len(corpus) < 10:
        raise UserError(
            f"data.validation: missing, and {len(corpus)} training pairs are too few to split some off; "
            "name validation pairs"
        )
    size = min(size, len(corpus) // 10)
    shuffled = np.random.default_rng([seed, len(corpus)]).permutation(len(corpus))
    validation, rest = np.sort(shuffled[:size]), np.sort(shuffled[size:])
    name = f"seed{seed}-{size}"
    return corpus.select(rest, f"{REST}{name}"), corpus.select(validation, f"cut-{name}")


def has_split_off_validation(fingerprint: str) -> bool:
    """Return whether validation pairs were split off from the training corpus with this fingerprint."""
    return f"-{REST}" in fingerprint


def is_split_differently(fingerprint: str, other: str) -> bool:
    """Return whether `other` is the same text, but with other validation pairs split off, or with none."""
    text = fingerprint.partition(f"-{REST}")[0]
    return has_split_off_validation(fingerprint) and other.partition(f"-{REST}")[0] == text and other != fingerprint


# --- cached tables ----------------------------------------------------------------------------------------------------


def _source_name(source: Source) -> str:
    name = source.builtin or source.dataset or ", ".join(source.files)
    return name + (f" ({source.split})" if source.split else "")


def _cache_key(source: Source, columns: tuple[str, str]) -> str:
    """Hash the settings and the path, size and modification time of each file."""
    src, tgt = source.text_files()  # a reversed table names the other files, so their order is part of the key
    files = [Path(name) for name in (*src, *tgt, *source.table)]
    if source.builtin:
        files = [QUICKSTART_FILE]
    elif source.dataset and Path(source.dataset).is_dir():
        files = sorted(_list_visible_files(Path(source.dataset)))
    states = [read_file_state(path) for path in files]
    settings = json.dumps([FORMAT_VERSION, source.model_dump(mode="json", include=TABLE_KEYS), columns, states])
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _min_text_bytes(source: Source) -> int:
    """Return a lower bound for the bytes of the table of text files; 0 for other sources."""
    files = [Path(name) for name in (*source.src, *source.tgt)]
    return sum(path.stat().st_size * (MIN_GZIP_RATIO if path.suffix == ".gz" else 1) for path in files)


def _list_visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder. Hidden ones are skipped, because they may be the cache itself."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(parent, name) for name in names if not name.startswith("."))
        yield from (path for path in files if path.is_file())


def _write_table(pairs: Iterator[SentencePair], folder: Path) -> int:
    """Write the Arrow table and its description. Return the number of pairs."""
    files = dict[str, int]()
    with TableWriter(folder / "pairs.arrow") as table:
        for block in split_into_blocks(pairs, "read"):
            src, tgt, names, lines = zip(*block, strict=True)
            table.write(src, tgt, [files.setdefault(name, len(files)) for name in names], lines)
    info = {"sha256": table.text_hash(), "files": list(files)}
    (folder / "table.json").write_text(json.dumps(info), encoding="utf-8")
    return table.n_pairs


COMBINED_FORMAT_VERSION = 1  # of the table; part of its key


def combine_corpora(corpora: Mapping[str, ParallelCorpus], cache_dir: Path) -> ParallelCorpus:
    """Return one corpus with the pairs of all sources, source by source.

    Raises:
        UserError: The disk has no space for the table.
    """
    from datasets import Dataset

    parts = [[name, corpus.key, corpus.fingerprint] for name, corpus in corpora.items()]
    folder = cache_dir / f"combined-{sha256(json.dumps([COMBINED_FORMAT_VERSION, parts]).encode()).hexdigest()[:16]}"

    build_cached_folder(folder, lambda temporary: _write_combined_table(corpora, temporary))
    digest = json.loads((folder / "table.json").read_text(encoding="utf-8"))["sha256"]
    return ParallelCorpus(
        Dataset.from_file(str(folder / "pairs.arrow")),
        [file for corpus in corpora.values() for file in corpus.files],
        folder.name,
        digest,
        filters=tuple(
            replace(report, name=f"{report.name} of {name}")
            for name, corpus in corpora.items()
            for report in corpus.filters
        ),
        source_sizes={name: len(corpus) for name, corpus in corpora.items()},
    )


def _write_combined_table(corpora: Mapping[str, ParallelCorpus], folder: Path) -> None:
    check_cache_space(folder.parent, sum(corpus.n_bytes for corpus in corpora.values()), "the pairs of all sources")
    n_files = 0
    with TableWriter(folder / "pairs.arrow") as table:
        for corpus in corpora.values():
            for batch in corpus.batches():
                files = batch["file"].to_numpy() + np.int32(n_files)
                table.write(batch["src"].to_pylist(), batch["tgt"].to_pylist(), files, batch["line"].to_numpy())
            n_files += len(corpus.files)
    (folder / "table.json").write_text(json.dumps({"sha256": table.text_hash()}), encoding="utf-8")
