"""Sources of sentence pairs. Each kind has a reader that yields pairs with their file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from transformer_mt.config.section import FolderName, PathName, Section, section_error
from transformer_mt.data import quickstart
from transformer_mt.data.languages import check_language, primary_language
from transformer_mt.data.tables import get_pair, read_table, select_text_columns
from transformer_mt.data.text_files import SentencePair, read_pairs
from transformer_mt.errors import UserError


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

    def languages(self, src_lang: str, tgt_lang: str) -> tuple[str, str]:
        """Return the languages of both sides. The arguments are those of the configuration."""
        default = (tgt_lang, src_lang) if self.reverse else (src_lang, tgt_lang)
        return self.src_lang or default[0], self.tgt_lang or default[1]

    @property
    def files(self) -> Sequence[str]:
        """Return all text files and tables."""
        return (*self.src, *self.tgt, *self.table)

    def text_files(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the text files of the sources and of the translations, after `reverse`."""
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
    for number, (en, de) in enumerate(quickstart.load_pairs(split), start=1):
        src, tgt = (en, de) if primary == ["en", "de"] else (de, en)
        yield SentencePair(src, tgt, f"quickstart ({split})", number)
