"""Tables of sentence pairs: TSV, CSV, JSONL and Parquet files with a row per pair and a column per language."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from transformer_mt.data.text_files import MAX_LINE_BYTES, SentencePair, read_lines
from transformer_mt.errors import UserError

PARQUET_BLOCK = 10_000  # rows of a Parquet file in memory at a time
MAX_CSV_FIELD = 10_000_000  # characters; a longer field means that a quote was never closed
MAX_ROW_BYTES = 10_000_000  # of a line; its texts have the limit of a line of a text file


def is_table(path: Path) -> bool:
    """Return whether the name of a file is that of a table."""
    return _table_kind(path) in ("parquet", *_ROW_READERS)


def read_column_names(path: Path) -> list[str]:
    """Return the columns of a table, or the keys of its column `translation`. Raises `UserError` if it has no row."""
    if _table_kind(path) == "parquet":
        columns = _parquet_columns(path)
        rows = _read_parquet(path, ("", "")) if "translation" in columns else iter([Row(1, dict.fromkeys(columns))])
    else:
        rows = iter(_ROW_READERS[_table_kind(path)](path))
    row = next(rows, None)
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
    kind = _table_kind(path)
    if kind == "parquet":
        rows = _read_parquet(path, columns)
    elif kind in _ROW_READERS:
        rows = _ROW_READERS[kind](path)
    else:
        raise UserError(f"{path}: a table ends in .tsv, .csv, .jsonl (or these with .gz) or .parquet")
    for row in rows:
        yield SentencePair(*get_pair(row.values, columns, f"{path}:{row.line}"), str(path), row.line)


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


def _read_parquet(path: Path, columns: tuple[str, str]) -> Iterator[Row]:
    with _report_parquet_errors(path):
        file = _open_parquet(path)
        names = _check_header(file.schema_arrow.names, str(path))
        blocks = file.iter_batches(PARQUET_BLOCK, columns=select_text_columns(names, columns, str(path)))
        rows = (row for block in blocks for row in block.to_pylist())
        yield from (Row(number, row) for number, row in enumerate(rows, start=1))


def _parquet_columns(path: Path) -> list[str]:
    with _report_parquet_errors(path):
        return _open_parquet(path).schema_arrow.names


def _open_parquet(path: Path) -> Any:
    import pyarrow.parquet

    parquet: Any = pyarrow.parquet
    return parquet.ParquetFile(path)


@contextmanager
def _report_parquet_errors(path: Path) -> Generator[None]:
    import pyarrow

    pa: Any = pyarrow
    unreadable: tuple[type[Exception], ...] = (pa.ArrowException, ValueError, OSError)
    try:
        yield
    except unreadable as error:
        raise UserError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None


_ROW_READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    "tsv": _read_tsv,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
}
