"""Readers of tables with both languages: .tsv, .csv, .jsonl, .parquet, .tmx and Moses archives."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EINVAL
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast
from zipfile import BadZipFile, ZipFile

from transformer_mt.config.section import has_lone_surrogate
from transformer_mt.data.text_files import (
    BAD_LINE,
    MAX_LINE_BYTES,
    OnBad,
    SentencePair,
    UnpairedError,
    check_is_file,
    iterate_lines,
    pair_lines,
    raise_bad_row,
    read_lines,
    remove_compressed_suffix,
    skip_bad_row,
    zip_iterators,
)
from transformer_mt.data.tmx import read_units
from transformer_mt.errors import UserError

BLOCK_ROWS = 10_000  # rows of a Parquet file or a data set in memory at a time
MAX_CSV_FIELD = 10_000_000  # characters; a longer field means that a quote was never closed
MAX_ROW_BYTES = 10_000_000  # of a line; its texts have the limit of a line of a text file

HEADERLESS_KINDS = ("tsv", "csv")  # of tables that may lack a header
NO_LANGUAGES = ("csv", "html", "ids", "json", "md", "scores", "tmx", "tsv", "txt", "xml")  # suffixes in an archive
MAX_LISTED = 5  # files of an archive in a message
HEAD_LINES = 100  # of a .csv file, which show its delimiter
MAX_SHOWN = 40  # characters of a cell in a message
UNPACK_REMEDY = "unpack the archive, and pass both files to tmt init, or as data.train: {src: F, tgt: G}"
TABLE_NAMES = ".tsv, .csv, .jsonl, .tmx (each also compressed), .parquet or .zip"


def is_table(path: Path) -> bool:
    """Return whether the name of a file is that of a table."""
    return table_kind(path) in ("parquet", "jsonl", "tmx", "zip", *HEADERLESS_KINDS)


def table_kind(path: Path) -> str:
    """Return the last part of the name of a table, without that of its compression."""
    return remove_compressed_suffix(path).suffix[1:].lower()


def are_quoted(cells: Iterable[str]) -> bool:
    """Return whether all cells are in quotes, as in CSV."""
    return all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells)


def read_head(path: Path, n_rows: int) -> list[list[str]]:
    """Return the first rows of a table as text. The first of them has the names of the columns, if there are names.

    They are the keys of the first row or of its column `translation`, or languages, without further rows. Raises
    `UserError` if there is no row.
    """
    match table_kind(path):
        case "tmx":
            units = islice(read_units(path), BLOCK_ROWS)
            rows = [[*dict.fromkeys(language for unit in units for language in unit.segments)]]
        case "zip":
            with _open_archive(path) as archive:
                rows = [[*_list_members(archive)]]
        case "tsv" | "csv":
            rows = [cells for _, cells in islice(read_cells(path, skip_bad_row), n_rows)]
        case _:
            values = [_unnest(row.values) for row in islice(_read_rows(path, (), None, skip_bad_row), n_rows)]
            names = [*values[0]] if values else []
            rows = [names, *([str(row.get(name) or "") for name in names] for row in values)]
    if not any(rows):
        if table_kind(path) != "tmx":
            next(_read_rows(path, (), None, raise_bad_row), None)  # raises the error of the first row
        raise empty_error(str(path))
    return rows


def _unnest(row: Mapping[str, object]) -> Mapping[str, object]:
    """Return the columns of a row, or those of its column `translation`, if that has any."""
    nested = row.get("translation")
    return cast(Mapping[str, object], nested) if isinstance(nested, Mapping) else row


def empty_error(name: str) -> UserError:
    """Return the error for a source without pairs."""
    return UserError(f"{name}: holds no sentence pairs; is it the right file?")


class Row(NamedTuple):
    """One row of a table: its line, and its values by column."""

    line: int
    values: Mapping[str, object]


def read_table(
    path: Path,
    columns: tuple[str, str],
    names: Sequence[str] = (),
    on_bad: OnBad = raise_bad_row,
    numbers: Sequence[str] = (),
) -> Iterator[SentencePair]:
    """Yield the pairs of a table, with their numbers in the columns `numbers`.

    `names` are the columns of a table without a header. Raises `UserError` with file and line if it cannot be read.
    """
    if names and table_kind(path) not in HEADERLESS_KINDS:
        raise UserError(f"{path}: only .tsv and .csv lack a header; remove columns, or set src_column and tgt_column")
    if numbers and table_kind(path) in ("tmx", "zip"):
        raise UserError(f"{path}: has no columns of numbers, and a filter reads {numbers[0]}: write a .tsv")
    if table_kind(path) == "zip":
        return _read_archive(path, columns, on_bad)
    return make_pairs(_read_rows(path, names, columns, on_bad, numbers), columns, str(path), on_bad, numbers)


def _read_rows(
    path: Path,
    names: Sequence[str],
    columns: tuple[str, str] | None,
    on_bad: OnBad,
    numbers: Sequence[str] = (),
) -> Iterator[Row]:
    match table_kind(path):
        case "tsv" | "csv":
            return _name_cells(path, names, columns, on_bad, numbers)
        case "jsonl":
            return _read_jsonl(path, on_bad)
        case "parquet":
            return _read_parquet(path, columns, numbers)
        case "tmx" if columns:
            return _read_tmx(path, columns, on_bad)
        case _:
            raise UserError(f"{path}: a table ends in {TABLE_NAMES}")


def make_pairs(
    rows: Iterable[Row], columns: tuple[str, str], name: str, on_bad: OnBad, numbers: Sequence[str] = ()
) -> Iterator[SentencePair]:
    """Yield the pairs of rows, from two columns or from a column `translation` that holds a dictionary."""
    for line, values in rows:
        try:
            src, tgt = _get_texts(_unnest(values), columns, f"{name}:{line}")
            found = tuple(_get_number(values, column, f"{name}:{line}") for column in numbers)
        except UserError as error:
            on_bad(error)
        else:
            yield SentencePair(src, tgt, name, line, found)


def _get_number(row: Mapping[str, object], column: str, where: str) -> float:
    """Return the number in a column. Raises `UserError` if there is none."""
    value = row.get(column)
    try:
        number = math.nan if isinstance(value, bool) else float(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        shown = json.dumps(value, ensure_ascii=False, default=str)[:MAX_SHOWN] if column in row else "nothing"
        raise UserError(f"{where}: column {column} holds {shown} instead of a number, which a filter reads")
    return number


def _get_texts(row: Mapping[str, object], columns: tuple[str, str], where: str) -> Iterator[str]:
    """Yield the text of both columns. Raises `UserError` for a value that no line of a text file could hold."""
    _check_columns(list(row), columns, where)
    for column in columns:
        text, place = row[column], f"{where}: column {column}"
        if not isinstance(text, str):
            raise UserError(f"{place} holds {json.dumps(text, default=str)} instead of text")
        if has_lone_surrogate(text):
            raise UserError(f"{place} holds half a character (a lone surrogate); repair or drop it")
        if "\0" in text:
            raise UserError(f"{place} holds a zero byte; repair or drop it")
        if len(text) > MAX_LINE_BYTES:
            raise UserError(f"{place} has more than {MAX_LINE_BYTES:,} characters; split or remove it")
        yield text


def _check_columns(names: Sequence[str], columns: Sequence[str], where: str, numbers: Sequence[str] = ()) -> None:
    found = ", ".join(names)
    for column in columns:
        if column not in names:
            header = f"or name the columns {', '.join(columns)} in its header"
            raise UserError(f"{where}: no column {column}; it has {found}: set src_column and tgt_column,\n{header}")
    for column in numbers:
        if column not in names:
            raise UserError(f"{where}: no column {column}, which a filter reads (data.filters); it has {found}")


def _check_header(names: list[str], where: str) -> list[str]:
    """Return the column names. Raises `UserError` if two are equal."""
    if repeated := [name for i, name in enumerate(names) if name and name in names[:i]]:
        raise UserError(f'{where}: two columns are named "{repeated[0]}"; rename one')
    return names


def select_columns(names: list[str], columns: tuple[str, str], where: str, numbers: Sequence[str] = ()) -> list[str]:
    """Return the columns to read. Others may hold audio or images, which need further packages."""
    _check_columns(names, () if "translation" in names else columns, where, numbers)
    return [name for name in names if name in ("translation", *columns, *numbers)]


def read_cells(path: Path, on_bad: OnBad = raise_bad_row) -> Iterator[tuple[int, list[str]]]:
    """Yield the line of its start and the cells of each row of a .tsv or .csv file, without blank lines."""
    if table_kind(path) == "csv":
        yield from _read_csv(path, on_bad)
        return
    for number, line in enumerate(read_lines(path, limit=MAX_ROW_BYTES, on_bad=on_bad), start=1):
        if line and line != BAD_LINE:
            yield number, line.split("\t")


def _read_csv(path: Path, on_bad: OnBad) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_CSV_FIELD)
    head = [*islice(read_lines(path, limit=MAX_ROW_BYTES, on_bad=skip_bad_row), HEAD_LINES)]
    hint = re.fullmatch(r'"?sep=(.)"?', head[0]) if head else None  # a line that only spreadsheets read
    delimiter, n_skipped = (hint[1], 1) if hint else (_find_delimiter(head), 0)
    lines = islice(read_lines(path, limit=MAX_ROW_BYTES, on_bad=on_bad), n_skipped, None)
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True)
    while True:
        first_line = reader.line_num + n_skipped + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            line = reader.line_num + n_skipped
            problem = UserError(f"{path}:{line}: not valid CSV: {error}")
            if line > first_line:  # an open quote, after which the ends of rows are unknown
                problem = UserError(f"{path}:{first_line}: not valid CSV: a quote of this row has no end ({error})")
                raise problem from None
            on_bad(problem)
            continue
        if fields is None:
            return
        if fields and not any(BAD_LINE in field for field in fields):  # a blank line has no fields
            yield first_line, fields


def _find_delimiter(head: Sequence[str]) -> str:
    """Return the character that divides the first lines of a .csv file into rows of equal length.

    Spreadsheets write semicolons in many countries, and a .tsv with quotes may be renamed. The first line decides if no
    character fits.
    """
    lines = [line for line in head if line != BAD_LINE]
    end = -1 if len(head) == HEAD_LINES else None  # the last row may be cut
    for delimiter in "\t,;|":
        with suppress(csv.Error):
            rows = [*csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=False)]
            widths = {len(row) for row in rows[:end] if row}
            if len(widths) == 1 and max(widths) > 1:
                return delimiter
    first = lines[0] if lines else ""
    return "\t" if "\t" in first else ";" if ";" in first and "," not in first else ","


def _name_cells(
    path: Path, names: Sequence[str], columns: tuple[str, str] | None, on_bad: OnBad, numbers: Sequence[str]
) -> Iterator[Row]:
    rows = read_cells(path, on_bad)
    source, hint = "columns", "; name all, with _ for those that are not read"
    if not names:
        header = next(rows, None)
        if header is None:
            return
        source, hint = f"line {header[0]}", ""
        names = _check_header(header[1], f"{path}:{header[0]}")
    if columns:
        _check_columns(names, columns, str(path), numbers)
    for line, cells in rows:
        if len(cells) == len(names):
            yield Row(line, dict(zip(names, cells, strict=True)))
        else:
            on_bad(UserError(f"{path}:{line}: {len(cells)} columns, but {source} names {len(names)}{hint}"))


def _read_jsonl(path: Path, on_bad: OnBad) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path, limit=MAX_ROW_BYTES, on_bad=on_bad), start=1):
        if not line.strip() or line == BAD_LINE:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            is_list = number == 1 and line.lstrip("\ufeff ").startswith("[")
            hint = ";\nwrite one object per line, e.g. with jq -c '.[]' OLD > NEW" if is_list else ""
            on_bad(UserError(f"{path}:{number}: not valid JSON: {error}{hint}"))
            continue
        if isinstance(row, dict):
            yield Row(number, cast(dict[str, object], row))
        else:
            on_bad(UserError(f'{path}:{number}: not a JSON object such as {{"en": "...", "de": "..."}}'))


def _read_parquet(path: Path, columns: tuple[str, str] | None, numbers: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet file, with these columns only."""
    import pyarrow
    import pyarrow.parquet

    pa: Any = pyarrow
    unreadable: tuple[type[Exception], ...] = (pa.ArrowException, ValueError, OSError)
    try:
        file = cast(Any, pyarrow.parquet).ParquetFile(path)
        names = _check_header(file.schema_arrow.names, str(path))
        selected = names if columns is None else select_columns(names, columns, str(path), numbers)
        rows = (row for block in file.iter_batches(BLOCK_ROWS, columns=selected) for row in block.to_pylist())
        yield from (Row(number, row) for number, row in enumerate(rows, start=1))
    except unreadable as error:
        raise UserError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None


