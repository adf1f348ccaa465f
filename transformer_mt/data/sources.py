"""The sources of sentence pairs, which yield pairs with their file and line, and the stages that read them.

A task of the stage `read` reads whole files. It writes shards, which the tasks of later stages read.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

from transformer_mt.data import corpus
from transformer_mt.data.corpus import ParallelCorpus, Shard, TableWriter, join_fingerprints, number_column
from transformer_mt.data.data_config import Source, primary_language
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner, Stage, TaskMetadata
from transformer_mt.data.tables import BLOCK_ROWS, Row, empty_error, make_pairs, read_table, select_columns
from transformer_mt.data.text_files import (
    OnBad,
    SentencePair,
    UnpairedError,
    find_structure,
    raise_bad_row,
    read_file_state,
    read_pairs,
    remove_compressed_suffix,
)
from transformer_mt.errors import UserError
from transformer_mt.system.files import refuse_special_files
from transformer_mt.system.log import log_rank0

# --- sources ----------------------------------------------------------------------------------------------------------

SPLITS = ("train", "validation", "test", "combinations")
QUICKSTART_FILE = Path(__file__).with_name("quickstart.tsv.gz")


def load_pairs(split: str) -> list[tuple[str, str]]:
    """Return the (English, German) sentence pairs of one of SPLITS. Raises `UserError` for any other name."""
    if split not in SPLITS:
        raise UserError(f"the built-in corpus has no split {split}; choose from: {', '.join(SPLITS)}")
    with gzip.open(QUICKSTART_FILE, "rt", encoding="utf-8", newline="\n") as lines:
        rows = (line.rstrip("\n").split("\t") for line in lines if line.startswith(f"{split}\t"))
        return [(en, de) for _, en, de in rows]


_REMEDIES = {
    "ass sbv srt ssa sub vtt": "subtitles: pair the sentences by their times, and write one a line",
    "mqxliff po pot sdlxliff xlf xliff": "messages of a program: export them as TMX or TSV",
    "json": "JSON: write one object with both languages a line, as .jsonl",
    "csv tsv": "a table: write each column into a separate file",
    "tmx zip": "a file of both languages: write {table: F}, or tmt init F",
}


def check_is_text(path: Path, *, may_be_table: bool = True) -> None:
    """Raise `UserError` if the name or the first lines of a file show a document, whose lines are not sentences."""
    kind = find_structure(path)
    if kind is None or (may_be_table and kind in ("csv", "tsv")):
        return
    remedies = (remedy for kinds, remedy in _REMEDIES.items() if kind in kinds.split())
    problem = next(remedies, f"no plain text ({kind}): write one sentence a line")
    is_named = remove_compressed_suffix(path).suffix.lower() == f".{kind}"
    insist = "; if its lines are sentences, rename it to .txt" if is_named else ""
    raise UserError(f"{path}: is {problem}{insist}")


def read_source(
    source: Source, columns: tuple[str, str], on_bad: OnBad = raise_bad_row, numbers: Sequence[str] = ()
) -> Iterator[SentencePair]:
    """Yield the pairs of a source in order. `columns` names the columns of tables and data sets.

    `numbers` names columns of numbers. Bad rows are left out if `on_bad` returns. Raises `UserError` with file and line
    if the source cannot be read.
    """
    if (source.table or source.dataset) and columns[0] == columns[1]:
        raise UserError(f"source and target would both be column {columns[0]}: set src_column and tgt_column")
    for src, tgt in zip(source.src, source.tgt, strict=True):
        yield from read_pairs(Path(src), Path(tgt), on_bad=on_bad)
    if source.builtin:
        pairs = _read_builtin(source.split or "train", columns)
    elif source.dataset:
        pairs = _read_dataset(source, columns, on_bad, numbers)
    else:
        pairs = chain.from_iterable(
            read_table(Path(name), columns, source.columns, on_bad, numbers) for name in source.table
        )
    yield from pairs


# --- data sets and the built-in corpus --------------------------------------------------------------------------------


def _read_dataset(
    source: Source, columns: tuple[str, str], on_bad: OnBad, numbers: Sequence[str]
) -> Iterator[SentencePair]:
    """Yield the pairs of a data set. `columns` names its columns of both sides."""
    name = f"{source.dataset} ({source.split or 'train'})"
    rows = _load_dataset(source, source.split or "train")
    rows = rows.select_columns(select_columns(rows.column_names, columns, name, numbers))
    blocks = rows.iter(batch_size=BLOCK_ROWS)
    values = (dict(zip(block, row, strict=True)) for block in blocks for row in zip(*block.values(), strict=True))
    numbered = (Row(number, row) for number, row in enumerate(values, start=1))
    return make_pairs(numbered, columns, name, on_bad, numbers)


def _load_dataset(source: Source, split: str) -> Any:
    """Load one split from the hub, from a folder of data files, or from a folder written by `save_to_disk`."""
    import datasets

    name, subset = cast(str, source.dataset), source.subset

    datasets.disable_progress_bars()
    is_saved = any((Path(name) / file).exists() for file in ("dataset_info.json", "dataset_dict.json"))
    if is_saved and subset is not None:
        raise UserError(f"{name}: a folder written by `save_to_disk` has no subsets; remove `subset`")
    try:
        if not is_saved:
            return datasets.load_dataset(name, subset, split=split, revision=source.revision)
        saved: Any = datasets.load_from_disk(name)
    except Exception as error:  # the hub client's errors have no common base class
        raise _loading_error(name, split, error) from None
    splits: dict[Any, Any] = saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or "train"): saved}
    if split not in splits:
        raise UserError(f"{name}: no split {split}; set `split`: it has {', '.join(splits)}")
    return splits[split]


def _loading_error(name: str, split: str, error: Exception) -> UserError:
    cause = error.__cause__ or error
    reason, *more = str(cause).splitlines() or [type(cause).__name__]
    if "Config name is missing" in reason:
        return UserError(f"{name}: has several subsets: set `subset`\n{' '.join(more[:1])}")
    if more and "cast" in reason:
        reason = f"{reason} ({more[-1]})"
    hint = "" if Path(name).is_dir() else "a hub name needs access to the hub; "
    return UserError(
        f"{name} ({split}): the data set cannot be loaded: {reason}\n"
        f"{hint}to use your own text files, write\n"
        "  data.train='{src: train.SRC, tgt: train.TGT}' (and data.validation and data.test likewise)"
    )


def _read_builtin(split: str, languages: tuple[str, str]) -> Iterator[SentencePair]:
    primary = [*map(primary_language, languages)]
    if sorted(primary) != ["de", "en"]:
        raise UserError("the built-in corpus is English and German: set data.src_lang and data.tgt_lang to en and de")
    for number, (en, de) in enumerate(load_pairs(split), start=1):
        src, tgt = (en, de) if primary == ["en", "de"] else (de, en)
        yield SentencePair(src, tgt, f"quickstart ({split})", number)


# --- stages -----------------------------------------------------------------------------------------------------------

FORMAT_VERSION = 5  # of the cached tables and of their division into tasks; part of their key
DESCRIPTIVE_KEYS = ("src_lang", "tgt_lang", "tag")
"""Keys of a source that do not change its pairs."""
TABLE_KEYS = {key for key in Source.model_fields if key not in DESCRIPTIVE_KEYS}
"""Keys of a source that determine its pairs, in addition to the names of the columns."""
MAX_RECORDED = 10_000  # bad rows of a task whose messages are kept; all are counted
MAX_LISTED = 10  # bad rows in the message that there are too many

PART_BYTES = 1 << 26
"""Maximum bytes of files that one task reads together. A larger file is read by a separate task."""


def load_corpus(
    source: Source,
    src_lang: str,
    tgt_lang: str,
    cache_dir: Path,
    runner: Runner = IN_PROCESS_RUNNER,
    max_bad_rows: int | None = None,
    numbers: Sequence[str] = (),
) -> ParallelCorpus:
    """Return the pairs of a source. Reads the source if it is not cached.

    The languages are those of the configuration. A source may name other languages. `numbers` names columns of numbers,
    which are stored as `number_column`. Up to `max_bad_rows` rows that cannot be read are left out and logged; if it is
    None, the first one raises its error. Raises `UserError` with file and line if the source cannot be read.
    """
    if source.pretrained:
        raise UserError(
            f"data.train: {source.pretrained} was imported without its training pairs; to fine-tune it, write a "
            "configuration with your own pairs, train.init_from, and base: the config.yaml of the imported run"
        )
    columns = source.find_columns(src_lang, tgt_lang)
    states = _file_states(source)
    key = [FORMAT_VERSION, source.model_dump(mode="json", include=TABLE_KEYS), [*columns, *numbers], states]
    parts = _divide(source)
    task = partial(read_part, parts, columns, numbers, corpus.SHARD_PAIRS, max_bad_rows)
    stage = Stage("read", cache_dir, key, len(parts), task)
    found: list[Shard] = []
    hashes: list[str] = []
    results = runner(stage)
    for folder, metadata in results:
        for name, n_rows, text_hash in metadata["shards"]:
            found.append(Shard(folder / name, n_rows, metadata["files"]))
            hashes.append(text_hash)
    if _file_states(source) != states:
        raise UserError(f"{_source_name(source)}: has changed while it was read; run the same command again")
    bad = BadRows(max_bad_rows)
    for _, metadata in results:
        bad.listed += metadata["bad_rows"]
        bad.n_bad += metadata["n_bad_rows"]
        bad.n_unpaired += metadata["n_unpaired"]
    bad.report(stage.folder)
    if not found:
        raise empty_error(_source_name(source))
    return ParallelCorpus(found, stage.folder.name, join_fingerprints(hashes))


def _source_name(source: Source) -> str:
    name = source.builtin or source.dataset or ", ".join(source.files)
    return name + (f" ({source.split})" if source.split else "")


def _file_states(source: Source) -> list[object]:
    """Return the path, size and modification time of each file."""
    files = [Path(name) for name in source.files]
    if source.builtin:
        files = [QUICKSTART_FILE]
    elif source.dataset and Path(source.dataset).is_dir():
        refuse_special_files(Path(source.dataset))
        files = sorted(_list_visible_files(Path(source.dataset)))
    return [read_file_state(path) for path in files]


def _list_visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder. Hidden ones are skipped, because they may be the cache itself."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(parent, name) for name in names if not name.startswith("."))
        yield from (path for path in files if path.is_file())


# --- reading ----------------------------------------------------------------------------------------------------------


_reported: set[Path] = set()
"""Cache folders of sources whose bad rows this process has logged: several steps of a command load a source."""


@dataclass
class BadRows:
    """Counts the rows that cannot be read, and keeps their problems, if any may be left out."""

    maximum: int | None = None  # `data.max_bad_rows`; None: none may be left out
    n_bad: int = 0
    n_unpaired: int = 0
    listed: list[str] = field(default_factory=list[str])

    def __call__(self, error: UserError) -> None:
        """Count a bad row. Raises its error if bad rows are not left out."""
        if isinstance(error, UnpairedError):
            self.n_unpaired += 1
            return
        if self.maximum is None:
            raise error
        if self.maximum == 0:
            raise UserError(f"{error}\n(data.max_bad_rows, or tmt init --max-bad-rows, leaves out some such rows)")
        self.n_bad += 1
        if len(self.listed) < MAX_RECORDED:
            self.listed.append(str(error).partition("\n")[0].rstrip(";"))

    def report(self, folder: Path | None = None) -> None:
        """Log the rows that are left out, once for each cache folder. Raises `UserError` if they are too many."""
        maximum = self.maximum or 0
        if self.n_bad > maximum:
            shown = "\n".join(self.listed[: min(MAX_LISTED, maximum + 1)])
            raise UserError(f"{shown}\nthese are {self.n_bad:,} bad rows, and data.max_bad_rows is {maximum:,}")
        if folder in _reported:
            return
        if folder:
            _reported.add(folder)
        for problem in self.listed:
            log_rank0(f"data: left out: {problem}")
        if self.n_bad:
            log_rank0(f"data: left out {self.n_bad:,} bad rows (data.max_bad_rows: {maximum:,})")
        if self.n_unpaired:
            log_rank0(f"data: left out {self.n_unpaired:,} units of TMX without both languages")


def read_part(
    parts: Sequence[Source],
    columns: tuple[str, str],
    numbers: Sequence[str],
    shard_pairs: int,
    max_bad_rows: int | None,
    task: int,
    folder: Path,
) -> TaskMetadata:
    """Task: read a part of a source, and write its pairs as shards.

    Return name, number of rows and hash of each shard, the names of its files, and the bad rows.
    """
    part, bad = parts[task], BadRows(max_bad_rows)
    pairs = read_source(part, columns, bad, numbers)
    kinds = {number_column(name): "float64" for name in numbers}
    files = dict[str, int]()
    written: list[tuple[str, int, str]] = []
    while block := [*islice(pairs, min(corpus.BLOCK_SIZE, shard_pairs))]:
        name = f"{len(written)}.arrow"
        with TableWriter(folder / name, kinds) as table:
            while block:
                src, tgt, names, lines, rows = zip(*block, strict=True)
                indices = [files.setdefault(name, len(files)) for name in names]
                table.write(src, tgt, indices, lines, *zip(*rows, strict=True))
                block = [*islice(pairs, min(corpus.BLOCK_SIZE, shard_pairs - table.n_pairs))]
        written.append((name, table.n_pairs, table.hasher.hexdigest()))
    counts = {"bad_rows": bad.listed, "n_bad_rows": bad.n_bad, "n_unpaired": bad.n_unpaired}
    return {"shards": written, "files": [*files], **counts}


# --- division into tasks ----------------------------------------------------------------------------------------------


def _divide(source: Source) -> list[Source]:
    """Divide a source into the parts that tasks read. Small files share a part."""
    if source.table:
        sizes = [Path(name).stat().st_size for name in source.table]
        return [source.model_copy(update={"table": source.table[files]}) for files in _group(sizes)]
    if not source.src:
        return [source]
    for name in source.files:
        check_is_text(Path(name))
    pairs = [*zip(source.src, source.tgt, strict=True)]
    sizes = [max(Path(name).stat().st_size for name in pair) for pair in pairs]
    return [source.model_copy(update={"src": source.src[files], "tgt": source.tgt[files]}) for files in _group(sizes)]


def _group(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield ranges of consecutive files of at most `PART_BYTES` in total. A larger file is a range of its own."""
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > PART_BYTES:
            yield slice(start, i)
            start, total = i, 0
        total += size
    yield slice(start, len(sizes))
