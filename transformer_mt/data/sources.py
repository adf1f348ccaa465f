"""Readers of the sources of sentence pairs, which yield pairs with their file and line, and the stages that use them.

The stage `count` counts the lines of large plain text files, so that each task of the stage `read` finds its rows. A
compressed file is read by one task, because it can only be decompressed from its start.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data import corpus as shards
from transformer_mt.data.corpus import ParallelCorpus, Shard, TableWriter, join_fingerprints
from transformer_mt.data.data_config import Source
from transformer_mt.data.languages import primary_language
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner, Stage, TaskMetadata
from transformer_mt.data.text_files import (
    MAX_LINE_BYTES,
    PAIRS_REMEDY,
    LineStart,
    SentencePair,
    is_compressed,
    read_file_state,
    read_lines,
    read_pairs,
    remove_compressed_suffix,
    unequal_length_error,
)
from transformer_mt.errors import UserError

PARQUET_BLOCK = 10_000  # rows of a Parquet file in memory at a time
MAX_CSV_FIELD = 10_000_000  # characters; a longer field means that a quote was never closed
MAX_ROW_BYTES = 10_000_000  # of a line; its texts have the limit of a line of a text file


def is_table(path: Path) -> bool:
    """Return whether the name of a file is that of a table."""
    return _table_kind(path) in ("parquet", *_ROW_READERS)


def read_column_names(path: Path) -> list[str]:
    """Return the columns of a table, or the keys of its column `translation`. Raises `UserError` if it has no row."""
    row = next(_read_table_rows(path), None)
    if row is None:
        raise UserError(f"{path}: holds no sentence pairs; is it the right file?")
    nested = row.values.get("translation")
    return list(cast(Mapping[str, object], nested) if isinstance(nested, Mapping) else row.values)


class Row(NamedTuple):
    """One row of a table: its line, and its values by column."""

    line: int
    values: Mapping[str, object]


def read_table(path: Path, columns: tuple[str, str]) -> Iterator[SentencePair]:
    """Yield the pairs of a table. Raises `UserError` with file and line if it cannot be read."""
    for row in _read_table_rows(path, columns):
        yield SentencePair(*get_pair(row.values, columns, f"{path}:{row.line}"), str(path), row.line)


def _read_table_rows(path: Path, columns: tuple[str, str] | None = None) -> Iterator[Row]:
    kind = _table_kind(path)
    if kind == "parquet":
        return _read_parquet(path, columns)
    if kind not in _ROW_READERS:
        raise UserError(f"{path}: a table ends in .tsv, .csv, .jsonl (each also compressed) or .parquet")
    return _ROW_READERS[kind](path)


def _table_kind(path: Path) -> str:
    return remove_compressed_suffix(path).name.rpartition(".")[2]


def get_pair(row: Mapping[str, object], columns: tuple[str, str], where: str) -> tuple[str, str]:
    """Return both sentences of a row, from two columns or from a column `translation` that holds a dictionary."""
    nested = row.get("translation")
    if isinstance(nested, Mapping):
        row = cast(Mapping[str, object], nested)
    _check_columns(list(row), columns, where)
    for column in columns:
        if not isinstance(row[column], str):
            raise UserError(f"{where}: column {column} holds {json.dumps(row[column], default=str)} instead of text")
        if re.search("[\ud800-\udfff]", str(row[column])):
            raise UserError(f"{where}: column {column} holds half a character (a lone surrogate); repair or drop it")
        if len(str(row[column])) > MAX_LINE_BYTES:
            raise UserError(f"{where}: column {column} has more than {MAX_LINE_BYTES:,} characters; split or remove it")
    return cast(str, row[columns[0]]), cast(str, row[columns[1]])


def _check_columns(names: Sequence[str], columns: tuple[str, str], where: str) -> None:
    for column in columns:
        if column not in names:
            raise UserError(f"{where}: no column {column}; it has {', '.join(names)}: set src_column and tgt_column")


def _check_header(names: list[str], where: str) -> list[str]:
    """Return the column names. Raises `UserError` if two are equal."""
    if repeated := [name for i, name in enumerate(names) if name and name in names[:i]]:
        raise UserError(f'{where}: two columns are named "{repeated[0]}"; rename one')
    return names


def select_text_columns(names: list[str], columns: tuple[str, str], where: str) -> list[str]:
    """Return the columns to read. Others may hold audio or images, which need further packages."""
    if "translation" not in names:
        _check_columns(names, columns, where)
    return [name for name in names if name in ("translation", *columns)]


def _read_tsv(path: Path) -> Iterator[Row]:
    lines = read_lines(path, limit=MAX_ROW_BYTES)
    header = _check_header(next(lines, "").split("\t"), f"{path}:1")
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) != len(header):
            raise UserError(f"{path}:{number}: {len(fields)} columns, but line 1 names {len(header)}")
        yield Row(number, dict(zip(header, fields, strict=True)))


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(MAX_CSV_FIELD)
    reader = csv.reader((line + "\n" for line in read_lines(path, limit=MAX_ROW_BYTES)), strict=True)
    try:
        header = _check_header(next(reader, list[str]()), f"{path}:1")
        first_line = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                raise UserError(f"{path}:{reader.line_num}: {len(fields)} columns, but line 1 names {len(header)}")
            if fields:  # a blank line has none
                yield Row(first_line, dict(zip(header, fields, strict=True)))
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not valid CSV: {error}") from None


def _read_jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path, limit=MAX_ROW_BYTES), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f'{path}:{number}: not a JSON object such as {{"en": "...", "de": "..."}}')
        yield Row(number, cast(dict[str, object], row))


def _read_parquet(path: Path, columns: tuple[str, str] | None) -> Iterator[Row]:
    """Yield the rows of a Parquet file, with these columns only."""
    import pyarrow
    import pyarrow.parquet

    pa: Any = pyarrow
    unreadable: tuple[type[Exception], ...] = (pa.ArrowException, ValueError, OSError)
    try:
        file = cast(Any, pyarrow.parquet).ParquetFile(path)
        names = _check_header(file.schema_arrow.names, str(path))
        selected = names if columns is None else select_text_columns(names, columns, str(path))
        rows = (row for block in file.iter_batches(PARQUET_BLOCK, columns=selected) for row in block.to_pylist())
        yield from (Row(number, row) for number, row in enumerate(rows, start=1))
    except unreadable as error:
        raise UserError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None


_ROW_READERS = {"tsv": _read_tsv, "csv": _read_csv, "jsonl": _read_jsonl}


SPLITS = ("train", "validation", "test", "combinations")
QUICKSTART_FILE = Path(__file__).with_name("quickstart.tsv.gz")


def load_pairs(split: str) -> list[tuple[str, str]]:
    """Return the (English, German) sentence pairs of one of SPLITS. Raises `UserError` for any other name."""
    if split not in SPLITS:
        raise UserError(f"the built-in corpus has no split {split}; choose from: {', '.join(SPLITS)}")
    with gzip.open(QUICKSTART_FILE, "rt", encoding="utf-8", newline="\n") as lines:
        rows = (line.rstrip("\n").split("\t") for line in lines if line.startswith(f"{split}\t"))
        return [(en, de) for _, en, de in rows]


def read_source(source: Source, columns: tuple[str, str]) -> Iterator[SentencePair]:
    """Yield the pairs of a source in order. `columns` names the columns of tables and data sets, before `reverse`.

    Raises `UserError` with file and line if the source cannot be read.
    """
    for src, tgt in zip(*source.text_files(), strict=True):
        yield from read_pairs(Path(src), Path(tgt))
    for pair in _read_rows(source, columns):
        yield pair._replace(src=pair.tgt, tgt=pair.src) if source.reverse else pair


def _read_rows(source: Source, columns: tuple[str, str]) -> Iterator[SentencePair]:
    """Yield the pairs of a source that has both sides in one place, before `reverse`."""
    if (source.table or source.dataset) and columns[0] == columns[1]:
        raise UserError(f"source and target would both be column {columns[0]}: set src_column and tgt_column")
    if source.builtin:
        yield from _read_builtin(source.split or "train", columns)
    elif source.dataset:
        yield from _read_dataset(source, columns)
    for name in source.table:
        yield from read_table(Path(name), columns)


# --- data sets and the built-in corpus --------------------------------------------------------------------------------


def _read_dataset(source: Source, columns: tuple[str, str]) -> Iterator[SentencePair]:
    name = f"{source.dataset} ({source.split or 'train'})"
    rows = _load_dataset(cast(str, source.dataset), source.subset, source.split or "train")
    rows = rows.select_columns(select_text_columns(rows.column_names, columns, name))
    for number, row in enumerate(rows, start=1):
        yield SentencePair(*get_pair(row, columns, f"{name}:{number}"), name, number)


def _load_dataset(name: str, subset: str | None, split: str) -> Any:
    """Load one split from the hub, from a folder of data files, or from a folder written by `save_to_disk`."""
    import datasets

    datasets.disable_progress_bars()
    is_saved = any((Path(name) / file).exists() for file in ("dataset_info.json", "dataset_dict.json"))
    if is_saved and subset is not None:
        raise UserError(f"{name}: a folder written by `save_to_disk` has no subsets; remove `subset`")
    try:
        if not is_saved:
            return datasets.load_dataset(name, subset, split=split)
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

FORMAT_VERSION = 3  # of the cached tables and of their division into tasks; part of their key
MIN_COMPRESSION = 2  # lower bound of the compression ratio of text
TABLE_KEYS = {"builtin", "src", "tgt", "table", "dataset", "subset", "split", "src_column", "tgt_column", "reverse"}
"""Keys of a source that determine its pairs, in addition to the names of the columns."""

PART_BYTES = 1 << 26
"""Bytes whose lines a task counts. Larger text files are divided by rows, and smaller files are grouped."""
PIECE_BYTES = 1 << 20  # maximum bytes that a task skips before its first row


def load_corpus(
    source: Source, src_lang: str, tgt_lang: str, cache_dir: Path, runner: Runner = IN_PROCESS_RUNNER
) -> ParallelCorpus:
    """Return the pairs of a source. Reads the source if it is not cached.

    The languages are those of the configuration. A source may name other languages.

    Raises:
        UserError: The source cannot be read; with file and line.
    """
    source.check_may_be_read()
    languages = source.languages(src_lang, tgt_lang)
    if source.reverse:
        languages = languages[::-1]
    columns = (source.src_column or languages[0], source.tgt_column or languages[1])
    states = _file_states(source)
    key = [FORMAT_VERSION, source.model_dump(mode="json", include=TABLE_KEYS), columns, states]
    parts = _divide(source, cache_dir, runner)
    stage = Stage(
        "read", cache_dir, key, len(parts), ReadTask(parts, columns, shards.SHARD_PAIRS), _min_text_bytes(source)
    )
    found: list[Shard] = []
    hashes: list[str] = []
    for folder, metadata in runner(stage):
        for name, n_rows, text_hash in metadata["shards"]:
            found.append(Shard(folder / name, n_rows, metadata["files"]))
            hashes.append(text_hash)
    if _file_states(source) != states:
        raise UserError(f"{_source_name(source)}: has changed while it was read; run the same command again")
    if not found:
        raise UserError(f"{_source_name(source)}: holds no sentence pairs; is it the right file?")
    return ParallelCorpus(found, stage.folder.name, join_fingerprints(hashes))


def _source_name(source: Source) -> str:
    name = source.builtin or source.dataset or ", ".join(source.files)
    return name + (f" ({source.split})" if source.split else "")


def _file_states(source: Source) -> list[object]:
    """Return the path, size and modification time of each file."""
    src, tgt = source.text_files()  # a reversed table names the other files, so their order is part of the key
    files = [Path(name) for name in (*src, *tgt, *source.table)]
    if source.builtin:
        files = [QUICKSTART_FILE]
    elif source.dataset and Path(source.dataset).is_dir():
        files = sorted(_list_visible_files(Path(source.dataset)))
    return [read_file_state(path) for path in files]


def _min_text_bytes(source: Source) -> int:
    """Return a lower bound for the bytes of the tables of text files; 0 for other sources."""
    files = [Path(name) for name in (*source.src, *source.tgt)]
    return sum(path.stat().st_size * (MIN_COMPRESSION if is_compressed(path) else 1) for path in files)


def _list_visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder. Hidden ones are skipped, because they may be the cache itself."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(parent, name) for name in names if not name.startswith("."))
        yield from (path for path in files if path.is_file())


# --- reading ----------------------------------------------------------------------------------------------------------


class RowRange(NamedTuple):
    """Consecutive rows of a pair of text files."""

    src: str
    tgt: str
    n_rows: int
    src_start: LineStart
    tgt_start: LineStart


Part = Source | RowRange
"""Input of a task: some files of a source, or a range of rows."""


@dataclass(frozen=True)
class ReadTask:
    """Task: read a part of a source, and write its pairs as shards."""

    parts: Sequence[Part]
    columns: tuple[str, str]
    shard_pairs: int

    def __call__(self, task: int, folder: Path) -> TaskMetadata:
        """Return name, number of rows and hash of each shard, and the names of its files."""
        part = self.parts[task]
        pairs = _read_range(part) if isinstance(part, RowRange) else read_source(part, self.columns)
        files = dict[str, int]()
        written: list[tuple[str, int, str]] = []
        while block := [*islice(pairs, min(shards.BLOCK_SIZE, self.shard_pairs))]:
            name = f"{len(written)}.arrow"
            with TableWriter(folder / name) as table:
                while block:
                    src, tgt, names, lines = zip(*block, strict=True)
                    table.write(src, tgt, [files.setdefault(name, len(files)) for name in names], lines)
                    block = [*islice(pairs, min(shards.BLOCK_SIZE, self.shard_pairs - table.n_pairs))]
            written.append((name, table.n_pairs, table.text_hash()))
        return {"shards": written, "files": [*files]}


def _read_range(part: RowRange) -> Iterator[SentencePair]:
    src, tgt = read_lines(Path(part.src), start=part.src_start), read_lines(Path(part.tgt), start=part.tgt_start)
    for number, pair in enumerate(islice(zip(src, tgt, strict=False), part.n_rows), part.src_start.number):
        yield SentencePair(*pair, part.src, number)


# --- division into tasks ----------------------------------------------------------------------------------------------


def _divide(source: Source, cache_dir: Path, runner: Runner) -> list[Part]:
    """Divide a source into the parts that tasks read. Small files share a part.

    Raises:
        UserError: Large text files differ in length.
    """
    if source.table:
        sizes = [Path(name).stat().st_size for name in source.table]
        return [source.model_copy(update={"table": source.table[files]}) for files in _group(sizes)]
    if not source.src:
        return [source]
    src_files, tgt_files = source.text_files()
    pairs = [*zip(src_files, tgt_files, strict=True)]
    are_large = [all(map(_is_large, pair)) for pair in pairs]
    large = [pair for pair, is_large in zip(pairs, are_large, strict=True) if is_large]
    counts = _count_lines([*chain.from_iterable(large)], cache_dir, runner)
    sizes = [max(Path(name).stat().st_size for name in pair) for pair in pairs]
    parts: list[Part] = []
    for files in _group(sizes):
        first: int = files.start
        if are_large[first]:
            parts += _divide_rows(pairs[first], counts)
        else:
            parts.append(source.model_copy(update={"src": source.src[files], "tgt": source.tgt[files]}))
    return parts


def _is_large(name: str) -> bool:
    return Path(name).stat().st_size > PART_BYTES and not is_compressed(Path(name))


def _group(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield ranges of consecutive files of at most `PART_BYTES` in total. A larger file is a range of its own."""
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > PART_BYTES:
            yield slice(start, i)
            start, total = i, 0
        total += size
    yield slice(start, len(sizes))


