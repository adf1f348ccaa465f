"""Where sentence pairs come from, and readers: each turns one kind of source into pairs with their origin, one at a
time."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from transformer_mt.config.section import PathName, Section, section_error
from transformer_mt.data import quickstart
from transformer_mt.data.languages import primary_language
from transformer_mt.data.text_files import SentencePair, read_lines, read_pairs
from transformer_mt.errors import UserError


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value or ()


Files = Annotated[
    tuple[PathName, ...],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


GOES_WITH = {  # key: the kinds of source that it belongs to
    "subset": ("dataset",),
    "split": ("dataset", "builtin"),
    "src_column": ("dataset", "table"),
    "tgt_column": ("dataset", "table"),
}

PARQUET = "parquet"
ROWS = 10_000  # of a Parquet file that are in memory at once
LONGEST_FIELD = 10_000_000  # characters of CSV: above what crawls hold, and soon the end of a quote that is not closed


class Source(Section):
    """Where sentence pairs come from: exactly one of `builtin`, `src` with `tgt`, `table` and `dataset`."""

    builtin: Literal["quickstart"] | None = None
    """the corpus that comes with the program: quickstart"""
    src: Files = ()
    """text file of source sentences, one a line, plain or .gz; or a list of files"""
    tgt: Files = ()
    """text file of their translations, line by line; or a list of files"""
    table: Files = ()
    """.tsv, .csv, .jsonl (each also .gz) or .parquet file with a column for each language; or a list"""
    dataset: PathName | None = None
    """a data set's name on the Hugging Face hub, or a local folder that `load_dataset` takes"""
    subset: str | None = None
    """of a data set: its configuration, such as en-de"""
    split: str | None = None
    """of a data set or the built-in corpus: train (the default, of data.train alone), validation, test, ..."""
    src_column: str | None = None
    """column of the source sentences; without it, data.src_lang"""
    tgt_column: str | None = None
    """column of the translations; without it, data.tgt_lang"""

    @model_validator(mode="after")
    def _one_kind(self) -> Source:
        found = {"builtin": self.builtin, "src": self.src, "tgt": self.tgt, "table": self.table}
        named = [key for key, value in {**found, "dataset": self.dataset}.items() if value]
        if named not in (["builtin"], ["src", "tgt"], ["table"], ["dataset"]):
            what = f"found {' and '.join(named) or 'none'}"
            raise section_error(
                named[-1] if named else "",
                f"a source is exactly one of builtin, src with tgt, table, dataset; {what}"
                + (" (null takes a key away)" if len(named) > 1 else ""),
            )
        if len(self.src) != len(self.tgt):
            raise section_error(
                "tgt", f"as many target files as source files are needed ({len(self.src)}, {len(self.tgt)})"
            )
        for key, kinds in GOES_WITH.items():
            if getattr(self, key) is not None and named[0] not in kinds:
                raise section_error(
                    key, f"goes with {' or '.join(kinds)}, not with {named[0]}: leave it out (null takes it away)"
                )
        return self


def read_source(source: Source, columns: tuple[str, str]) -> Iterator[SentencePair]:
    """The pairs of any source, in order; `columns` name source and target in tables and data sets.

    Raises `UserError` for what cannot be read, with file and line.
    """
    if (source.table or source.dataset) and columns[0] == columns[1]:
        raise UserError(f"source and target are both to be column {columns[0]}: set src_column and tgt_column")
    if source.builtin:
        yield from _read_builtin(source.split or "train", columns)
    elif source.dataset:
        yield from _read_dataset(source, columns)
    elif source.table:
        for name in source.table:
            yield from _read_table(Path(name), columns)
    else:
        for src, tgt in zip(source.src, source.tgt, strict=True):
            yield from read_pairs(Path(src), Path(tgt))


# --- tables: one row a pair, one column a language --------------------------------------------------------------------


class Row(NamedTuple):
    """One row of a table, its columns by name, and its line."""

    line: int
    columns: Mapping[str, object]


def _read_table(path: Path, columns: tuple[str, str]) -> Iterator[SentencePair]:
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind not in (*_TABLES, PARQUET):
        raise UserError(
            f"{path}: a table ends in {', '.join('.' + name for name in (*_TABLES, PARQUET))} (or .gz of the first "
            "three)"
        )
    for row in _read_parquet(path, columns) if kind == PARQUET else _TABLES[kind](path):
        yield SentencePair(*_pick(row.columns, columns, f"{path}:{row.line}"), str(path), row.line)


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


