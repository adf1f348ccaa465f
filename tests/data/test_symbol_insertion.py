"""Symbols in training pairs: elements at corresponding places of both sides, and translations of terms."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.tools.augmentation.element_choice import (
    Insertion,
    InsertionKind,
    choose_insertions,
    choose_terms,
)
from transformer_mt.tools.augmentation.symbol_insertion import SymbolInserter, draw_max_counts, insert_elements
from transformer_mt.tools.markup.elements import Role
from transformer_mt.tools.markup.symbols import SYMBOL_NAMES, TERM_SYMBOL_NAMES
from transformer_mt.tools.quality.lexicon import AlignedPair, WordDictionary, find_words

SRC = "A tall man, named Otto, reads 2 books: see http://a.b/c or {name}"
TGT = "Ein großer Mann namens Otto liest 2 Bücher: siehe http://a.b/c oder {name}"
LINKS = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9, 10: 10, 11: 11, 12: 12, 13: 13, 14: 14}


def align(src: str, tgt: str, links: dict[int, int]) -> AlignedPair:
    src_words, tgt_words = find_words(src), find_words(tgt)
    links = {i: j for i, j in links.items() if i < len(src_words) and j < len(tgt_words)}
    return AlignedPair(src, tgt, src_words, tgt_words, links, frozenset(range(len(src_words))))


texts = st.lists(st.sampled_from(["a", "Bo", "12", "x-y", "(c)", "da,", "我们", "ef."]), max_size=12).map(" ".join)


@st.composite
def aligned_pairs(draw: st.DrawFn) -> AlignedPair:
    """Draw two texts and one-to-one links between any of their words, also unlikely ones."""
    src, tgt = draw(texts), draw(texts)
    n_src, n_tgt = len(find_words(src)), len(find_words(tgt))
    linked = draw(st.lists(st.integers(0, max(0, n_src - 1)), unique=True, max_size=min(n_src, n_tgt)))
    places = draw(st.permutations(range(n_tgt)))
    in_order = draw(st.booleans())
    return align(src, tgt, dict(zip(sorted(linked), sorted(places) if in_order else places, strict=False)))


@settings(max_examples=150, deadline=None)
@given(pair=aligned_pairs(), count=st.integers(0, 12), seed=st.integers(0, 2**32))
def test_a_target_keeps_each_element_once_and_in_its_parent(pair: AlignedPair, count: int, seed: int) -> None:
    rng = random.Random(seed)
    insertions = choose_insertions(pair, count, rng)
    source, target, terms = insert_elements(pair, insertions, choose_terms(pair, 3, rng))
    assert len(insertions) <= count
    assert source.elements == target.elements and source.order == [*range(len(source.elements))]
    assert source.find_violation(source) is None
    assert target.find_violation(source) is None
    for i, element in enumerate(source.elements):
        if element.partner is None:
            assert element.role is Role.SINGLE
        else:
            assert source.elements[element.partner].partner == i
    for term in terms:
        assert source.text_only[term.start : term.end] in pair.src and term.translation in pair.tgt
    if all(insertion.kind is not InsertionKind.REPLACE for insertion in insertions):
        assert source.text_only.replace(" ", "") == pair.src.replace(" ", "")
        assert target.text_only.replace(" ", "") == pair.tgt.replace(" ", "")


def drawn_insertions(pair: AlignedPair, count: int, n_draws: int = 400) -> list[list[Insertion]]:
    return [choose_insertions(pair, count, random.Random(seed)) for seed in range(n_draws)]


def test_all_kinds_and_spacings_occur_and_sentences_get_up_to_twelve_insertions() -> None:
    pair = align(SRC, TGT, LINKS)
    lists = drawn_insertions(pair, 12)
    assert max(map(len, lists)) == 12
    forms = Counter(
        (each.kind, each.is_pair, each.src[0] == each.src[1], each.space_before, each.space_after)
        for insertions in lists
        for each in insertions
    )
    between = InsertionKind.BETWEEN_WORDS
    assert {
        (InsertionKind.ENCLOSE, True, False, "", ""),
        (InsertionKind.REPLACE, False, False, "", ""),
        (between, False, True, "", ""),
        (between, False, True, " ", ""),
        (between, False, True, "", " "),
        (between, False, False, "", ""),  # in the place of a space
        (between, True, True, "", ""),
    } <= forms.keys()
    pair = align("a tall man reads", "ein großer Mann liest", {i: i for i in range(4)})
    surfaces = {insert_elements(pair, insertions)[0].surface for insertions in drawn_insertions(pair, 2)}
    assert f"<0>{pair.src}</0>" in surfaces
    assert any("><1>" in surface for surface in surfaces), "pairs are nested"


def test_equal_names_numbers_links_and_placeholders_are_replaced_on_both_sides() -> None:
    pair = align(SRC, TGT, {})
    replaced = Counter(
        (pair.src[slice(*insertion.src)], pair.tgt[slice(*insertion.tgt)])
        for insertions in drawn_insertions(pair, 3)
        for insertion in insertions
        if insertion.kind is InsertionKind.REPLACE
    )
    assert replaced.keys() == {(unit, unit) for unit in ("Otto", "2", "http://a.b/c", "{name}")}


def test_terms_are_words_of_the_source_with_their_translations() -> None:
    pair = align(SRC, TGT, LINKS)
    found = Counter(
        (SRC[term.start : term.end], term.translation)
        for seed in range(300)
        for term in choose_terms(pair, 3, random.Random(seed))
    )
    assert ("tall", "großer") in found and ("tall man", "großer Mann") in found
    for src, tgt in found:
        assert len(src.split()) == len(tgt.split()) and src in SRC and tgt in TGT
    assert not choose_terms(replace(pair, content=frozenset()), 3, random.Random(1))


def test_most_batches_get_few_insertions_and_some_get_twelve() -> None:
    counts = Counter(draw_max_counts(random.Random(seed)) for seed in range(2000))
    insertions = Counter(n for n, _ in counts.elements())
    assert sorted(insertions) == [*range(1, 13)] and {terms for _, terms in counts} == {1, 2, 3}
    assert sum(insertions[n] for n in range(1, 7)) > 1500


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizers(small_tokenizers: TokenizerPair) -> TokenizerPair:
    return small_tokenizers.with_symbols()


def split_ids(tokenizers: TokenizerPair, ids: Sequence[int]) -> tuple[list[str], str]:
    """Return the names of the symbols, and the text."""
    names = [SYMBOL_NAMES[i - tokenizers.src.first_symbol_id] for i in ids if i >= tokenizers.src.first_symbol_id]
    return names, tokenizers.src.decode([ids])[0]


DICTIONARY = WordDictionary(
    {"dog": {"hund": 0.6}, "sleeps": {"schläft": 0.6}, "small": {"kleine": 0.5}},
    *(frozenset(words) for words in (("dog", "sleeps", "small"), ("hund", "schläft", "kleine"), ("the",))),
)
PAIR = ("The small dog sleeps.", "Der kleine Hund schläft.")


def test_both_sides_have_the_same_symbols_in_random_slots(tokenizers: TokenizerPair) -> None:
    insert = SymbolInserter(tokenizers, DICTIONARY)
    sides = insert([PAIR] * 200, 4, 0, [*map(str, range(200))])
    used = Counter[str]()
    for src, tgt in zip(*sides, strict=True):
        names = split_ids(tokenizers, src)[0]
        assert names and sorted(names) == sorted(split_ids(tokenizers, tgt)[0])
        assert len(set(names)) == len(names) and not set(names) & set(TERM_SYMBOL_NAMES)
        used.update(names)
    assert used.keys() == set(SYMBOL_NAMES) - set(TERM_SYMBOL_NAMES)


def test_a_term_is_annotated_in_the_source_only(tokenizers: TokenizerPair) -> None:
    insert = SymbolInserter(tokenizers, DICTIONARY)
    sides = insert([PAIR] * 200, 0, 1, [*map(str, range(200))])
    annotated = set[str]()
    for src, tgt in zip(*sides, strict=True):
        assert tgt == tokenizers.tgt.encode([PAIR[1]])[0]
        names, text = split_ids(tokenizers, src)
        assert names in ([], [*TERM_SYMBOL_NAMES])
        annotated.add(text)
    assert "The small dog Hund sleeps." in annotated and "The small kleine dog sleeps." in annotated
    assert "The small sleeps Hund sleeps." in annotated, "another word is in the place of the term"
