"""Random choice of elements and terms for a sentence pair, at places that correspond on both sides.

Any corpus teaches markup in this way: tags go around words that are translations of each other, and single elements
replace such words, or words that are equal on both sides, or are inserted between neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

import regex

from transformer_mt.data.markup.terms import Term
from transformer_mt.data.quality.scripts import UNSPACED
from transformer_mt.data.quality.word_alignment import AlignedPair

_UNIT = regex.compile(rf"[^\s{UNSPACED}]+")
_OUTER_PUNCTUATION = ".,;:!?¡¿…\"'“”„«»‹›‘’()[]。，、！？：；（）「」"
_UNIT_LIKE_AN_ELEMENT = regex.compile(r"\p{Lu}|\d|[^\p{L}\p{M}'’-]")

SPAN_LENGTHS = (1, 2, 3, 4, 6, 8)  # words inside a pair of tags
SPAN_WEIGHTS = (10, 6, 4, 2, 1, 1)
TERM_LENGTHS, TERM_WEIGHTS = (1, 2, 3), (6, 3, 1)
WHOLE_SENTENCE = 0.08  # rate of pairs of tags
EMPTY_PAIR = 0.1  # rate of places between words that get a pair of tags without text
EQUAL_WORD = 0.75  # rate at which a name, number or link that is equal on both sides is replaced
TRIES = 3  # per element


class Spacing(Enum):
    """Spaces around an element between two words that have a space between them."""

    BEFORE_TEXT = auto()  # `word<x> word`
    AFTER_TEXT = auto()  # `word <x>word`
    BOTH = auto()
    NONE = auto()


class Kind(Enum):
    """What an item does to the text."""

    PAIR = auto()  # puts a pair of tags around a span
    REPLACEMENT = auto()  # puts a single element in the place of a span
    POINT = auto()  # inserts a single element, or a pair without text


KIND_MIXTURES = ((Kind.PAIR,), (Kind.PAIR, Kind.POINT), (Kind.REPLACEMENT,), (Kind.PAIR, Kind.REPLACEMENT, Kind.POINT))
"""Kinds of the elements of a sentence pair, of which one mixture is chosen."""

Range = tuple[int, int]


class Item(NamedTuple):
    """One or two elements at corresponding ranges of characters of both sides."""

    kind: Kind
    src: Range
    tgt: Range
    is_pair: bool  # two elements
    before: str = ""  # a space before or after the element
    after: str = ""

    @property
    def ranges(self) -> tuple[Range, Range]:
        """Return the ranges of source and target."""
        return self.src, self.tgt


# --- choice -----------------------------------------------------------------------------------------------------------


def choose_items(pair: AlignedPair, count: int, rng: random.Random) -> list[Item]:
    """Return at most `count` items whose ranges are nested in the same way on both sides."""
    kinds = rng.choice(KIND_MIXTURES)
    equal = [item for item in _equal_units(pair) if rng.random() < EQUAL_WORD]
    rng.shuffle(equal)
    items: list[Item] = []
    for item in equal[:count]:
        if _is_nested(item, items):
            items.append(item)
    for _ in range(TRIES * count):
        if len(items) >= count:
            break
        item = _draw(pair, rng.choice(kinds), rng)
        if item is not None and _is_nested(item, items):
            items.append(item)
    return items


def _equal_units(pair: AlignedPair) -> Iterator[Item]:
    """Yield names, numbers, links, placeholders and the like that occur exactly once on both sides."""
    for match in _UNIT.finditer(pair.src):
        unit = match[0].strip(_OUTER_PUNCTUATION)
        if unit and _UNIT_LIKE_AN_ELEMENT.search(unit) and pair.src.count(unit) == 1 == pair.tgt.count(unit):
            src, tgt = pair.src.index(unit), pair.tgt.index(unit)
            yield Item(Kind.REPLACEMENT, (src, src + len(unit)), (tgt, tgt + len(unit)), is_pair=False)


def _draw(pair: AlignedPair, kind: Kind, rng: random.Random) -> Item | None:
    """Return a random item, or None if the place that was drawn has no counterpart."""
    if kind is Kind.POINT:
        return _draw_point(pair, rng)
    if kind is Kind.PAIR and rng.random() < WHOLE_SENTENCE:
        # one character more, so that elements at the ends of the text are inside
        return Item(kind, (-1, len(pair.src) + 1), (-1, len(pair.tgt) + 1), is_pair=True)
    length = rng.choices(SPAN_LENGTHS, SPAN_WEIGHTS)[0] if kind is Kind.PAIR else 1
    span = _draw_span(pair, length, rng)
    if span is None or not _has_content(pair, span[0]):
        return None
    return Item(kind, *_characters(pair, *span), is_pair=kind is Kind.PAIR)


def _draw_span(pair: AlignedPair, length: int, rng: random.Random) -> tuple[Range, Range] | None:
    """Return first and last word of spans of both sides that are translations of each other.

    All links of the words inside are inside, and the words at the ends have links. Spans of this kind are nested or
    disjoint in the same way on both sides.
    """
    if not pair.links:
        return None
    first = rng.choice([*pair.links])
    last = first + length - 1
    targets = [pair.links[i] for i in range(first, last + 1) if i in pair.links]
    start, end = min(targets), max(targets)
    n_inside = sum(start <= j <= end for j in pair.links.values())
    is_complete = last in pair.links and n_inside == len(targets)
    return ((first, last), (start, end)) if is_complete else None


def _has_content(pair: AlignedPair, src: Range) -> bool:
    return any(i in pair.content for i in range(src[0], src[1] + 1))


def _characters(pair: AlignedPair, src: Range, tgt: Range) -> tuple[Range, Range]:
    """Return ranges of characters for first and last words."""
    src_words, tgt_words = pair.src_words, pair.tgt_words
    return (src_words[src[0]][0], src_words[src[1]][1]), (tgt_words[tgt[0]][0], tgt_words[tgt[1]][1])


def _draw_point(pair: AlignedPair, rng: random.Random) -> Item | None:
    """Return an item between two words whose translations are neighbours too, or at an end of the text."""
    is_pair, spacing = rng.random() < EMPTY_PAIR, rng.choice([*Spacing])
    space = " " if spacing is Spacing.BOTH else ""
    i = rng.randrange(-1, len(pair.src_words))
    if i == -1:
        return Item(Kind.POINT, (0, 0), (0, 0), is_pair, after=space)
    if i == len(pair.src_words) - 1:
        src, tgt = len(pair.src), len(pair.tgt)
        return Item(Kind.POINT, (src, src), (tgt, tgt), is_pair, before=space)
    j = pair.links.get(i)
    if j is None or pair.links.get(i + 1) != j + 1:
        return None
    gaps = (pair.src_words[i][1], pair.src_words[i + 1][0]), (pair.tgt_words[j][1], pair.tgt_words[j + 1][0])
    if spacing is Spacing.NONE and pair.src[slice(*gaps[0])] == pair.tgt[slice(*gaps[1])] == " ":
        return Item(Kind.POINT, *gaps, is_pair)
    src, tgt = (gap[1] if spacing is Spacing.AFTER_TEXT else gap[0] for gap in gaps)
    return Item(Kind.POINT, (src, src), (tgt, tgt), is_pair, before=space)


def _is_nested(new: Item, items: Sequence[Item]) -> bool:
    """Return whether a new item is inside, around or beside each other item, and on both sides in the same way."""
    for item in items:
        src, tgt = _relation(new, item, 0), _relation(new, item, 1)
        if src is None or src != tgt:
            return False
    return True


def _relation(new: Item, item: Item, side: int) -> str | None:
    """Return where an item is relative to an earlier one; None if they cannot be combined."""
    (start, end), (other_start, other_end) = new.ranges[side], item.ranges[side]
    if end <= other_start or start >= other_end:
        return "beside"
    if other_start <= start and end <= other_end and item.kind is Kind.PAIR:
        return "inside"
    if start <= other_start and other_end <= end and new.kind is Kind.PAIR:
        return "around"
    return None


def choose_terms(pair: AlignedPair, count: int, rng: random.Random) -> list[Term]:
    """Return at most `count` terms of the source, in order, with the words of the target that translate them."""
    chosen: list[tuple[Range, Range]] = []
    for _ in range(TRIES * count):
        length = rng.choices(TERM_LENGTHS, TERM_WEIGHTS)[0]
        span = _draw_span(pair, length, rng)
        if span is None or len(chosen) >= count:
            continue
        (first, last), (start, end) = span
        is_short = end - start < TERM_LENGTHS[-1]
        if (
            is_short
            and _has_content(pair, span[0])
            and all(last < other[0][0] or first > other[0][1] for other in chosen)
        ):
            chosen.append(span)
    ranges = (_characters(pair, *span) for span in sorted(chosen))
    return [Term(*src, pair.tgt[slice(*tgt)]) for src, tgt in ranges]
