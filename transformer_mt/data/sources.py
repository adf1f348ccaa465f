"""Sources of sentence pairs. Each kind has a reader that yields pairs with their file and line."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    model_validator,
)

from transformer_mt.config.section import FolderName, PathName, Section, section_error
from transformer_mt.data.languages import check_language, primary_language
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


SPLITS = ("train", "validation", "test", "combinations")
FILE = Path(__file__).with_name("quickstart.tsv.gz")


def load_pairs(split: str) -> list[tuple[str, str]]:
    """Return the (English, German) sentence pairs of one of SPLITS. Raises `UserError` for any other name."""
    if split not in SPLITS:
        raise UserError(f"the built-in corpus has no split {split}; choose from: {', '.join(SPLITS)}")
    with gzip.open(FILE, "rt", encoding="utf-8", newline="\n") as lines:
        rows = (line.rstrip("\n").split("\t") for line in lines if line.startswith(f"{split}\t"))
        return [(en, de) for _, en, de in rows]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value or ()


Files = Annotated[
    tuple[PathName, ...],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]

Language = Annotated[str, AfterValidator(check_language)]

_TAG = re.compile(r"\w[\w.+-]*")


def _check_tag(value: str) -> str:
    if not _TAG.fullmatch(value):
        raise ValueError(f'"{value}" is not a tag: use letters, digits and . + - _, such as 2de')
    return value


TagName = Annotated[str, AfterValidator(_check_tag), WithJsonSchema({"type": "string", "pattern": f"^{_TAG.pattern}$"})]

KINDS_WITH_KEY = {  # the kinds of source that allow an optional key
    "subset": ("dataset",),
    "split": ("dataset", "builtin"),
    "src_column": ("dataset", "table"),
    "tgt_column": ("dataset", "table"),
}


class Source(Section):
    """A source of sentence pairs: exactly one of `builtin`, `src` with `tgt`, `table` and `dataset`."""

    builtin: Literal["quickstart"] | None = None
    """corpus that ships with the program: quickstart"""
    src: Files = ()
    """text file with one source sentence per line, plain or .gz; or a list of files"""
    tgt: Files = ()
    """text file with the translations, line by line; or a list of files"""
    table: Files = ()
    """.tsv, .csv, .jsonl (each also .gz) or .parquet file with a column for each language; or a list"""
    dataset: PathName | None = None
    """data set on the Hugging Face hub, or a local folder for `load_dataset` or from `save_to_disk`"""
    subset: str | None = None
    """configuration of a data set, such as en-de"""
    split: str | None = None
    """split of a data set or the built-in corpus: train (the default for data.train), validation, test, ..."""
    src_column: str | None = None
    """column of the source sentences (default: data.src_lang)"""
    tgt_column: str | None = None
    """column of the translations (default: data.tgt_lang)"""
    reverse: bool = False
    """exchange both sides: the pairs train, or test, the other direction"""
    src_lang: Language | None = None
    """language of the sources, after reverse (default: data.src_lang, with reverse data.tgt_lang)"""
    tgt_lang: Language | None = None
    """language of the translations, after reverse (default: data.tgt_lang, with reverse data.src_lang)"""
    tag: TagName | None = None
    """symbol before each source sentence, such as 2de, which no text can spell; it selects what the model does"""

    _refusal: str | None = PrivateAttr(default=None)

    def refuse(self, reason: str) -> None:
        """Make this source unreadable: `check_may_be_read` raises an error with the reason."""
        self._refusal = reason

    def check_may_be_read(self) -> None:
        """Raise `UserError` if the source is refused, because it belongs to the run of somebody else."""
        if self._refusal is not None:
            raise UserError(self._refusal)

    def languages(self, src_lang: str, tgt_lang: str) -> tuple[str, str]:
        """Return the languages of both sides. The arguments are those of the configuration."""
        default = (tgt_lang, src_lang) if self.reverse else (src_lang, tgt_lang)
        return self.src_lang or default[0], self.tgt_lang or default[1]

    @property
    def files(self) -> Sequence[str]:
        """Return all text files and tables."""
        return (*self.src, *self.tgt, *self.table)

    def text_files(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the text files of the sources and of the translations, after `reverse`.

        Raises:
            UserError: The source is refused.
        """
        self.check_may_be_read()
        return (self.tgt, self.src) if self.reverse else (self.src, self.tgt)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Source:
        found = [key for key in ("builtin", "src", "tgt", "table", "dataset") if getattr(self, key)]
        if found not in (["builtin"], ["src", "tgt"], ["table"], ["dataset"]):
            raise section_error(
                found[-1] if found else "",
                "a source is exactly one of builtin, src with tgt, table, dataset; "
                f"found {' and '.join(found) or 'none'}" + (" (null removes a key)" if len(found) > 1 else ""),
            )
        if len(self.src) != len(self.tgt):
            raise section_error(
                "tgt", f"src and tgt must name equally many files, and name {len(self.src)} and {len(self.tgt)}"
            )
        for key, kinds in KINDS_WITH_KEY.items():
            if getattr(self, key) is not None and found[0] not in kinds:
                raise section_error(
                    key, f"belongs to {' or '.join(kinds)}, not to {found[0]}: remove it (null removes a key)"
                )
        return self


class NamedSource(Source):
    """One of several sources of sentence pairs."""

    name: FolderName
    """name of the source, for messages, losses and scores"""


class TrainSource(NamedSource):
    """One of several sources of training pairs."""

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """share of the batches, relative to the other sources; give each source a weight, or none"""
    repeat: float = Field(default=1, gt=0, allow_inf_nan=False)
    """without weights: how many times the pairs count"""


def _form(value: object) -> str:
    return "several" if isinstance(value, list | tuple) else "one"


if TYPE_CHECKING:
    TrainSources = Source | tuple[TrainSource, ...]
    HeldOutSources = Source | tuple[NamedSource, ...]
else:
    _One = Annotated[Source, Tag("one")]
    TrainSources = Annotated[_One | Annotated[tuple[TrainSource, ...], Tag("several")], Discriminator(_form)]
    HeldOutSources = Annotated[_One | Annotated[tuple[NamedSource, ...], Tag("several")], Discriminator(_form)]
    """A source, or a list of named sources."""


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
    """Return the error for an exception of `datasets`, with its cause and a remedy."""
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