def _read_tmx(path: Path, languages: tuple[str, str], on_bad: OnBad) -> Iterator[Row]:
    has_pair, found = False, dict[str, None]()
    for unit in read_units(path):
        if pair := unit.find_pair(*languages):
            has_pair = True
            yield Row(unit.line, dict(zip(languages, pair, strict=True)))
        else:
            found |= dict.fromkeys(unit.segments)
            on_bad(UnpairedError(f"{path}:{unit.line}: has no {' and '.join(languages)}"))
    if not has_pair and found:
        raise UserError(
            f"{path}: no unit is in {' and '.join(languages)}; its languages are {', '.join(found)}: "
            "set src_column and tgt_column"
        )


@contextmanager
def _open_archive(path: Path) -> Generator[ZipFile]:
    check_is_file(path)
    try:
        with ZipFile(path) as archive:
            yield archive
    except (BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != EINVAL:  # which is an offset before the start of the file
            raise
        is_damaged = isinstance(error, BadZipFile | OSError)  # else it has a password or an unknown compression
        remedy = "delete it, and fetch it again" if is_damaged else UNPACK_REMEDY
        raise UserError(f"{path}: not a readable ZIP archive: {error}; {remedy}") from None


def _list_members(archive: ZipFile) -> dict[str, str]:
    """Return the text files of an archive by the last part of their names, as OPUS names them by languages.

    Raises `UserError` if there are not two.
    """
    members: dict[str, list[str]] = {}
    for name in archive.namelist():
        stem, _, suffix = Path(name).name.rpartition(".")
        is_text = stem and not stem.startswith(".") and not name.endswith("/")  # macOS adds files such as ._X.en
        if is_text and suffix not in NO_LANGUAGES:
            members.setdefault(suffix, []).append(name)
    found = {suffix: names[0] for suffix, names in members.items() if len(names) == 1}
    if len(found) < 2:
        raise UserError(
            f"{archive.filename}: is no Moses archive, which has one file a language, such as X.en and X.de, but has "
            f"{', '.join(archive.namelist()[:MAX_LISTED]) or 'no files'}; unpack it, and pass its files to tmt init"
        )
    return found


def _read_archive(path: Path, languages: tuple[str, str], on_bad: OnBad) -> Iterator[SentencePair]:
    """Yield the pairs of lines of two members of an archive, which end in their languages."""
    with _open_archive(path) as archive:
        members = _list_members(archive)
        for language in languages:
            if language not in members:
                raise UserError(
                    f"{path}: has no file that ends in .{language}, only in {', '.join(members)}: "
                    "set src_column and tgt_column"
                )
        names = [f"{path}/{members[language]}" for language in languages]
        with archive.open(members[languages[0]]) as src, archive.open(members[languages[1]]) as tgt:
            files = [iterate_lines(file, name, on_bad=on_bad) for file, name in zip((src, tgt), names, strict=True)]
            yield from pair_lines(zip_iterators(files, [*map(Path, names)], UNPACK_REMEDY), names[0])
