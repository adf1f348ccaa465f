"""Random choice of protected elements and terms for a sentence pair, at places that correspond on both sides.

Any corpus teaches markup in this way. Pairs of markup tags enclose words that are translations of each other. Single
elements replace such words, or words that are the same on both sides, or they are inserted between words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

import regex

from transformer_mt.tools.languages.scripts import UNSPACED
from transformer_mt.tools.markup.terms import TermAnnotation
from transformer_mt.tools.quality.lexicon import AlignedPair

_WORD = regex.compile(rf"[^\s{UNSPACED}]+")
_OUTER_PUNCTUATION = ".,;:!?¡¿…\"'“”„«»‹›‘’()[]。，、！？：；（）「」"
_NOT_ONLY_LOWER_CASE = regex.compile(r"\p{Lu}|\d|[^\p{L}\p{M}'’-]")  # as in names, numbers, links and placeholders

SPAN_LENGTHS = (1, 2, 3, 4, 6, 8)  # words inside a pair of tags
SPAN_WEIGHTS = (10, 6, 4, 2, 1, 1)
TERM_LENGTHS, TERM_WEIGHTS = (1, 2, 3), (6, 3, 1)
WHOLE_SENTENCE_RATE = 0.08  # probability that a pair of tags encloses the whole sentence
EMPTY_PAIR_RATE = 0.1  # probability that an insertion between words is a pair of tags
COPIED_WORD_RATE = 0.75  # probability that a name, number or link, the same on both sides, is replaced
DRAWS = 3  # for each element or term that is wanted, because some draws have no counterpart


class Spacing(Enum):
    """Spaces around an element that is inserted between two words with a space between them."""

    AFTER_ELEMENT = auto()  # `word<x> word`
    BEFORE_ELEMENT = auto()  # `word <x>word`
    BOTH = auto()  # `word <x> word`
    NONE = auto()  # `word<x>word`


class InsertionKind(Enum):
    """How an insertion changes the text."""

    ENCLOSE = auto()  # a pair of tags encloses words
    REPLACE = auto()  # a single element replaces a word
    BETWEEN_WORDS = auto()  # a single element, or a pair of tags without text, is inserted


KIND_MIXTURES = (
    (InsertionKind.ENCLOSE,),
    (InsertionKind.ENCLOSE, InsertionKind.BETWEEN_WORDS),
    (InsertionKind.REPLACE,),
    (InsertionKind.ENCLOSE, InsertionKind.REPLACE, InsertionKind.BETWEEN_WORDS),
)
"""One of these mixtures is chosen for each sentence pair."""

CharacterRange = tuple[int, int]
"""First character, and the end, which is not included."""
WordRange = tuple[int, int]
"""First and last word, both included."""


class Insertion(NamedTuple):
    """A single element or a pair of tags for corresponding ranges of both sides."""

    kind: InsertionKind
    src: CharacterRange
    tgt: CharacterRange
    is_pair: bool
    space_before: str = ""  # inserted before the element
    space_after: str = ""

    @property
    def ranges(self) -> tuple[CharacterRange, CharacterRange]:
        """Return the ranges of source and target."""
        return self.src, self.tgt


def choose_insertions(pair: AlignedPair, max_count: int, rng: random.Random) -> list[Insertion]:
    """Return at most `max_count` insertions whose ranges are nested in the same way on both sides."""
    kinds = rng.choice(KIND_MIXTURES)
    copied = [insertion for insertion in _find_copied_words(pair) if rng.random() < COPIED_WORD_RATE]
    rng.shuffle(copied)
    chosen: list[Insertion] = []
    for insertion in copied[:max_count]:
        if _is_nested(insertion, chosen):
            chosen.append(insertion)
    for _ in range(DRAWS * max_count):
        if len(chosen) >= max_count:
            break
        insertion = _draw(pair, rng.choice(kinds), rng)
        if insertion is not None and _is_nested(insertion, chosen):
            chosen.append(insertion)
    return chosen


def _find_copied_words(pair: AlignedPair) -> Iterator[Insertion]:
    """Yield replacements of names, numbers, links and placeholders that occur exactly once on each side."""
    for match in _WORD.finditer(pair.src):
        word = match[0].strip(_OUTER_PUNCTUATION)
        if word and _NOT_ONLY_LOWER_CASE.search(word) and pair.src.count(word) == 1 == pair.tgt.count(word):
            src, tgt = pair.src.index(word), pair.tgt.index(word)
            yield Insertion(InsertionKind.REPLACE, (src, src + len(word)), (tgt, tgt + len(word)), is_pair=False)


def _draw(pair: AlignedPair, kind: InsertionKind, rng: random.Random) -> Insertion | None:
    """Return a random insertion, or None if the range that was drawn has no counterpart."""
    if kind is InsertionKind.BETWEEN_WORDS:
        return _draw_between_words(pair, rng)
    if kind is InsertionKind.ENCLOSE and rng.random() < WHOLE_SENTENCE_RATE:
        # one character more at each end, so that elements at the ends of the text are inside
        return Insertion(kind, (-1, len(pair.src) + 1), (-1, len(pair.tgt) + 1), is_pair=True)
    length = rng.choices(SPAN_LENGTHS, SPAN_WEIGHTS)[0] if kind is InsertionKind.ENCLOSE else 1
    words = _draw_words(pair, length, rng)
    if words is None or not _has_content(pair, words[0]):
        return None
    return Insertion(kind, *_find_characters(pair, *words), is_pair=kind is InsertionKind.ENCLOSE)


def _draw_words(pair: AlignedPair, length: int, rng: random.Random) -> tuple[WordRange, WordRange] | None:
    """Return ranges of words of both sides that are translations of each other, or None.

    No link leads out of the ranges, and the first and last words of the source have links. Such ranges are nested or
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


