"""A guard against faults that can be seen without a reference: loops, lost numbers, copied sources, and others.

Only a text with a fault is translated again; all other translations are kept. It is searched again, all
hypotheses of a beam of at least 5 are compared, and if the fault remains, the text is divided. A part that is a lost
number, link, emoji or list marker is copied. So is a text in a script that the source language does not have.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import regex

from transformer_mt.data.data_config import primary_language
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.hooks import DecodingChanges, Fault, OnFault, Piece
from transformer_mt.decoding.interface import ModelProvenance
from transformer_mt.decoding.segments import CountTokens, rule_language, split_long_sentences
from transformer_mt.runs.records import TrainingLengths
from transformer_mt.tools.languages.scripts import ADDRESS, language_scripts, measure_script_share

MIN_BEAM = 5  # of the search for another translation
MIN_DIVIDED = 8  # tokens of a text that is halved
LOOP_WORDS, LOOP_CHARACTERS = 3, 6  # of the n-gram that a loop repeats
LOOP_FACTOR = 2  # an n-gram of a loop occurs more often than this, and than this times its maximum in the source
LOOP_LENGTH = 12  # minimum characters of a looping run, which also is longer than LOOP_FACTOR times that of the source
UNSPACED_WORD = 15  # a text whose mean word is longer counts as written without spaces
MIN_SCRIPT_SHARE = 0.5  # of the words
COPIED_SHARE = 0.8  # minimum share of the words of the source that a copy contains
COPIED_WORDS = 4  # minimum number of them that are in lower case
MIN_RATIO, MAX_RATIO = 0.5, 2.0  # of the length of a translation to the usual one
MAX_DEVIATION = 4.0  # of the length from the usual one, in standard deviations
USUAL_RATIO, USUAL_SPREAD = 1.0, 2.0  # of lengths, for runs that did not record them
MIN_SPREAD = 0.5
ORDINAL_STOPS = frozenset(["cs", "da", "de", "et", "fi", "hr", "hu", "is", "lb", "lv", "pl", "sk", "sl", "sr", "tr"])
"""Languages in which a number with a full stop may be an ordinal: "3. Platz"."""

_RUN = regex.compile(r"(\S{1,8}?)\1+")  # a repeated unit, as in "hahaha"
_LONG_RUN = regex.compile(r"(\S{1,8}?)\1{4,}")  # at least five times
_DIGITS = regex.compile(r"\d+")
_NUMBER = regex.compile(r"\d+(?:\W\d+)*")  # with separators inside, as in 1,000.50 or 10 000
_BULLET = regex.compile(r"\s*[•▪●◦‣·*>]+")
_LARGE_NUMERALS = regex.compile("[十百千万萬億亿兆십백천만억조]")
_EMOJI = regex.compile(r"[[\p{Extended_Pictographic}\p{Regional_Indicator}]--[©®™\p{ASCII}]]", regex.VERSION1)
# emoji with the punctuation after them, or ASCII characters, digits and currency symbols without a space
_COPIED_SPAN = regex.compile(
    r"[\p{Extended_Pictographic}\p{Regional_Indicator}\p{Emoji_Modifier}\u200d\ufe0f]+[^\w\s]*\s*|[!-~\p{Sc}\d]+\s*"
)


LOOP, UNKNOWN_SCRIPT = Fault("loop"), Fault("unknown script")
LIST_MARKER = "list marker"


@dataclass
class FaultReport:
    """Counts the lines with faults."""

    on_fault: OnFault | None = None
    n_repaired: int = 0  # lines that have no fault any more
    remaining: Counter[str] = field(default_factory=Counter[str])  # other lines, by the kind of their first fault

    def add(self, line_number: int, before: Sequence[Fault], after: Sequence[Fault]) -> None:
        """Count a line. A copied text in an unknown script is not repaired."""
        after = after or [fault for fault in before if fault == UNKNOWN_SCRIPT]
        self.n_repaired += not after
        self.remaining.update(fault.kind for fault in after[:1])
        if self.on_fault is not None:
            self.on_fault(line_number, before, after)

    def describe(self) -> str:
        """Return a sentence about the lines with faults; empty if there were none."""
        n_remaining = self.remaining.total()
        if not self.n_repaired and not n_remaining:
            return ""
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in self.remaining.most_common())
        rest = f", {n_remaining:,} not ({kinds})" if n_remaining else ""
        return f"lines with a visible fault in the translation: {self.n_repaired:,} repaired{rest}"


@dataclass(frozen=True)
class Guard:
    """The policy that reviews the translations of one model."""

    lengths: TrainingLengths | None
    has_two_languages: bool  # False: a copy of the source is no fault
    src_langs: tuple[str, ...]  # languages that the source may have

    @classmethod
    def make(cls, provenance: ModelProvenance, config: DecodingConfig) -> Guard | None:
        """Return the guard of a model, or None if it is switched off. Samples are random on purpose."""
        if not config.guard or config.sample:
            return None
        languages = {primary_language(code) for code in (provenance.src_lang, provenance.tgt_lang)}
        src_langs = (provenance.src_lang, *provenance.src_langs)
        return cls(provenance.lengths, len(languages) == 2, src_langs)

    @cached_property
    def scripts(self) -> tuple[str, ...] | None:
        """The scripts of the source languages, and Latin; None: unknown."""
        found = [language_scripts(code) for code in self.src_langs]
        return None if None in found else ("LATIN", *chain.from_iterable(filter(None, found)))

    def may_replace(self, faults: Sequence[Fault], old_faults: Sequence[Fault]) -> bool:
        """Return whether a translation has fewer faults than another, and no loop."""
        return len(faults) < len(old_faults) and LOOP not in faults

    @cached_property
    def _list_marker(self) -> regex.Pattern[str]:
        """The bullet or number with which an item of a list starts."""
        end = "[)]" if ORDINAL_STOPS.intersection(map(rule_language, self.src_langs)) else "[.)]"
        return regex.compile(rf"{_BULLET.pattern}\s+|\s*(?P<digit>\d){end}\s+")

    # --- repair -------------------------------------------------------------------------------------------------------

    def change_options(self, faults: Sequence[Fault], config: DecodingConfig) -> DecodingChanges | None:
        """Request all hypotheses of a beam of at least `MIN_BEAM`. Text in an unknown script is not searched again."""
        n_beams = max(MIN_BEAM, config.beam)
        return None if UNKNOWN_SCRIPT in faults else {"beam": n_beams, "n_best": n_beams}

    def divide(self, source: str, faults: Sequence[Fault], count_tokens: CountTokens) -> list[Piece]:
        """Return the lost items and the text between them, or the halves; none if it is short."""
        if UNKNOWN_SCRIPT in faults:
            return [Piece(source, is_copied=True)]
        marker = next((fault.item for fault in faults if fault.kind == LIST_MARKER), "")
        items = [fault.item for fault in faults if fault.item and fault.kind != LIST_MARKER]
        if marker or items:
            rest = _isolate(source[len(marker) :], items)
            pieces = [Piece(text, any(item in text for item in items)) for text in rest]
            return [Piece(marker, is_copied=True), *pieces] if marker else pieces
        (n_tokens,) = count_tokens([source])
        if n_tokens < MIN_DIVIDED:
            return []
        return [*map(Piece, split_long_sentences([source], count_tokens, -(-n_tokens // 2)))]

    # --- faults -------------------------------------------------------------------------------------------------------

    def find_faults(self, source: str, translation: str) -> list[Fault]:
        """Return the faults of a translation of a source that has letters.

        A text in a script that the source language does not have must be a copy, because its translation is junk.
        """
        if not source.isascii() and self.scripts and measure_script_share(source, self.scripts)[0] < MIN_SCRIPT_SHARE:
            return [] if translation.split() == source.split() else [UNKNOWN_SCRIPT]
        faults = [] if any(map(str.isalnum, translation)) else [Fault("empty")]
        src_words, words = source.split(), translation.split()
        if has_loop(source, translation):
            faults.append(LOOP)
        if self.has_two_languages and _is_copy(src_words, words):
            faults.append(Fault("copy"))
        if kind := self._judge_length(len(source), len(translation)):
            faults.append(Fault(kind))
        faults += [Fault("number", item) for item in _find_lost_numbers(source, translation)]
        if (marker := self._list_marker.match(source)) and not _has_marker(translation, marker["digit"]):
            faults.append(Fault(LIST_MARKER, marker[0]))
        if "@" in source or "://" in source or "www." in source:
            faults += [
                Fault("link", item) for item in dict.fromkeys(ADDRESS.findall(source)) if item not in translation
            ]
        if not source.isascii():
            faults += [
                Fault("emoji", item) for item in dict.fromkeys(_EMOJI.findall(source)) if item not in translation
            ]
        return faults

    def _judge_length(self, n_source: int, n_target: int) -> str:
        """Return `long` or `short` for a translation of another length than those of the training; else an empty text.

        The deviation from the usual length grows with the square root of the length (Gale & Church 1993).
        """
        ratio, spread = (self.lengths.ratio, self.lengths.spread) if self.lengths else (USUAL_RATIO, USUAL_SPREAD)
        usual = ratio * n_source
        limit = MAX_DEVIATION * max(MIN_SPREAD, spread) * math.sqrt(n_source)
        if n_target < MIN_RATIO * usual and usual - n_target > limit:
            return "short"
        return "long" if n_target > MAX_RATIO * usual and n_target - usual > limit else ""


def has_loop(source: str, translation: str) -> bool:
    """Return whether a translation repeats words or letters far more often than its source."""
    src_words, words = source.split(), translation.split()
    n_repeated, run = _count_repeated(translation, words), _measure_run(_LONG_RUN, translation)
    return (n_repeated > LOOP_FACTOR and n_repeated > LOOP_FACTOR * _count_repeated(source, src_words)) or (
        run >= LOOP_LENGTH and run > LOOP_FACTOR * _measure_run(_RUN, "".join(src_words))
    )


def _count_repeated(text: str, words: Sequence[str]) -> int:
    """Return how often the most frequent n-gram of words occurs, or of letters in a text without spaces."""
    units, n = words, LOOP_WORDS
    if len(text) > UNSPACED_WORD * len(words):
        units, n = [*filter(str.isalpha, text)], LOOP_CHARACTERS
    if len(units) - len(set(units)) < LOOP_FACTOR:
        return 1
    return max(Counter(zip(*(units[k:] for k in range(n)), strict=False)).values(), default=1)


def _measure_run(pattern: regex.Pattern[str], text: str) -> int:
    """Return the length of the longest run, in characters, whose repeated unit has a letter."""
    return max((len(run[0]) for run in pattern.finditer(text.lower()) if any(map(str.isalpha, run[1]))), default=0)


def _is_copy(src_words: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether a text is a copy of its source. Names, codes and single words are not."""
    src_set = set(src_words)
    shared = src_set.intersection(words)
    if len(shared) < COPIED_SHARE * len(src_set):
        return False
    is_same = src_words == words
    n_lower = sum(word.islower() and len(word) > 1 and word.isalpha() for word in shared)
    if n_lower + is_same >= COPIED_WORDS:
        return True
    joined = "".join(src_words)  # without lower case: a text in capitals, or in a script without case
    n_letters = sum(map(str.isalpha, joined)) if joined == joined.upper() else 0
    return is_same and n_letters > LOOP_CHARACTERS and (len(src_words) >= COPIED_WORDS or joined == joined.lower())