class LineCounts(NamedTuple):
    """Number of line feeds before each piece of `PIECE_BYTES` of a file [pieces + 1], and number of lines."""

    before: NDArray[np.int64]
    n_lines: int

    def find(self, row: int) -> LineStart:
        """Return the start of a row, which is counted from 0."""
        piece = max(0, int(np.searchsorted(self.before, row)) - 1)  # the last piece with fewer line feeds before it
        return LineStart(row + 1, piece * PIECE_BYTES, row - int(self.before[piece]))


def _divide_rows(files: tuple[str, str], counts: Mapping[str, LineCounts]) -> Iterator[RowRange]:
    src, tgt = files
    src_counts, tgt_counts = counts[src], counts[tgt]
    n_rows = src_counts.n_lines
    if tgt_counts.n_lines != n_rows:
        raise unequal_length_error((Path(src), Path(tgt)), (n_rows, tgt_counts.n_lines), PAIRS_REMEDY)
    for first in range(0, n_rows, shards.SHARD_PAIRS):
        size = min(shards.SHARD_PAIRS, n_rows - first)
        yield RowRange(src, tgt, size, src_counts.find(first), tgt_counts.find(first))


@dataclass(frozen=True)
class CountTask:
    """Task: count the line feeds of each piece in a part of a file."""

    parts: Sequence[tuple[str, int]]  # file and offset

    def __call__(self, task: int, folder: Path) -> TaskMetadata:
        """Return the number of line feeds in each piece."""
        name, offset = self.parts[task]
        with Path(name).open("rb") as file:
            file.seek(offset)
            pieces = iter(lambda: file.read(PIECE_BYTES), b"")
            return {"line_feeds": [piece.count(b"\n") for piece in islice(pieces, PART_BYTES // PIECE_BYTES)]}


def _count_lines(names: Sequence[str], cache_dir: Path, runner: Runner) -> dict[str, LineCounts]:
    """Return the line counts of files, by name."""
    if not names:
        return {}
    states = [read_file_state(Path(name)) for name in names]
    distinct = dict.fromkeys(states)  # a file may be named twice
    parts = [(state[0], offset) for state in distinct for offset in range(0, state[1], PART_BYTES)]
    results = runner(Stage("count", cache_dir, [FORMAT_VERSION, states], len(parts), CountTask(parts)))
    counts: dict[str, LineCounts] = {}
    for name, (path, *_) in zip(names, states, strict=True):
        found = chain.from_iterable(
            metadata["line_feeds"] for (_, metadata), part in zip(results, parts, strict=True) if part[0] == path
        )
        before = np.cumsum([0, *found])
        with Path(name).open("rb") as file:
            file.seek(-1, os.SEEK_END)
            has_open_line = file.read() != b"\n"
        counts[name] = LineCounts(before, int(before[-1]) + has_open_line)
    return counts