def _has_content(pair: AlignedPair, src: WordRange) -> bool:
    return any(i in pair.content for i in range(src[0], src[1] + 1))


def _find_characters(pair: AlignedPair, src: WordRange, tgt: WordRange) -> tuple[CharacterRange, CharacterRange]:
    """Return the characters of words of both sides."""
    src_words, tgt_words = pair.src_words, pair.tgt_words
    return (src_words[src[0]][0], src_words[src[1]][1]), (tgt_words[tgt[0]][0], tgt_words[tgt[1]][1])


def _draw_between_words(pair: AlignedPair, rng: random.Random) -> Insertion | None:
    """Return an insertion at an end of both sides, or between two words whose translations are neighbours too."""
    kind = InsertionKind.BETWEEN_WORDS
    is_pair, spacing = rng.random() < EMPTY_PAIR_RATE, rng.choice([*Spacing])
    space = " " if spacing is Spacing.BOTH else ""
    i = rng.randrange(-1, len(pair.src_words))
    if i == -1:
        return Insertion(kind, (0, 0), (0, 0), is_pair, space_after=space)
    if i == len(pair.src_words) - 1:
        src, tgt = len(pair.src), len(pair.tgt)
        return Insertion(kind, (src, src), (tgt, tgt), is_pair, space_before=space)
    j = pair.links.get(i)
    if j is None or pair.links.get(i + 1) != j + 1:
        return None
    gaps = (pair.src_words[i][1], pair.src_words[i + 1][0]), (pair.tgt_words[j][1], pair.tgt_words[j + 1][0])
    if spacing is Spacing.NONE and pair.src[slice(*gaps[0])] == pair.tgt[slice(*gaps[1])] == " ":
        return Insertion(kind, *gaps, is_pair)
    src, tgt = (gap[1] if spacing is Spacing.BEFORE_ELEMENT else gap[0] for gap in gaps)
    return Insertion(kind, (src, src), (tgt, tgt), is_pair, space_before=space)


def _is_nested(new: Insertion, chosen: Sequence[Insertion]) -> bool:
    """Return whether an insertion is inside, around or beside each chosen one, in the same way on both sides."""
    for other in chosen:
        src, tgt = _find_relation(new, other, 0), _find_relation(new, other, 1)
        if src is None or src != tgt:
            return False
    return True


def _find_relation(new: Insertion, other: Insertion, side: int) -> str | None:
    """Return where an insertion is relative to another on one side; None if they exclude each other."""
    (start, end), (other_start, other_end) = new.ranges[side], other.ranges[side]
    if end <= other_start or start >= other_end:
        return "beside"
    if other_start <= start and end <= other_end and other.kind is InsertionKind.ENCLOSE:
        return "inside"
    if start <= other_start and other_end <= end and new.kind is InsertionKind.ENCLOSE:
        return "around"
    return None


def choose_terms(pair: AlignedPair, max_count: int, rng: random.Random) -> list[TermAnnotation]:
    """Return at most `max_count` terms of the source, in order, with the words of the target that translate them."""
    chosen: list[tuple[WordRange, WordRange]] = []
    for _ in range(DRAWS * max_count):
        length = rng.choices(TERM_LENGTHS, TERM_WEIGHTS)[0]
        words = _draw_words(pair, length, rng)
        if words is None or len(chosen) >= max_count:
            continue
        (first, last), (start, end) = words
        is_short = end - start < TERM_LENGTHS[-1]
        if is_short and _has_content(pair, words[0]) and all(last < src[0] or first > src[1] for src, _ in chosen):
            chosen.append(words)
    ranges = (_find_characters(pair, *words) for words in sorted(chosen))
    return [TermAnnotation(*src, pair.tgt[slice(*tgt)]) for src, tgt in ranges]
