"""Filters that look at one pair at a time, such as length, language or regex."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Collection
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import regex
from pydantic import Field, model_validator

from transformer_mt.config.section import Pattern, section_error
from transformer_mt.data.corpus import number_column
from transformer_mt.data.data_config import primary_language
from transformer_mt.evaluation.metrics import is_repetitive
from transformer_mt.tools.languages.detection import LanguageDetector
from transformer_mt.tools.languages.scripts import language_scripts, measure_script_share, split_units
from transformer_mt.tools.quality.filter_base import (
    SIDE_NAMES,
    Block,
    Filter,
    FilterContext,
    FilterFunction,
    FindReason,
    PairFilter,
)
from transformer_mt.tools.quality.signals import (
    LengthModel,
    copy_share,
    decode_html_entities,
    find_addresses,
    measure_number_agreement,
    normalize_quotes,
    normalize_spaces,
    normalize_unicode,
    remove_control_characters,
    repair_mojibake,
)


class NormalizeFilter(Filter):
    """Change the text of training pairs, without removing any."""

    kind = "normalize"

    removes: ClassVar[bool] = False

    nfc: bool = True
    """compose characters (Unicode NFC)"""
    spaces: bool = True
    """replace each run of white space, also U+2028 and no-break spaces, by one space, and strip the ends"""
    control: bool = True
    """remove control characters, and invisible ones such as zero-width spaces and soft hyphens"""
    quotes: bool = False
    """replace typographic quotation marks by ASCII ones; the model then writes ASCII quotation marks"""
    mojibake: bool = False
    """repair text that was decoded with a wrong encoding"""
    html_entities: bool = False
    """decode HTML entities, such as &quot; and &amp;#39;"""

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Return a function that replaces the text of the block, and returns the pairs that changed."""
        steps = (
            (self.html_entities, decode_html_entities),
            (self.mojibake, repair_mojibake),
            (self.control, remove_control_characters),
            (self.nfc, normalize_unicode),
            (self.quotes, normalize_quotes),
            (self.spaces, normalize_spaces),
        )
        active = [step for is_active, step in steps if is_active]

        def normalize(text: str) -> str:
            for step in active:
                text = step(text)
            return text

        def apply(block: Block) -> dict[int, str]:
            changed: dict[int, str] = {}
            for i, pair in enumerate(block.pairs()):
                src, tgt = map(normalize, pair)
                if (src, tgt) != pair:
                    sides = [name for name, old, new in zip(SIDE_NAMES, pair, (src, tgt), strict=True) if old != new]
                    changed[i] = f"{' and '.join(sides)} changed"
                    block.src[i], block.tgt[i] = src, tgt
            return changed

        return apply


class LengthFilter(PairFilter):
    """Remove pairs with a side that is too short or too long."""

    kind = "length"

    min: int = Field(default=1, ge=0)
    """minimum words of each side; characters where a script has no spaces"""
    max: int = Field(default=200, ge=1)
    """maximum words of each side; characters where a script has no spaces"""

    @model_validator(mode="after")
    def _min_is_below_max(self) -> LengthFilter:
        if self.min > self.max:
            raise section_error("min", f"{self.min} is more than max, {self.max}: no pair would be left")
        return self

    def find_reason(self, src: str, tgt: str) -> str | None:
        """Return which side has how many units."""
        for name, text in zip(SIDE_NAMES, (src, tgt), strict=True):
            n_units = len(split_units(text))
            if not self.min <= n_units <= self.max:
                return f"{name} has {n_units:,} words or characters"
        return None


class RatioFilter(PairFilter):
    """Remove pairs with one side much longer than the other.

    Lengths are in characters, relative to the median of the corpus, so that scripts are comparable.
    """

    kind = "ratio"

    max: float = Field(default=3.0, gt=1.0)
    """how many times longer one side may be than the other, relative to the median lengths of the corpus"""

    def make_find_reason(self, context: FilterContext) -> FindReason:
        """Fit the typical lengths to a sample of the corpus."""
        lengths = LengthModel.fit(context.sample())

        def find_reason(src: str, tgt: str) -> str | None:
            ratio = lengths.ratio(src, tgt)
            return f"ratio {ratio:.1f}" if ratio > self.max else None

        return find_reason


class LanguageFilter(PairFilter):
    """Remove pairs with a side that is clearly in another language. A side in doubt is kept."""

    kind = "language"

    min_letters: int = Field(default=20, ge=1)
    """sides with fewer letters are kept"""
    min_probability: float = Field(default=0.5, gt=0.0, lt=1.0)
    """minimum probability of the other language; it must also be 50 times that of the expected one"""

    def suits(self, languages: Collection[str]) -> bool:
        """Return whether the detector knows all languages."""
        return all(map(LanguageDetector.load().knows, languages))

    def external_state(self) -> object:
        """Return the version of the detector."""
        return importlib.metadata.version("py3langid")

    def make_find_reason(self, context: FilterContext) -> FindReason:
        """Load the detector. Raises `UserError` for a language that it does not know."""
        detector = LanguageDetector.load()
        unknown = [code for code in context.languages if not self.suits([code])]
        if unknown and not context.skip_inapplicable:
            raise self.make_error(f"{unknown[0]}: language detection does not know this language; remove this filter")

        @lru_cache(maxsize=10_000)
        def other_language(text: str, expected: str) -> str | None:
            if sum(map(str.isalpha, text)) < self.min_letters:
                return None
            return detector.find_other_language(text, expected, self.min_probability)

        def find_reason(src: str, tgt: str) -> str | None:
            for name, text, code in zip(SIDE_NAMES, (src, tgt), context.languages, strict=True):
                if code not in unknown and (other := other_language(text, code)):
                    return f"{name} is {other}"
            return None

        return find_reason


class ScriptFilter(PairFilter):
    """Remove pairs with a side whose words are nearly all in another script."""

    kind = "script"

    min: float = Field(default=0.1, gt=0.0, le=1.0)
    """minimum share of words with a letter of the script; names in another script are common"""
    min_words: int = Field(default=4, ge=1)
    """sides with fewer words are kept; in scripts without spaces, characters are counted"""

    def suits(self, languages: Collection[str]) -> bool:
        """Return whether the scripts of all languages are known."""
        return None not in map(language_scripts, languages)

    def make_find_reason(self, context: FilterContext) -> FindReason:
        """Look up the scripts of the languages. Raises `UserError` for a language without an entry."""
        expected = [*map(language_scripts, context.languages)]
        for side, language in zip(("src", "tgt"), context.languages, strict=True):
            if not (self.suits([language]) or context.skip_inapplicable):
                raise self.make_error(
                    f"the script of {language} is not known; use the filter regex, such as "
                    f"regex: {{side: {side}, keep: '\\p{{Latin}}'}}"
                )

        def find_reason(src: str, tgt: str) -> str | None:
            for name, text, scripts in zip(SIDE_NAMES, (src, tgt), expected, strict=True):
                if scripts is None:
                    continue
                share, n_words = measure_script_share(text, scripts)
                if share < self.min and n_words >= self.min_words:
                    return f"only {share:.0%} of the {name}'s words are {' or '.join(map(str.title, scripts))}"
            return None

        return find_reason


class CopyFilter(PairFilter):
    """Remove pairs that were not translated."""

    kind = "copy"

    max: float = Field(default=0.8, ge=0.0, lt=1.0)
    """maximum share of words that both sides have in common"""
    min_words: int = Field(default=4, ge=1)
    """pairs with fewer words are kept: names are the same in many languages"""

    def suits(self, languages: Collection[str]) -> bool:
        """Return whether there are two languages. Within one, as in simplification, many sides are equal."""
        return len({*map(primary_language, languages)}) > 1

    def make_find_reason(self, context: FilterContext) -> FindReason:
        """Return `find_reason`, or in a check of one language a function that finds nothing."""
        is_skipped = context.skip_inapplicable and not self.suits(context.languages)
        return (lambda _src, _tgt: None) if is_skipped else self.find_reason

    def find_reason(self, src: str, tgt: str) -> str | None:
        """Return the share of common words."""
        share, n_words = copy_share(src, tgt)
        return f"{share:.0%} of the words are the same" if share > self.max and n_words >= self.min_words else None


class NumbersFilter(PairFilter):
    """Remove pairs whose numbers differ. Separators and small numbers, which texts often spell, do not count."""

    kind = "numbers"

    min: float = Field(default=0.5, gt=0.0, le=1.0)
    """minimum share of numbers that the other side has too"""

    def find_reason(self, src: str, tgt: str) -> str | None:
        """Return the share of numbers that agree."""
        share = measure_number_agreement(src, tgt)
        return f"only {share:.0%} of the numbers agree" if share is not None and share < self.min else None


class UrlsFilter(PairFilter):
    """Remove pairs with URLs or e-mail addresses on one side only."""

    kind = "urls"

    exact: bool = False
    """remove also pairs whose addresses differ, such as en.example.org and de.example.org"""

    def find_reason(self, src: str, tgt: str) -> str | None:
        """Return the first address that the other side lacks."""
        addresses = find_addresses(src), find_addresses(tgt)
        if addresses[0] == addresses[1] or (all(addresses) and not self.exact):
            return None
        missing = (addresses[0] - addresses[1]) or (addresses[1] - addresses[0])
        return f"only one side has {next(iter(missing))}"


class RepetitionFilter(PairFilter):
    """Remove pairs with a side that repeats a word or phrase, and the other side does not."""

    kind = "repetition"

    max: float = Field(default=0.5, gt=0.0, lt=1.0)
    """maximum share of the most frequent word, or of repeated phrases of three words (characters in a short text)"""

    def find_reason(self, src: str, tgt: str) -> str | None:
        """Return which side repeats itself."""
        for name, text, other in ((SIDE_NAMES[0], src, tgt), (SIDE_NAMES[1], tgt, src)):
            if is_repetitive(text, other, self.max):
                return f"{name} repeats itself"
        return None


class RegexFilter(PairFilter):
    r"""Remove pairs by a regular expression of the package `regex`, which knows classes such as \p{Han}."""

    kind = "regex"

    side: Literal["src", "tgt", "both", "any"] = "any"
    """sides to search: src, tgt, both (both must match) or any (one must match)"""
    drop: Pattern | None = None
    """remove pairs in which this expression is found"""
    keep: Pattern | None = None
    """remove pairs in which this expression is not found"""

    @model_validator(mode="after")
    def _has_one_expression(self) -> RegexFilter:
        if (self.drop is None) == (self.keep is None):
            raise section_error("", "set exactly one of drop and keep")
        return self

    def make_find_reason(self, context: FilterContext) -> FindReason:
        """Compile the expression."""
        pattern = self.drop if self.drop is not None else self.keep
        search = regex.compile(str(pattern)).search
        reason = f"{'matches' if self.drop is not None else 'does not match'} {pattern}"

        def find_reason(src: str, tgt: str) -> str | None:
            found = [search(text) is not None for text in {"src": [src], "tgt": [tgt]}.get(self.side, [src, tgt])]
            is_found = all(found) if self.side == "both" else any(found)
            return reason if is_found == (self.drop is not None) else None

        return find_reason


class ColumnFilter(Filter):
    """Remove pairs by a column of numbers of their table, such as scores that another program has computed."""

    kind = "column"

    name: str = Field(min_length=1)
    """column of the table or data set, with a number in each row; required"""
    min: float | None = None
    """remove pairs with a lower number; null: no lower limit"""
    max: float | None = None
    """remove pairs with a higher number; null: no upper limit"""

    @model_validator(mode="after")
    def _has_a_limit(self) -> ColumnFilter:
        if self.min is None and self.max is None:
            raise section_error("", "set min or max")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise section_error("min", f"{self.min:g} is more than max, {self.max:g}: no pair would be left")
        return self

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Return a function that looks up the numbers of a block in the unfiltered corpus."""
        low = -math.inf if self.min is None else self.min
        high = math.inf if self.max is None else self.max
        column = number_column(self.name)

        def apply(block: Block) -> dict[int, str]:
            numbers = np.array(context.corpus.take(block.rows, [column])[column], np.float64)
            outside = np.flatnonzero((numbers < low) | (numbers > high))
            return {i: f"{self.name} is {numbers[i]:g}" for i in outside.tolist()}

        return apply
