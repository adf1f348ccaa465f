"""Configuration of the sentence pairs: languages, sources, and how they are mixed.

The keys `filters` and `modifiers` are defined by tools and added in `flows/configuration.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from transformer_mt.config.section import MAY_CHANGE, FolderName, PathName, Section, check_folder_name, section_error
from transformer_mt.config.yaml_files import KeyPath
from transformer_mt.errors import UserError

# --- language codes ---------------------------------------------------------------------------------------------------

COUNTRY_CODES = {
    "jp": "ja",
    "cn": "zh",
    "kr": "ko (kau is Kanuri)",
    "cz": "cs",
    "dk": "da",
    "gr": "el",
    "ua": "uk",
    "vn": "vi",
    "us": "en",
    "gb": "en",
}
"""Country codes that are often mistaken for language codes, and the code to use instead."""
WRITTEN_AS = {"yue": "zh", "lzh": "zh", "wuu": "zh"}
"""Languages whose written form is hardly distinguishable from another one."""


def check_language(code: str) -> str:
    """Return `code`. Raises `ValueError` if it cannot be an ISO 639 code; BLEU would use the wrong tokenizer."""
    primary = normalize_language(code).partition("-")[0]
    if primary in COUNTRY_CODES:
        raise ValueError(f'"{code}" is a country code; for its language write {COUNTRY_CODES[primary]}')
    if len(primary) not in (2, 3) or not primary.isalpha():
        raise ValueError(f'"{code}" is not a language code; write one such as en, de or zh-Hant')
    return code


@lru_cache(maxsize=1000)
def primary_language(code: str) -> str:
    """Return the two-letter code if there is one: zh for zh-Hant-HK, ZH, zh_TW, zho and cmn_Hans."""
    primary = normalize_language(code).partition("-")[0]
    if len(primary) == 3 and primary.isascii() and primary.isalpha():
        primary = _shorten(primary)
    return WRITTEN_AS.get(primary, primary)


def format_language_tag(code: str) -> str:
    """Return a language code in the spelling of HTML and XML (BCP 47): pt-BR for pt_BR."""
    return code.replace("_", "-")


def normalize_language(code: str) -> str:
    """Return a code without the differences that have no meaning: en-us for en_US."""
    return format_language_tag(code).lower()


def _shorten(code: str) -> str:
    """Return the two-letter code of a three-letter code, or of the macrolanguage that it belongs to."""
    import langcodes  # takes longer to import than most commands need

    return langcodes.standardize_tag(code, macro=True).partition("-")[0]


class Direction(NamedTuple):
    """A direction in which a model translates, and the tag that selects it."""

    src_lang: str
    tgt_lang: str
    tag: str | None = None

    def __str__(self) -> str:
        codes = f"{self.src_lang}-{self.tgt_lang}"
        return codes if self.tag is None else f"{codes} ({self.tag})"


# --- sources ----------------------------------------------------------------------------------------------------------


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value or ()


_AS_LIST = BeforeValidator(_as_list)
_LIST_SCHEMA = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
Files = Annotated[tuple[PathName, ...], _AS_LIST, _LIST_SCHEMA]
Names = Annotated[tuple[str, ...], _AS_LIST, _LIST_SCHEMA]
LongPairs = Literal["drop", "truncate"]
"""What happens to training pairs that are longer than `max_length`."""

Language = Annotated[str, AfterValidator(check_language)]

_SYMBOL = r"\w[\w.+-]*"
_TAG = re.compile(rf"{_SYMBOL}(:{_SYMBOL})?|:{_SYMBOL}")


def _check_tag(value: str) -> str:
    if not _TAG.fullmatch(value):
        raise ValueError(
            f'"{value}" is not a tag: use letters, digits and . + - _, such as 2de, or en:de for both sides'
        )
    return value


TagName = Annotated[str, AfterValidator(_check_tag), WithJsonSchema({"type": "string", "pattern": f"^{_TAG.pattern}$"})]


def split_tag(tag: str) -> tuple[str, str]:
    """Return the symbols before the source and before the target: of `en:de` both, of `2de` only the first."""
    source, _, target = tag.partition(":")
    return source, target


def is_known_tag(tag: str, tags: Sequence[str]) -> bool:
    """Return whether each symbol of a tag is one of some tags on the same side, in whatever combination."""
    return all(symbol in {split_tag(each)[side] for each in tags} for side, symbol in enumerate(split_tag(tag)))


def tag_error(tag: str | None, tags: Sequence[str]) -> UserError:
    """Return the error for a tag that is not among those of a model, or for None: a tag that it needs is missing."""
    known = ", ".join(tags)
    if tag is None:
        return UserError(f"the model needs a tag for each source: pass --tag (decoding.tag), one of {known}")
    return UserError(f"unknown tag {tag}; the model " + (f"knows: {known}" if tags else "has no tags: leave out --tag"))


KINDS_WITH_KEY = {  # the kinds of source that allow an optional key
    "subset": ("dataset",),
    "revision": ("dataset",),
    "split": ("dataset", "builtin"),
    "src_column": ("dataset", "table"),
    "tgt_column": ("dataset", "table"),
    "columns": ("table",),
}


class Source(Section):
    """A source of sentence pairs: exactly one of `builtin`, `src` with `tgt`, `table`, `dataset` and `pretrained`."""

    builtin: Literal["quickstart"] | None = None
    """corpus that ships with the program: quickstart"""
    src: Files = ()
    """text file with one source sentence per line, plain or compressed (.gz, .bz2, .xz, .zst); or a list of files"""
    tgt: Files = ()
    """text file with the translations, line by line; or a list of files"""
    table: Files = ()
    """file with both languages: .tsv, .csv, .jsonl, .tmx (each also compressed), .parquet, Moses .zip; or a list"""
    dataset: PathName | None = None
    """data set on the Hugging Face hub, or a local folder for `load_dataset` or from `save_to_disk`"""
    pretrained: str | None = None
    """description of a model that `tmt import` read: its training pairs are not available"""
    subset: str | None = None
    """configuration of a data set, such as en-de"""
    revision: str | None = None
    """commit, tag or branch of a data set on the hub; null: the newest commit when the text is first read"""
    split: str | None = None
    """split of a data set or the built-in corpus: train (the default for data.train), validation, test, ..."""
    src_column: str | None = None
    """column of the source sentences; of a .tmx: a language; of a .zip: a file suffix (default: data.src_lang)"""
    tgt_column: str | None = None
    """column of the translations (default: data.tgt_lang)"""
    columns: Names = ()
    """columns of a .tsv or .csv without a header, in order, such as [src, tgt] or [en, _, de]; _ is not read"""
    src_lang: Language | None = None
    """language of the source sentences (default: data.src_lang)"""
    tgt_lang: Language | None = None
    """language of the target sentences (default: data.tgt_lang)"""
    tag: TagName | None = None
    """symbol before each source sentence, such as 2de; or before source and target, such as en:de, or :de for one"""

    def languages(self, src_lang: str, tgt_lang: str) -> tuple[str, str]:
        """Return the languages of both sides. The arguments are those of the configuration."""
        return self.src_lang or src_lang, self.tgt_lang or tgt_lang

    def find_columns(self, src_lang: str, tgt_lang: str) -> tuple[str, str]:
        """Return the columns of both sides. The arguments are the languages of the configuration."""
        src, tgt = self.languages(src_lang, tgt_lang)
        if {"src", "tgt"} <= {*self.columns}:
            src, tgt = "src", "tgt"
        return self.src_column or src, self.tgt_column or tgt

    @property
    def files(self) -> Sequence[str]:
        """Return all text files and tables."""
        return (*self.src, *self.tgt, *self.table)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Source:
        found = [key for key in ("builtin", "src", "tgt", "table", "dataset", "pretrained") if getattr(self, key)]
        if found not in (["builtin"], ["src", "tgt"], ["table"], ["dataset"], ["pretrained"]):
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
            if getattr(self, key) not in (None, ()) and found[0] not in kinds:
                raise section_error(
                    key, f"belongs to {' or '.join(kinds)}, not to {found[0]}: remove it (null removes a key)"
                )
        for number, name in enumerate(self.columns):
            if name != "_" and name in self.columns[:number]:
                raise section_error("columns", f'two columns are named "{name}": rename one, or write _ to skip it')
        return self


class NamedSource(Source):
    """One of several sources of sentence pairs."""

    name: FolderName
    """name of the source, for messages, losses and scores"""


class TrainSource(NamedSource):
    """One of several sources of training pairs."""

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """share of the batches, relative to the other sources; give each source a weight, or none"""


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


# --- mixture ----------------------------------------------------------------------------------------------------------


def _find_source_problems(sources: Sequence[TrainSource], temperature: float) -> Iterator[tuple[str, str]]:
    names = [source.name for source in sources]
    weights = [source.weight for source in sources]
    for number, source in enumerate(sources):
        if source.name in names[:number]:
            yield f"train.{number}.name", f"{source.name} is the name of an earlier source: choose another one"
        if source.weight is None and any(weight is not None for weight in weights):
            yield f"train.{number}", "has no weight, but other sources have: give each source a weight, or none"
    if weights and all(weight == 0 for weight in weights):
        yield "train", "all weights are 0: raise one"
    if temperature != 1 and (not sources or weights[0] is not None):
        yield "temperature", "has an effect only on several sources without weights: remove it, or the weights"


class DataConfig(Section):
    """The sentence pairs."""

    src_lang: Language
    """source language, an ISO 639 code such as en; required"""
    tgt_lang: Language
    """target language, an ISO 639 code; it also selects the tokenizer of BLEU; required"""
    train: TrainSources
    """training pairs: exactly one of builtin, src with tgt, table, dataset; or a list of named sources; required"""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """sources without weights: 1 draws them in proportion to their size, and a larger value more evenly"""
    validation: HeldOutSources | None = None
    """validation pairs, in the same form as train; null: split off training pairs"""
    validation_size: int = Field(default=1000, ge=1)
    """number of training pairs to split off if validation is null (at most a tenth)"""
    test: dict[str, Source] = Field(default={})
    """test sets by name, with the same keys as train; scored at the end with the best checkpoint"""
    cache_dir: Annotated[PathName, MAY_CHANGE] = "runs/.cache"
    """folder of the memory-mapped tables; it may be deleted while no training runs"""
    max_bad_rows: Annotated[int, MAY_CHANGE] = Field(default=0, ge=0)
    """rows of a training source that may be unreadable; they are listed and left out (0: the first one is an error)"""
    max_length: int = Field(default=256, ge=2)
    """maximum tokens of either side of a training pair, end symbol included"""
    too_long: LongPairs = "drop"
    """how to treat a longer training pair: drop or truncate"""

    @model_validator(mode="after")
    def _check_test_names(self) -> DataConfig:
        for name in self.test:
            try:
                check_folder_name(name)
            except ValueError as error:
                raise section_error("test", str(error)) from None
        if reserved := {"train", "validation"} & self.test.keys():
            raise section_error("test", f"{min(reserved)} is a reserved name: rename this test set")
        return self

    @model_validator(mode="after")
    def _held_out_sources_name_a_split(self) -> DataConfig:
        for keys, source in self.iterate_held_out_sources():
            if (source.builtin or source.dataset) and source.split is None:
                key = ".".join(map(str, (*keys, "split")))
                raise section_error(key, "the default, train, is for training: set another split")
        return self

    @model_validator(mode="after")
    def _check_mixture(self) -> DataConfig:
        train = self.train if isinstance(self.train, tuple) else ()
        for key in ("train", "validation"):
            if getattr(self, key) == ():
                raise section_error(key, "names no source: add one")
        if len({":" in (source.tag or "") for source in self.train_sources}) > 1:
            raise section_error(
                "train", "some tags have a symbol before the target (en:de), others not: choose one form"
            )
        names = [source.name for source in self.validation] if isinstance(self.validation, tuple) else []
        for number, name in enumerate(names):
            if name in names[:number]:
                raise section_error(f"validation.{number}.name", f"{name} is the name of an earlier source: rename one")
            if name == "all":
                raise section_error(f"validation.{number}.name", "all means all sources together: rename this one")
        for key, message in _find_source_problems(train, self.temperature):
            raise section_error(key, message)
        return self

    @property
    def train_sources(self) -> tuple[Source, ...]:
        """Return the training sources as a tuple."""
        return self.train if isinstance(self.train, tuple) else (self.train,)

    @property
    def validation_sources(self) -> tuple[Source, ...]:
        """Return the sources of validation pairs; without `validation`, those of the training pairs."""
        if self.validation is None:
            return self.train_sources
        return self.validation if isinstance(self.validation, tuple) else (self.validation,)

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the tags of the training sources, each once."""
        return tuple(dict.fromkeys(source.tag for source in self.train_sources if source.tag is not None))

    @property
    def needs_tag(self) -> bool:
        """Return whether every training source has a tag, so that every source sentence must have one."""
        return all(source.tag is not None for source in self.train_sources)

    def languages_of(self, tag: str | None) -> tuple[str, str]:
        """Return the languages of the first training source with this tag, or of the first one if `tag` is None.

        The languages of a combination that no source has are those of its symbols. Raises `UserError` if no source has
        the tag, or a tag is needed.
        """
        if self.needs_tag if tag is None else not is_known_tag(tag, self.tags):
            raise tag_error(tag, self.tags)
        src, tgt = (self._sources_with(tag, side)[0].languages(self.src_lang, self.tgt_lang)[side] for side in (0, 1))
        return src, tgt

    def source_languages_of(self, tag: str | None) -> tuple[str, ...]:
        """Return the source languages of all training sources with this tag, or of all if no source has it."""
        sources = self._sources_with(tag, 0)
        return tuple(dict.fromkeys(source.languages(self.src_lang, self.tgt_lang)[0] for source in sources))

    def _sources_with(self, tag: str | None, side: int) -> Sequence[Source]:
        """Return the training sources with a tag, or else with its symbol on one side, or else all."""
        sources = self.train_sources
        symbol = split_tag(tag or "")[side]
        return (
            [source for source in sources if source.tag == tag]
            or [source for source in sources if symbol and split_tag(source.tag or "")[side] == symbol]
            or sources
        )

    def iterate_sources(self) -> Iterator[tuple[KeyPath, Source]]:
        """Yield the sources of all training pairs and held-out sets, each with its keys in the section."""
        yield from _with_key_paths("train", self.train)
        yield from self.iterate_held_out_sources()

    def iterate_held_out_sources(self) -> Iterator[tuple[KeyPath, Source]]:
        """Yield the sources of validation and test sets, each with its keys in the section."""
        if self.validation is not None:
            yield from _with_key_paths("validation", self.validation)
        yield from ((("test", name), source) for name, source in self.test.items())


def _with_key_paths(key: str, sources: Source | Sequence[Source]) -> Iterator[tuple[KeyPath, Source]]:
    """Yield each source with its key path: (key,), or (key, index) in a list."""
    if isinstance(sources, Source):
        yield (key,), sources
    else:
        yield from (((key, number), source) for number, source in enumerate(sources))