def _find_lost_numbers(source: str, text: str) -> list[str]:
    """Return the digits of the source that the translation lacks.

    Separators inside a number may differ, so its digits are compared without them. A single digit may have become a
    word, unless the translation has digits that the source lacks. Numerals of East Asian languages may replace any.
    """
    src_numbers, numbers = _NUMBER.findall(source), _NUMBER.findall(text)
    if not src_numbers or _LARGE_NUMERALS.search(text):
        return []
    joined, src_joined = (
        [_to_ascii("".join(_DIGITS.findall(each))) for each in found] for found in (numbers, src_numbers)
    )
    items = dict.fromkeys(item for number in src_numbers for item in _DIGITS.findall(number))
    lost = [item for item in items if not any(_to_ascii(item) in each for each in joined)]
    if all(
        any(_to_ascii(item) in each for each in src_joined) for number in numbers for item in _DIGITS.findall(number)
    ):
        lost = [item for item in lost if len(item) > 1]
    return lost


def _has_marker(text: str, digit: str | None) -> bool:
    """Return whether a text has `digit`, in any script, or starts with any bullet if it is None."""
    if digit is None:
        return _BULLET.match(text) is not None
    return _to_ascii(digit) in _to_ascii("".join(_DIGITS.findall(text)))


def _to_ascii(digits: str) -> str:
    return digits if digits.isascii() else "".join(str(unicodedata.decimal(digit)) for digit in digits)


def _isolate(text: str, items: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a text in order: each span that contains one of the items, and the text between them."""
    end = 0
    for match in _COPIED_SPAN.finditer(text):
        if any(item in match[0] for item in items):
            if match.start() > end:
                yield text[end : match.start()]
            yield match[0]
            end = match.end()
    if end < len(text):
        yield text[end:]
