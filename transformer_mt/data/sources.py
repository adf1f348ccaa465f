"""Readers: each turns one kind of source into sentence pairs with their origin, one at a time.

Only `\\n` ends a line (`\\r\\n` loses its `\\r`); U+2028 and its kind stay inside. Bytes that are not UTF-8 are an
error that names file and line.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, cast

from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.data.corpus import Source

Errors = Literal["strict", "replace"]


class Pair(NamedTuple):
    """One sentence pair and where it was read."""

    src: str
    tgt: str
    file: str
    line: int


def read(source: Source, columns: tuple[str, str]) -> Iterator[Pair]:
    """The pairs of any source, in order."""
    if source.builtin:
        yield from _read_builtin(source.split or "train")
    elif source.dataset:
        yield from _read_dataset(source, columns)
    elif source.table:
        for name in source.table:
            yield from _read_table(Path(name), columns)
    else:
        for src, tgt in zip(source.src, source.tgt, strict=True):
            yield from read_text(Path(src), Path(tgt))


# --- lines ------------------------------------------------------------------------------------------------------------


def decode_line(raw: bytes, name: str, number: int, errors: Errors = "strict") -> str:
    """One line of a file (or of standard input) as text, without its end; bytes that are none are refused, or become
    U+FFFD."""
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}:{number}: not UTF-8 text (byte 0x{raw[error.start]:02x} at position {error.start + 1});\n"
            "convert the file to UTF-8, e.g. with iconv"
        ) from None


def read_lines(path: Path, errors: Errors = "strict") -> Iterator[str]:
    """The lines of a text file, plain or `.gz`."""
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                yield decode_line(raw, str(path), number, errors)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file (looked in {Path.cwd()})") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; name a file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}:{number + 1}: the .gz is truncated or damaged ({error}); fetch it again") from None


def read_aligned(first: Path, *others: Path) -> list[list[str]]:
    """The lines of files whose lines belong together. Raises `UserError` unless all have as many, one at least."""
    found = [[*read_lines(path)] for path in (first, *others)]
    for path, lines in zip(others, found[1:], strict=True):
        if len(lines) != len(found[0]):
            raise UserError(
                f"{path} has {len(lines):,} lines, {first} has {len(found[0]):,}: line N of one must belong to line N "
                "of the other;\nfind the line from which they differ"
            )
    if not found[0]:
        raise UserError(f"{first}: holds no lines; is it the right file?")
    return found


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))


def read_text(src: Path, tgt: Path, errors: Errors = "strict") -> Iterator[Pair]:
    """The pairs of two text files. Raises `UserError` where one has more lines than the other."""
    sides = read_lines(src, errors), read_lines(tgt, errors)
    for number, (a, b) in enumerate(zip_longest(*sides), start=1):
        if a is None or b is None:
            n_src, n_tgt = (
                number - (last is None) + sum(1 for _ in rest) for last, rest in zip((a, b), sides, strict=True)
            )
            raise UserError(
                f"{src} has {n_src} lines, {tgt} has {n_tgt}: line N of one must translate line N of the other;\n"
                "find the line from which they differ"
            )
        yield Pair(a, b, str(src), number)


# --- tables: one row a pair, one column a language --------------------------------------------------------------------


class Row(NamedTuple):
    """One row of a table, its columns by name, and its line."""

    line: int
    columns: Mapping[str, object]


def _read_table(path: Path, columns: tuple[str, str]) -> Iterator[Pair]:
    reader = _TABLES.get(path.name.removesuffix(".gz").rpartition(".")[2])
    if reader is None:
        raise UserError(
            f"{path}: a table ends in {', '.join('.' + name for name in _TABLES)} (or .gz of the first three)"
        )
    for row in reader(path):
        yield Pair(*_pick(row.columns, columns, f"{path}:{row.line}"), str(path), row.line)


def _pick(row: Mapping[str, object], columns: tuple[str, str], where: str) -> tuple[str, str]:
    """The two sentences of a row: two flat columns, or one column `translation` that holds both."""
    inner = row.get("translation")
    if isinstance(inner, Mapping):
        row = cast(Mapping[str, object], inner)
    for column in columns:
        if column not in row:
            have = ", ".join(str(name) for name in row)
            raise UserError(f"{where}: no column {column}; it has {have}: set src_column and tgt_column")
        if not isinstance(row[column], str):
            raise UserError(f"{where}: column {column} holds {json.dumps(row[column], default=str)} instead of text")
        if re.search("[\ud800-\udfff]", str(row[column])):
            raise UserError(
                f"{where}: column {column} holds half a character (a lone surrogate); mend or drop the line"
            )
    return cast(str, row[columns[0]]), cast(str, row[columns[1]])


def _read_tsv(path: Path) -> Iterator[Row]:
    lines = read_lines(path)
    header = next(lines, "").split("\t")
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        if not line:
            continue
        if len(fields) != len(header):
            raise UserError(f"{path}:{number}: {len(fields)} columns, where line 1 names {len(header)}")
        yield Row(number, dict(zip(header, fields, strict=True)))


def _read_csv(path: Path) -> Iterator[Row]:
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        header = next(reader, list[str]())
        first = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                raise UserError(f"{path}:{reader.line_num}: {len(fields)} columns, where line 1 names {len(header)}")
            if fields:  # else a blank line
                yield Row(first, dict(zip(header, fields, strict=True)))
            first = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not valid CSV: {error}") from None


def _read_jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f'{path}:{number}: not a JSON object such as {{"en": "...", "de": "..."}}')
        yield Row(number, cast(dict[str, object], row))


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    parquet: Any = pyarrow.parquet
    try:
        rows = (row for block in parquet.ParquetFile(path).iter_batches() for row in block.to_pylist())
        yield from (Row(number, row) for number, row in enumerate(rows, start=1))
    except (ValueError, OSError) as error:  # what Arrow raises for a file that is none of its own
        raise UserError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None


_TABLES: dict[str, Callable[[Path], Iterable[Row]]] = {
    "tsv": _read_tsv,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
}


# --- data sets and the built-in corpus --------------------------------------------------------------------------------


def _read_dataset(source: Source, columns: tuple[str, str]) -> Iterator[Pair]:
    import datasets

    datasets.disable_progress_bars()
    name, split = cast(str, source.dataset), source.split or "train"
    rows: Any
    try:
        if (Path(name) / "dataset_info.json").exists() or (Path(name) / "dataset_dict.json").exists():
            loaded = cast(Any, datasets.load_from_disk(name))
            if not isinstance(loaded, datasets.DatasetDict):
                loaded = {str(loaded.split or "train"): loaded}
            rows = loaded[split]
        else:
            rows = datasets.load_dataset(name, source.subset, split=split)
    except KeyError:
        raise UserError(f"{name}: no split {split}; set `split`") from None
    except Exception as error:  # the hub client has no common base class for what can go wrong on the way
        cause = error.__cause__ or error
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise UserError(
            f"{name} ({split}): the data set cannot be loaded: {reason}\n"
            "for a hub name the network must reach the hub; with text files of your own, give them instead:\n"
            "  data.train='{src: train.SRC, tgt: train.TGT}' (likewise data.validation and data.test)"
        ) from None
    for number, row in enumerate(rows, start=1):
        yield Pair(*_pick(row, columns, f"{name} ({split}):{number}"), f"{name} ({split})", number)


def _read_builtin(split: str) -> Iterator[Pair]:
    from transformer_mt.data.quickstart import corpus

    if split not in corpus.SPLITS:
        raise UserError(f"the built-in corpus has no split {split}; choose from: {', '.join(corpus.SPLITS)}")
    for number, (src, tgt) in enumerate(corpus.pairs(split), start=1):
        yield Pair(src, tgt, f"quickstart ({split})", number)
