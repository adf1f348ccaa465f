"""Data types of the translator: segments of text, and their translations.

A line of input becomes a `Segment`: `PlainText`, or text with protected elements. A line that is long for the model is
divided into parts, which are segments too, and the translations of the parts are joined.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from transformer_mt.data.languages import primary_language
from transformer_mt.decoding.interface import WordAlignment

BREAK = re.compile("[\t\v\f\r\x1c-\x1f\x85\u2028\u2029]")  # tabs and line breaks: between sentences or cells
_PLAIN_SPACES = str.maketrans("\u3000\r", "  ")  # many readers end a line at a carriage return
_FIRST_UNSPACED = "\u0900"  # sentences in scripts before this one have spaces between them


class Segment(ABC):
    """A line, or a part of one, or the translation of either."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Text without protected elements, for sentence splitting and fault detection.

        The pieces for `divide`, joined, equal it.
        """

    @property
    @abstractmethod
    def surface(self) -> str:
        """Text including its protected elements."""

    @abstractmethod
    def strip(self) -> Self:
        """Return this segment without the white space around it."""

    @abstractmethod
    def pad(self, before: str, after: str) -> Self:
        """Return this segment with other text around it."""

    @abstractmethod
    def divide(self, pieces: Sequence[str]) -> Sequence[Segment]:
        """Divide into parts at the ends of pieces, whose concatenation is `text`."""

    @abstractmethod
    def join(self, translations: Sequence[tuple[str, Segment]]) -> Segment:
        """Return the translation of this segment from those of its parts, each with the white space before it."""

    @abstractmethod
    def adopt(self, given: Segment) -> Segment | None:
        """Return a given translation with the elements of this segment; None if its elements differ."""

    def strip_enclosing(self) -> Segment:
        """Return the part that is translated, without what encloses all of it."""
        return self

    def sections(self) -> Sequence[str]:
        """Return pieces of `text` whose ends are always ends of sentences."""
        return [self.text]


@dataclass(frozen=True)
class PlainText(Segment):
    """Text without protected elements."""

    characters: str

    @property
    def text(self) -> str:
        """The text."""
        return self.characters

    @property
    def surface(self) -> str:
        """The text."""
        return self.characters

    def strip(self) -> PlainText:
        """Return the text without the white space around it."""
        return PlainText(self.characters.strip())

    def pad(self, before: str, after: str) -> PlainText:
        """Return the text with other text around it."""
        return PlainText(f"{before}{self.characters}{after}")

    def divide(self, pieces: Sequence[str]) -> list[PlainText]:
        """Return the pieces."""
        return [*map(PlainText, pieces)]

    def join(self, translations: Sequence[tuple[str, Segment]]) -> PlainText:
        """Return the joined translations of the parts."""
        return PlainText("".join(space + part.surface for space, part in translations))

    def adopt(self, given: Segment) -> PlainText:
        """Return a given translation, which always fits."""
        return PlainText(given.surface)


@dataclass(frozen=True)
class TranslatedPart:
    """A part of a line with its translation."""

    source: str
    target: str  # with the white space before it
    translation: Translation


@dataclass(frozen=True)
class Translation:
    """One translation of a text."""

    content: Segment
    score: float  # natural logarithm of its probability
    tokens: list[str]
    token_scores: list[float]  # of each token, and of EOS if it was found
    finished: bool  # False: cut at the maximum length
    alignment: WordAlignment | None = None  # None unless it was requested
    parts: tuple[TranslatedPart, ...] = ()  # of a line that was divided
    from_memory: bool = False  # taken from a translation memory, without a score

    @cached_property
    def text(self) -> str:
        """The translation as text."""
        return self.content.surface

    @property
    def score_per_token(self) -> float:
        """Mean score of the tokens, EOS included; 0 for the empty translation of a blank line."""
        return self.score / max(1, len(self.token_scores))


def make_given(source: Segment, given: Segment, *, from_memory: bool = False) -> Translation | None:
    """Return a given text as the translation of a segment, without a score; None if it does not fit."""
    content = source.adopt(given)
    return None if content is None else Translation(content, 0.0, [], [], finished=True, from_memory=from_memory)


def join_n_best(
    source: Segment, parts: Sequence[Segment], n_best_lists: Sequence[Sequence[Translation]], language: str
) -> list[Translation]:
    """Return the n-best list of a line from those of its parts, in a target language.

    The k-th translation joins the k-th best of each part, or its last if it has fewer. Tabs at the start and end of the
    line are kept, like those inside it.
    """
    if len(parts) == 1 and parts[0] is source:
        joined = [*n_best_lists[0]]
    else:
        ranks = range(max(map(len, n_best_lists)))
        rows = ([n_best[min(rank, len(n_best) - 1)] for n_best in n_best_lists] for rank in ranks)
        joined = [join_translations(source, parts, row, language) for row in rows]
    surface = source.surface
    n_start = surface[: len(surface) - len(surface.lstrip())].count("\t")
    n_end = surface[len(surface.rstrip()) :].count("\t") if surface.strip() else 0
    if not n_start + n_end:
        return joined
    return [replace(each, content=each.content.strip().pad("\t" * n_start, "\t" * n_end)) for each in joined]


def join_translations(
    source: Segment, parts: Sequence[Segment], translations: Sequence[Translation], language: str
) -> Translation:
    """Return the translation of a segment from those of its parts, in a target language."""
    sources = [part.surface for part in parts]
    spaces = find_spaces_before(sources, [each.text for each in translations], language)
    targets = [space + each.text for space, each in zip(spaces, translations, strict=True)]
    return Translation(
        source.join([(space, each.content) for space, each in zip(spaces, translations, strict=True)]),
        score=sum(each.score for each in translations),
        tokens=[token for each in translations for token in each.tokens],
        token_scores=[score for each in translations for score in each.token_scores],
        finished=all(each.finished for each in translations),
        alignment=join_alignments([each.alignment for each in translations], sources, targets),
        parts=tuple(map(TranslatedPart, sources, targets, translations)) if len(parts) > 1 else (),
    )


def find_spaces_before(parts: Sequence[str], translations: Sequence[str], language: str | None = None) -> list[str]:
    """Return the white space before each translation: the white space that precedes its source part.

    After a script without spaces it is a space. Chinese and Japanese have no space between sentences. An empty
    translation adds none.
    """
    has_spaces = primary_language(language or "") not in ("zh", "ja")
    spaces: list[str] = []
    has_text = False  # a translation before is not empty
    for before, translation in zip(["", *parts], translations, strict=False):
        space = before[len(before.rstrip()) :].translate(_PLAIN_SPACES) or " " * (before[-1:] > _FIRST_UNSPACED)
        spaces.append(space if translation and has_text and (has_spaces or BREAK.search(space)) else "")
        has_text |= bool(translation)
    return spaces


def join_alignments(
    parts: Sequence[WordAlignment | None], sources: Sequence[str], targets: Sequence[str]
) -> WordAlignment | None:
    """Return the alignment of the joined texts; None if a part has none."""
    joined: WordAlignment = []
    offsets = iterate_word_offsets(sources), iterate_word_offsets(targets)
    for part, first_src, first_tgt in zip(parts, *offsets, strict=True):
        if part is None:
            return None
        joined += [(first_src + source, first_tgt + target) for source, target in part]
    return [*dict.fromkeys(joined)]  # a word of two parts may be aligned twice


def iterate_word_offsets(texts: Iterable[str]) -> Iterator[int]:
    """Yield the index of each text's first word in the joined text.

    A text that follows another without white space continues its last word, as in Chinese.
    """
    count, ends_in_word = 0, False
    for text in texts:
        words = text.split()
        if words and ends_in_word and not text[0].isspace():
            count -= 1
        yield count
        count += len(words)
        if text:
            ends_in_word = not text[-1].isspace()
