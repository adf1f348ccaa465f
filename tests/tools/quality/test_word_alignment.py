"""Word alignment with a dictionary that is learned from the corpus."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.tools.quality.lexicon import (
    AlignedPair,
    WordDictionary,
    find_words,
    learn_dictionary,
    tokenize_words,
)

WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("a", "i", "o")]  # of an invented language
TRANSLATIONS = {word: word[::-1].capitalize() for word in WORDS}


def make_pairs(count: int, seed: int = 1) -> list[tuple[list[str], list[int]]]:
    """Return sources of distinct words, and an order of their translations that is mostly that of the source."""
    rng = random.Random(seed)
    pairs: list[tuple[list[str], list[int]]] = []
    for _ in range(count):
        words = rng.sample(WORDS, rng.randint(4, 9))
        order = [*range(len(words))]
        i = rng.randrange(len(words) - 1)
        order[i : i + 2] = order[i + 1], order[i]
        pairs.append((words, order))
    return pairs


def to_text(words: list[str], order: list[int]) -> tuple[str, str]:
    return " ".join(words), " ".join(TRANSLATIONS[words[i]] for i in order) + "."


@pytest.fixture(scope="module")
def dictionary() -> WordDictionary:
    return WordDictionary.learn([[to_text(*pair) for pair in make_pairs(400)]])


def linked(pair: AlignedPair) -> dict[str, str]:
    return {
        pair.src[slice(*pair.src_words[i])]: pair.tgt[slice(*pair.tgt_words[j])] for i, j in sorted(pair.links.items())
    }


def test_words_are_linked_to_their_translations(dictionary: WordDictionary) -> None:
    for words, order in make_pairs(50, seed=2):
        pair = dictionary.align(*to_text(words, order))
        assert pair.links == {i: j for j, i in enumerate(order)}
        assert linked(pair) == {word: TRANSLATIONS[word] for word in words}


def test_of_repeated_words_those_at_the_same_places_are_linked(dictionary: WordDictionary) -> None:
    words = [WORDS[i] for i in (0, 5, 0, 7, 0)]
    assert dictionary.align(*to_text(words, [*range(5)])).links == {i: i for i in range(5)}


def test_an_unknown_word_between_linked_neighbours_is_linked(dictionary: WordDictionary) -> None:
    src, tgt = to_text(WORDS[:5], [*range(5)])
    src, tgt = src.replace(WORDS[2], "zebra"), tgt.replace(TRANSLATIONS[WORDS[2]], "Streifenpferd")
    assert linked(dictionary.align(src, tgt))["zebra"] == "Streifenpferd"


def test_equal_names_and_numbers_are_linked_anywhere(dictionary: WordDictionary) -> None:
    src, tgt = to_text(WORDS[:4], [*range(4)])
    found = linked(dictionary.align(f"Nikola {src} 42", f"42 {tgt} Nikola"))
    assert (found["Nikola"], found["42"]) == ("Nikola", "42")


def test_unrelated_sentences_have_no_links(dictionary: WordDictionary) -> None:
    pair = dictionary.align(" ".join(WORDS[:6]), " ".join(TRANSLATIONS[word] for word in WORDS[10:16]))
    assert not pair.links


def test_another_word_moves_the_words_after_it(dictionary: WordDictionary) -> None:
    pair = dictionary.align("ba di go", "Ab Id Og").with_word(1, "longer")
    assert pair.src == "ba longer go"
    assert [pair.src[slice(*word)] for word in pair.src_words] == ["ba", "longer", "go"]


def test_frequent_words_are_not_content() -> None:
    pairs = [(f"the {word}", f"Det {TRANSLATIONS[word]}") for word in WORDS * 3]
    pair = WordDictionary.learn([pairs]).align("the unheard", "Det Unheard")
    assert pair.content == {1}


@pytest.mark.parametrize("text", ["", "Straße, İstanbul", "नमस्ते दुनिया", "ไทย ภาษา", "我有3本书。", "it's a T-shirt"])
def test_places_of_words_are_those_of_the_lexicon(text: str) -> None:
    assert [text[start:end].casefold() for start, end in find_words(text)] == tokenize_words(text)


def test_a_dictionary_of_several_sources_has_the_words_of_each() -> None:
    first, second = [to_text(*pair) for pair in make_pairs(400)], [(f"x{i % 9}", f"y{i % 9}") for i in range(90)]
    dictionary = WordDictionary.learn([first, second])
    assert dictionary.align("x1 x2", "y1 y2").links == {0: 0, 1: 1}
    assert dictionary.align(*to_text(WORDS[:4], [0, 1, 2, 3])).links == {i: i for i in range(4)}


def test_a_cached_dictionary_is_read_until_the_corpus_changes(
    write_corpus: Callable[..., ParallelCorpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [to_text(*pair) for pair in make_pairs(60)]
    corpus = write_corpus(pairs)
    learned = learn_dictionary(corpus, Path("cache"))
    assert learned == WordDictionary.learn([pairs])
    calls: list[int] = []
    learn = WordDictionary.learn
    monkeypatch.setattr(WordDictionary, "learn", lambda sources: (calls.append(1), learn(sources))[1])
    assert learn_dictionary(corpus, Path("cache")) == learned and not calls
    learn_dictionary(write_corpus(pairs[:30], "other"), Path("cache"))
    assert calls
