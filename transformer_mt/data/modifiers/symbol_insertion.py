"""Insertion of symbols into training pairs: elements on both sides, and translations of terms in the source."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer_mt.data.markup.elements import Element, MarkedText, Role
from transformer_mt.data.markup.symbols import assign_symbols
from transformer_mt.data.markup.terms import Term, annotate_terms
from transformer_mt.data.modifiers.element_choice import Item, Kind, choose_items, choose_terms
from transformer_mt.data.quality.word_alignment import AlignedPair, WordDictionary
from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.marked_text import encode_marked
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

COUNT_WEIGHTS = (24, 20, 15, 11, 8, 6, 4, 3, 3, 2, 2, 2)  # of 1, 2, ... items in each pair of a batch
MAX_TERMS = 3
EXCHANGED_TERM = 0.5  # rate at which another word takes the place of a term, so that only its translation helps

EncodedPairs = tuple[list[list[int]], list[list[int]]]  # ids of the sources and of the targets


class _Insertion(NamedTuple):
    """An item, or one tag of it, in a text."""

    item: int  # index of the item
    role: Role


def draw_counts(rng: random.Random) -> tuple[int, int]:
    """Return the most items and terms that a sentence pair of a batch gets."""
    counts = range(1, len(COUNT_WEIGHTS) + 1)
    return rng.choices(counts, COUNT_WEIGHTS)[0], rng.randint(1, MAX_TERMS)


class SymbolInserter:
    """Inserts symbols into sentence pairs, at places that correspond by a dictionary of the corpus."""

    def __init__(self, tokenizers: TokenizerPair, dictionary: WordDictionary) -> None:
        assert tokenizers.has_symbols
        self.tokenizers, self.dictionary = tokenizers, dictionary
        self._words = sorted(dictionary.known_src - dictionary.frequent_src)

    def __call__(self, pairs: Sequence[Pair], n_items: int, n_terms: int, seeds: Sequence[str]) -> EncodedPairs:
        """Return the ids of both sides of sentence pairs with at most these numbers of items and terms.

        `seeds` has the seed of the random numbers of each pair.
        """
        sources: list[MarkedText] = []
        targets: list[MarkedText] = []
        src_symbols: list[list[int]] = []
        tgt_symbols: list[list[int]] = []
        for pair, rng in zip(pairs, map(random.Random, seeds), strict=True):
            terms: list[Term] = []
            aligned = self.dictionary.align(*pair)
            if n_terms:
                aligned, terms = self._choose_terms(aligned, rng.randint(1, n_terms), rng)
            items = choose_items(aligned, rng.randint(-(-n_items // 2), n_items), rng)
            source, target, terms = insert_items(aligned, items, terms)
            symbols = assign_symbols(source.elements, rng)
            assert symbols is not None
            source, annotated_symbols, _ = annotate_terms(source, symbols, terms)
            sources.append(source)
            targets.append(target)
            src_symbols.append(annotated_symbols)
            tgt_symbols.append(symbols)
        return (
            encode_marked(self.tokenizers.src, sources, src_symbols),
            encode_marked(self.tokenizers.tgt, targets, tgt_symbols),
        )

    def _choose_terms(self, pair: AlignedPair, count: int, rng: random.Random) -> tuple[AlignedPair, list[Term]]:
        """Choose terms of a pair, and exchange some of those of one word."""
        terms = choose_terms(pair, count, rng)
        for i, term in enumerate(terms):
            place = (term.start, term.end)
            if self._words and place in pair.src_words and rng.random() < EXCHANGED_TERM:
                word = rng.choice(self._words)
                if pair.src[term.start].isupper():
                    word = word.capitalize()
                pair = pair.with_word(pair.src_words.index(place), word)
                shift = len(word) - (term.end - term.start)
                terms[i] = Term(term.start, term.end + shift, term.translation)
                later = terms[i + 1 :]
                terms[i + 1 :] = [Term(other.start + shift, other.end + shift, other.translation) for other in later]
        return pair, terms


def insert_items(
    pair: AlignedPair, items: Sequence[Item], terms: Sequence[Term] = ()
) -> tuple[MarkedText, MarkedText, list[Term]]:
    """Return both sides with the elements of items, and the terms with their places in the source without elements.

    Terms that overlap the end of a text or an item are left out.
    """
    src_parts, moved_terms = _insert(pair.src, items, 0, terms)
    tgt_parts, _ = _insert(pair.tgt, items, 1)
    insertions = [part for part in src_parts if not isinstance(part, str)]
    numbers = {insertion: i for i, insertion in enumerate(insertions)}
    elements: list[Element] = []
    open_tags: list[int] = []
    for i, (item, role) in enumerate(insertions):
        if role is Role.CLOSING:
            open_tags.pop()
        opposite = {Role.OPENING: Role.CLOSING, Role.CLOSING: Role.OPENING}.get(role)
        partner = None if opposite is None else numbers[_Insertion(item, opposite)]
        surface = {Role.SINGLE: f"<{item}/>", Role.OPENING: f"<{item}>", Role.CLOSING: f"</{item}>"}[role]
        elements.append(Element(surface, role, partner, open_tags[-1] if open_tags else None))
        if role is Role.OPENING:
            open_tags.append(i)
    src, tgt = (
        MarkedText.make([part if isinstance(part, str) else numbers[part] for part in parts], elements)
        for parts in (src_parts, tgt_parts)
    )
    return src, tgt, moved_terms


def _insert(
    text: str, items: Sequence[Item], side: int, terms: Sequence[Term] = ()
) -> tuple[list[str | _Insertion], list[Term]]:
    """Return a text with the elements of items, and terms with their places in that text without the elements."""
    parts: list[str | _Insertion] = []
    moved: list[Term] = []
    position = n_plain = 0  # characters that were read and written
    for start, end, inserted in [*_edits(items, side), (len(text), len(text), [])]:
        if piece := text[position : max(start, 0)]:
            shift = n_plain - position
            moved += [
                Term(term.start + shift, term.end + shift, term.translation)
                for term in terms
                if position <= term.start and term.end <= position + len(piece)
            ]
            inserted = [piece, *inserted]
        parts += inserted
        n_plain += sum(len(part) for part in inserted if isinstance(part, str))
        position = max(position, start, end)
    return parts, moved


def _edits(items: Sequence[Item], side: int) -> Iterator[tuple[int, int, list[str | _Insertion]]]:
    """Yield the parts that replace ranges of a text, in their order.

    At one place, tags are closed first, the innermost before the others. Points follow, then tags are opened, the
    outermost before the others.
    """
    edits: list[tuple[tuple[int, ...], int, list[str | _Insertion]]] = []
    for index, item in enumerate(items):
        start, end = item.ranges[side]
        single = [_Insertion(index, Role.SINGLE)]
        tags = [_Insertion(index, Role.OPENING)], [_Insertion(index, Role.CLOSING)]
        if item.kind is Kind.POINT:
            inserted = [*tags[0], *tags[1]] if item.is_pair else single
            edits.append(((start, 1, index), end, [item.before, *inserted, item.after]))
        elif item.kind is Kind.REPLACEMENT:
            edits.append(((start, 2, -end, 1), end, [*single]))
        else:
            edits.append(((start, 2, -end, 0, index), start, [*tags[0]]))
            edits.append(((end, 0, -start, -index), end, [*tags[1]]))
    for key, end, inserted in sorted(edits, key=lambda edit: edit[0]):
        yield key[0], end, inserted
