"""Modifiers of training pairs: what each does in several scripts, and when they modify the pairs of a batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import make_modified_stream

from transformer_mt.data.batches import Batch, BatchModifier, BatchStream, StreamPosition
from transformer_mt.data.characters import (
    is_title_case,
    is_upper_case,
    to_lower_case,
    to_sentence_case,
    to_title_case,
    to_upper_case,
)
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.tools.augmentation.modifiers import (
    PAIR_MODIFIERS,
    ModifierConfig,
    TokenizerTrainingPairs,
    make_modify,
)

Pair = tuple[str, str]


def results(name: str, src: str, tgt: str, n: int = 200) -> set[Pair]:
    return {PAIR_MODIFIERS[name](src, tgt, random.Random(seed)) for seed in range(n)}


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("src", "tgt", "expected"),
    [
        ("He sleeps.", "Er schläft.", ("He sleeps", "Er schläft")),
        ("Why?!", "为什么？", ("Why", "为什么")),
        ("No end", "Kein Ende.", ("No end", "Kein Ende.")),
        ("...", "...", ("...", "...")),
    ],
)
def test_end_punctuation_is_removed_from_both_sides(src: str, tgt: str, expected: Pair) -> None:
    assert results("drop_end_punctuation", src, tgt, 1) == {expected}


@pytest.mark.parametrize("src", ["The dog sleeps.", "Собака спит.", "कुत्ता सो रहा है", "狗在睡觉。", "e\u0301te\u0301"])
def test_typos_change_one_letter_of_a_short_source_only(src: str) -> None:
    found = results("typos", src, "Ziel")
    assert len(found) > 3 and {tgt for _, tgt in found} == {"Ziel"}
    for changed, _ in found:
        assert abs(len(changed) - len(src)) <= 4  # code points of a letter of Devanagari
        marks = [i for i, character in enumerate(changed) if character == "\u0301"]
        assert all(changed[i - 1] == "e" for i in marks), "an accent stays with its letter"


def test_title_case_keeps_the_letters_after_an_apostrophe() -> None:
    assert to_title_case("the dog's élan, we’re off") == "The Dog's Élan, We’re Off"


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair) -> EncodedCorpus:
    pairs = load_pairs("test")[:120]
    return make_corpus(*(small_tokenizers.src.encode([pair[side] for pair in pairs]) for side in (0, 1)))


BUDGET = 200  # padded target tokens of a batch


def make_stream(
    corpus: EncodedCorpus, tokenizers: TokenizerPair, options: dict[str, float] | None = None, max_length: int = 256
) -> BatchStream:
    modify = make_modify(ModifierConfig(**(options or {})))
    return make_modified_stream(corpus, BatchModifier(tokenizers, BUDGET, 1, max_length, modify))


def texts(batches: Sequence[Batch], tokenizers: TokenizerPair) -> list[list[Pair]]:
    sides = (
        [tokenizers.src.decode(rows.tolist()) for rows in (getattr(batch, name) for batch in batches)]
        for name in ("src", "labels")
    )
    return [[*zip(src, tgt, strict=True)] for src, tgt in zip(*sides, strict=True)]


def all_batches(stream: BatchStream, epoch: int = 0) -> list[Batch]:
    return stream.take(StreamPosition(epoch), len(stream.plan))[0]


def test_lower_source_changes_the_configured_share_of_the_sources(
    corpus: EncodedCorpus, small_tokenizers: TokenizerPair
) -> None:
    plain = load_pairs("test")[:120]
    for rate in (1.0, 0.5):
        batches = all_batches(make_stream(corpus, small_tokenizers, {"lower_source": rate}))
        rows = [row for batch in batches for row in batch.rows.tolist()]
        found = [pair for pairs in texts(batches, small_tokenizers) for pair in pairs]
        if rate == 1.0:
            changes = (to_lower_case, to_sentence_case)
            expected = [{(change(plain[row][0]), plain[row][1]) for change in changes} for row in rows]
            assert all(pair in pairs for pair, pairs in zip(found, expected, strict=True))
        else:
            assert 0.3 < np.mean([pair == plain[row] for pair, row in zip(found, rows, strict=True)]) < 0.9


@pytest.mark.parametrize(
    "options",
    [
        {"lower_source": 1.0},
        dict.fromkeys(PAIR_MODIFIERS, 0.5),
        dict.fromkeys(PAIR_MODIFIERS, 1.0),
    ],
    ids=str,
)
def test_no_pair_is_lost_and_no_batch_exceeds_the_budget(
    options: dict[str, float], corpus: EncodedCorpus, small_tokenizers: TokenizerPair
) -> None:
    stream = make_stream(corpus, small_tokenizers, options)
    for epoch in range(2):
        batches = all_batches(stream, epoch)
        assert sorted(row for batch in batches for row in batch.rows.tolist()) == [*range(len(corpus))]
        for batch in batches:
            assert len(batch.rows) == 1 or (batch.labels.numel() <= BUDGET and batch.src.numel() <= 2 * BUDGET)


def test_text_that_the_vocabulary_cannot_spell_is_not_used(make_corpus: Callable[..., EncodedCorpus]) -> None:
    """A loaded vocabulary may lack byte fallback. `word` stands for one here."""
    pairs = load_pairs("test")[:20]
    tokenizers = build_tokenizers(TokenizerConfig(kind="word", vocab_size=500, min_frequency=1), pairs)
    corpus = make_corpus(*(tokenizers.src.encode([pair[side] for pair in pairs]) for side in (0, 1)))
    batches = all_batches(make_stream(corpus, tokenizers, {"typos": 1.0}))
    assert not any((batch.src == tokenizers.src.unk_id).any() for batch in batches)
    assert {pair for found in texts(batches, tokenizers) for pair in found} & {*pairs}


def double(pairs: Sequence[Pair], _rng: random.Random) -> list[Pair]:
    return [(f"{src} {src}", f"{tgt} {tgt}") for src, tgt in pairs]


def double_some(pairs: Sequence[Pair], rng: random.Random) -> list[Pair]:
    return double(pairs, rng) if rng.random() < 0.5 else [*pairs]


def test_results_that_are_too_long_are_not_used(corpus: EncodedCorpus, small_tokenizers: TokenizerPair) -> None:
    longest = 1 + max(int(side.lengths_of(0, len(side)).max()) for side in corpus.sides)
    plain = {*load_pairs("test")[:120]}
    batches = all_batches(make_modified_stream(corpus, BatchModifier(small_tokenizers, BUDGET, 1, longest, double)))
    assert max(batch.labels.size(1) for batch in batches) <= longest
    is_unchanged = [pair in plain for pairs in texts(batches, small_tokenizers) for pair in pairs]
    assert any(is_unchanged) and not all(is_unchanged)


ALL = dict.fromkeys(PAIR_MODIFIERS, 0.5)


def ids(batches: Sequence[Batch]) -> list[tuple[list[list[int]], list[list[int]]]]:
    return [(batch.src.tolist(), batch.labels.tolist()) for batch in batches]


@pytest.mark.parametrize("cuts", [[1] * 12, [5, 7]])
def test_batches_do_not_depend_on_where_the_stream_is_resumed(
    cuts: list[int], corpus: EncodedCorpus, small_tokenizers: TokenizerPair
) -> None:
    whole, _ = make_stream(corpus, small_tokenizers, ALL).take(StreamPosition(), 12)
    position, parts = StreamPosition(), list[Batch]()
    for count in cuts:
        batches, position = make_stream(corpus, small_tokenizers, ALL).take(position, count)
        parts += batches
    assert ids(parts) == ids(whole)
    later = all_batches(make_stream(corpus, small_tokenizers, ALL), epoch=1)
    assert {pair for pairs in texts(later, small_tokenizers) for pair in pairs} != {
        pair for pairs in texts(whole, small_tokenizers) for pair in pairs
    }


def test_two_ranks_see_the_modified_pairs_of_one(corpus: EncodedCorpus, small_tokenizers: TokenizerPair) -> None:
    """Also the places in the step, which decide the dropout, of batches that are split."""
    stream = make_modified_stream(corpus, BatchModifier(small_tokenizers, BUDGET, 1, 256, double_some))
    whole, after = stream.take(StreamPosition(), 12)
    shares = [stream.take(StreamPosition(), 12, rank, 2) for rank in (0, 1)]
    assert [position for _, position in shares] == [after, after]
    together = sorted((batch for batches, _ in shares for batch in batches), key=lambda batch: batch.place)
    assert ids(together) == ids(whole)
    places = [batch.place for batch in whole]
    assert [batch.place for batch in together] == places
    assert len({*places}) == len(places) > len({number for number, _ in places}) == 12


def test_validation_is_never_modified(corpus: EncodedCorpus, small_tokenizers: TokenizerPair) -> None:
    streams = [make_stream(corpus, small_tokenizers, options).shortest_first() for options in (ALL, None)]
    found, plain = ([pair for pairs in texts([*batches], small_tokenizers) for pair in pairs] for batches in streams)
    assert sorted(found) == sorted(plain)


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modifiers: {typo: 0.1}", 'data.modifiers.typo: unknown key, did you mean "typos"?'),
        ("modifiers: {typos: 2}", "data.modifiers.typos: must be less than or equal to 1, not"),
        ("modifiers: {typos: 1}\ntokenizer: {kind: word}", "data.modifiers: need a vocabulary that spells every word"),
    ],
)
def test_wrong_modifiers_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"data:\n  src_lang: en\n  tgt_lang: de\n  train: {{src: s, tgt: t}}\n  {text}\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        configuration.load(path)
    assert message in str(caught.value) and str(caught.value).startswith(f"{path}:5: ")


def test_a_vocabulary_is_learned_from_text_with_changed_case() -> None:
    pairs = [("One Two", "Eins Zwei")] * 400
    found = TokenizerTrainingPairs(pairs, ModifierConfig(lower_source=0.5), 1)
    counts = Counter(found)
    assert counts.keys() == {("One Two", "Eins Zwei"), ("one two", "Eins Zwei"), ("One two", "Eins Zwei")}
    assert 60 < counts["one two", "Eins Zwei"] < 140 and len(found) == 400
    assert [*found] == [*found]


# --- Upper case, lower case, sentence case and title case -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_upper", "sentence"),
    [
        ('A MAN. "HE SLEEPS!" 3 KG?', True, 'A man. "He sleeps!" 3 kg?'),
        ("OPEN AT McDONALD'S ... (NOW)", True, "Open at mcdonald's ... (Now)"),
        ("СОБАКА СПИТ. Я ТОЖЕ", True, "Собака спит. Я тоже"),
        ("McDonald's", False, "Mcdonald's"),
        ("12 我来了", False, "12 我来了"),
        ("", False, ""),
    ],
)
def test_capitals_become_sentence_case(text: str, is_upper: bool, sentence: str) -> None:
    assert is_upper_case(text) == is_upper and to_sentence_case(text) == sentence


def test_title_case_needs_several_words() -> None:
    assert is_title_case("The Dog's Big, Red 3 Balls") and is_title_case("Большая Собака Громко Лает")
    assert not any(map(is_title_case, ("Angela Merkel Spricht", "A Man in a Red Shirt", "我来了。他走了。", "1 2 3 4")))


def test_turkish_letters_keep_their_dots() -> None:
    assert to_sentence_case("ISPARTA VE İZMİR", "tr") == "Isparta ve izmir"
    assert (to_upper_case("ısı için", "tr"), to_lower_case("ISI İÇİN", "tr")) == ("ISI İÇİN", "ısı için")