def _names(place: str, header: list[str]) -> list[str]:
    """Of the columns. Raises `UserError` where one is named twice."""
    if twice := [name for i, name in enumerate(header) if name and name in header[:i]]:
        raise UserError(f'{place}: two columns are named "{twice[0]}"; give each a name of its own')
    return header


def _of_text(names: list[str], columns: tuple[str, str]) -> list[str] | None:
    """The columns that are read, for others may hold sounds or pictures; None, for all, where a message has to name
    them."""
    text = [name for name in names if name in ("translation", *columns)]
    return text if "translation" in text or {*columns} <= {*text} else None


def _read_tsv(path: Path) -> Iterator[Row]:
    lines = read_lines(path)
    header = _names(f"{path}:1", next(lines, "").split("\t"))
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        if not line:
            continue
        if len(fields) != len(header):
            raise UserError(f"{path}:{number}: {len(fields)} columns, where line 1 names {len(header)}")
        yield Row(number, dict(zip(header, fields, strict=True)))


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        header = _names(f"{path}:1", next(reader, list[str]()))
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


def _read_parquet(path: Path, columns: tuple[str, str]) -> Iterator[Row]:
    import pyarrow.parquet

    pa: Any = pyarrow
    parquet: Any = pyarrow.parquet
    unreadable: tuple[type[Exception], ...] = (pa.ArrowException, ValueError, OSError, OverflowError)  # a date past all
    try:
        file = parquet.ParquetFile(path)
        wanted = _of_text(_names(str(path), file.schema_arrow.names), columns)
        blocks = file.iter_batches(ROWS, columns=wanted)
        rows = (row for block in blocks for row in block.to_pylist())
        yield from (Row(number, row) for number, row in enumerate(rows, start=1))
    except unreadable as error:
        raise UserError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None


_TABLES: dict[str, Callable[[Path], Iterable[Row]]] = {
    "tsv": _read_tsv,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
}


# --- data sets and the built-in corpus --------------------------------------------------------------------------------


def _read_dataset(source: Source, columns: tuple[str, str]) -> Iterator[SentencePair]:
    import datasets

    datasets.disable_progress_bars()
    name, split = cast(str, source.dataset), source.split or "train"
    is_saved = any((Path(name) / file).exists() for file in ("dataset_info.json", "dataset_dict.json"))
    if is_saved and source.subset is not None:
        raise UserError(f"{name}: what `save_to_disk` made has no subsets; leave out `subset`")
    try:
        loaded: Any = (
            datasets.load_from_disk(name) if is_saved else datasets.load_dataset(name, source.subset, split=split)
        )
    except Exception as error:  # the hub client has no common base class for what can go wrong on the way
        cause = error.__cause__ or error
        reason, *more = str(cause).splitlines() or [type(cause).__name__]
        if "Config name is missing" in reason:
            raise UserError(f"{name}: is several data sets: set `subset`\n{' '.join(more[:1])}") from None
        if more and "cast" in reason:
            reason = f"{reason} ({more[-1]})"
        hint = "" if Path(name).is_dir() else "for a hub name the network must reach the hub; "
        raise UserError(
            f"{name} ({split}): the data set cannot be loaded: {reason}\n"
            f"{hint}with text files of your own, give them instead:\n"
            "  data.train='{src: train.SRC, tgt: train.TGT}' (likewise data.validation and data.test)"
        ) from None
    rows = _split_of(loaded, split, name) if is_saved else loaded
    if wanted := _of_text(rows.column_names, columns):
        rows = rows.select_columns(wanted)
    for number, row in enumerate(rows, start=1):
        yield SentencePair(*_pick(row, columns, f"{name} ({split}):{number}"), f"{name} ({split})", number)


def _split_of(saved: Any, split: str, name: str) -> Any:
    """One of several, or the only one."""
    import datasets

    splits: dict[Any, Any] = saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or "train"): saved}
    if split not in splits:
        raise UserError(f"{name}: no split {split}; set `split`: it has {', '.join(splits)}")
    return splits[split]


def _read_builtin(split: str, languages: tuple[str, str]) -> Iterator[SentencePair]:
    primary = [*map(primary_language, languages)]
    if sorted(primary) != ["de", "en"]:
        raise UserError("the built-in corpus is English and German: set data.src_lang and data.tgt_lang to en and de")

    if split not in quickstart.SPLITS:
        raise UserError(f"the built-in corpus has no split {split}; choose from: {', '.join(quickstart.SPLITS)}")
    for number, (en, de) in enumerate(quickstart.load_pairs(split), start=1):
        src, tgt = (en, de) if primary == ["en", "de"] else (de, en)
        yield SentencePair(src, tgt, f"quickstart ({split})", number)
