"""Readers of the sources of sentence pairs, which yield pairs with their file and line."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from transformer_mt.data.data_config import Source
from transformer_mt.data.languages import primary_language
from transformer_mt.data.text_files import MAX_LINE_BYTES, SentencePair, read_lines, read_pairs
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
        raise UserError(f"{path}: a table ends in .tsv, .csv, .jsonl (or these with .gz) or .parquet")
    return _ROW_READERS[kind](path)


def _table_kind(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[2]


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
