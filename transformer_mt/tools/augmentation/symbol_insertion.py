"""Insertion of symbols into training pairs: elements on both sides, and translations of terms in the source."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.marked_text import encode_marked
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.tools.augmentation.element_choice import (
    Insertion,
    InsertionKind,
    choose_insertions,
    choose_terms,
)
from transformer_mt.tools.markup.elements import Element, MarkedText, Role
from transformer_mt.tools.markup.symbols import assign_symbol_numbers
from transformer_mt.tools.markup.terms import TermAnnotation, annotate_terms
from transformer_mt.tools.quality.lexicon import AlignedPair, WordDictionary

COUNT_WEIGHTS = (24, 20, 15, 11, 8, 6, 4, 3, 3, 2, 2, 2)  # of 1, 2, ... insertions at most in each pair of a batch
MAX_TERMS = 3
EXCHANGED_TERM_RATE = 0.5  # terms that another word replaces, so that only the annotation tells their translation

EncodedPairs = tuple[list[list[int]], list[list[int]]]  # ids of the sources and of the targets


class _InsertedElement(NamedTuple):
    """The single element of an insertion, or one tag of its pair."""

    insertion: int  # index
    role: Role


def draw_max_counts(rng: random.Random) -> tuple[int, int]:
    """Return the maximum numbers of insertions and terms of each sentence pair of a batch."""
    counts = range(1, len(COUNT_WEIGHTS) + 1)
    return rng.choices(counts, COUNT_WEIGHTS)[0], rng.randint(1, MAX_TERMS)


class SymbolInserter:
    """Inserts symbols into sentence pairs. A dictionary of the corpus tells which places correspond on both sides."""

    def __init__(self, tokenizers: TokenizerPair, dictionary: WordDictionary) -> None:
        assert tokenizers.has_symbols
        self.tokenizers, self.dictionary = tokenizers, dictionary
        self._replacements = sorted(dictionary.known_src - dictionary.frequent_src)  # words for exchanged terms

    def __call__(
        self, pairs: Sequence[Pair], max_insertions: int, max_terms: int, seeds: Sequence[str]
    ) -> EncodedPairs:
        """Return the ids of both sides of sentence pairs with symbols. `seeds` has the random seed of each pair."""
        sources: list[MarkedText] = []
        targets: list[MarkedText] = []
        src_symbol_numbers: list[list[int]] = []
        tgt_symbol_numbers: list[list[int]] = []
        for pair, rng in zip(pairs, map(random.Random, seeds), strict=True):
            terms: list[TermAnnotation] = []
            aligned = self.dictionary.align(*pair)
            if max_terms:
                aligned, terms = self._choose_terms(aligned, rng.randint(1, max_terms), rng)
            insertions = choose_insertions(aligned, rng.randint(-(-max_insertions // 2), max_insertions), rng)
            source, target, terms = insert_elements(aligned, insertions, terms)
            symbol_numbers = assign_symbol_numbers(source.elements, rng)
            assert symbol_numbers is not None
            annotated, annotated_symbol_numbers = annotate_terms(source, symbol_numbers, terms)
            sources.append(annotated)
            targets.append(target)
            src_symbol_numbers.append(annotated_symbol_numbers)
            tgt_symbol_numbers.append(symbol_numbers)
        return (
            encode_marked(self.tokenizers.src, sources, src_symbol_numbers),
            encode_marked(self.tokenizers.tgt, targets, tgt_symbol_numbers),
        )

    def _choose_terms(
        self, pair: AlignedPair, max_count: int, rng: random.Random
    ) -> tuple[AlignedPair, list[TermAnnotation]]:
        """Choose terms of a pair, and exchange some of those of one word."""
        terms = choose_terms(pair, max_count, rng)
        for i, term in enumerate(terms):
            characters = (term.start, term.end)
            if self._replacements and characters in pair.src_words and rng.random() < EXCHANGED_TERM_RATE:
                word = rng.choice(self._replacements)
                if pair.src[term.start].isupper():
                    word = word.capitalize()
                pair = pair.with_word(pair.src_words.index(characters), word)
                shift = len(word) - (term.end - term.start)
                terms[i] = TermAnnotation(term.start, term.end + shift, term.translation)
                later = terms[i + 1 :]
                terms[i + 1 :] = [
                    TermAnnotation(other.start + shift, other.end + shift, other.translation) for other in later
                ]
        return pair, terms


def insert_elements(
    pair: AlignedPair, insertions: Sequence[Insertion], terms: Sequence[TermAnnotation] = ()
) -> tuple[MarkedText, MarkedText, list[TermAnnotation]]:
    """Return both sides with elements, and the terms with their offsets in the source without elements.

    A term that an insertion cuts or replaces is left out.
    """
    src_parts, moved_terms = _insert(pair.src, insertions, 0, terms)
    tgt_parts, _ = _insert(pair.tgt, insertions, 1)
    inserted = [part for part in src_parts if not isinstance(part, str)]
    indices = {each: i for i, each in enumerate(inserted)}
    elements: list[Element] = []
    open_tags: list[int] = []
    for i, (insertion, role) in enumerate(inserted):
        if role is Role.CLOSING:
            open_tags.pop()
        opposite = {Role.OPENING: Role.CLOSING, Role.CLOSING: Role.OPENING}.get(role)
        partner = None if opposite is None else indices[_InsertedElement(insertion, opposite)]
        surface = {Role.SINGLE: f"<{insertion}/>", Role.OPENING: f"<{insertion}>", Role.CLOSING: f"</{insertion}>"}
        elements.append(Element(surface[role], role, partner, open_tags[-1] if open_tags else None))
        if role is Role.OPENING:
            open_tags.append(i)
    src, tgt = (
        MarkedText.make([part if isinstance(part, str) else indices[part] for part in parts], elements)
        for parts in (src_parts, tgt_parts)
    )
    return src, tgt, moved_terms


def _insert(
    text: str, insertions: Sequence[Insertion], side: int, terms: Sequence[TermAnnotation] = ()
) -> tuple[list[str | _InsertedElement], list[TermAnnotation]]:
    """Return the parts of a text with elements, and the terms with their offsets in these parts without elements."""
    parts: list[str | _InsertedElement] = []
    moved: list[TermAnnotation] = []
    n_read = n_written = 0  # characters
    for start, end, inserted in [*_list_edits(insertions, side), (len(text), len(text), [])]:
        if piece := text[n_read : max(start, 0)]:
            shift = n_written - n_read
            moved += [
                TermAnnotation(term.start + shift, term.end + shift, term.translation)
                for term in terms
                if n_read <= term.start and term.end <= n_read + len(piece)
            ]
            inserted = [piece, *inserted]
        parts += inserted
        n_written += sum(len(part) for part in inserted if isinstance(part, str))
        n_read = max(n_read, start, end)
    return parts, moved


def _list_edits(insertions: Sequence[Insertion], side: int) -> Iterator[tuple[int, int, list[str | _InsertedElement]]]:
    """Yield the ranges of a text that are replaced, in order, each with the parts that replace it.

    At one position, tags are closed first, inner ones before outer ones. Then insertions between words follow. Then
    tags are opened, outer ones before inner ones.
    """
    edits: list[tuple[tuple[int, ...], int, list[str | _InsertedElement]]] = []
    for index, insertion in enumerate(insertions):
        start, end = insertion.ranges[side]
        single = [_InsertedElement(index, Role.SINGLE)]
        opening, closing = _InsertedElement(index, Role.OPENING), _InsertedElement(index, Role.CLOSING)
        if insertion.kind is InsertionKind.BETWEEN_WORDS:
            inserted = [opening, closing] if insertion.is_pair else single
            edits.append(((start, 1, index), end, [insertion.space_before, *inserted, insertion.space_after]))
        elif insertion.kind is InsertionKind.REPLACE:
            edits.append(((start, 2, -end, 1), end, [*single]))
        else:
            edits.append(((start, 2, -end, 0, index), start, [opening]))
            edits.append(((end, 0, -start, -index), end, [closing]))
    for key, end, inserted in sorted(edits, key=lambda edit: edit[0]):
        yield key[0], end, inserted
