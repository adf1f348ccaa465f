"""Scores by length, F1 by frequency and differing sentences equal values that are computed by hand."""

from __future__ import annotations

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.tools.analysis.breakdown import (
    compute_f1_by_frequency,
    count_words,
    find_most_different,
    score_by_length,
)

GERMAN = Scorer("13a", "de")


def test_sentences_are_ordered_by_their_range_of_chrf() -> None:
    references, sources = ["ein Hund", "eine Katze", "zwei Hunde", "drei"], ["a", "b", "c", "d"]
    systems = [["ein Hund", "eine", "x", "drei"], ["ein Hund", "eine Katze", "zwei Hunde", "dre"]]
    found = find_most_different(systems, sources, references, GERMAN, 5)
    assert [sentence.line for sentence in found] == [3, 2, 4], "equal translations are left out"
    assert (found[0].source, found[0].reference, found[0].translations) == ("c", "zwei Hunde", ["x", "zwei Hunde"])
    assert found[0].chrf == pytest.approx([0, 100])
    chrf = CHRF()
    assert found[1].chrf == [chrf.sentence_score(text, ["eine Katze"]).score for text in ("eine", "eine Katze")]
    assert [sentence.line for sentence in find_most_different(systems, None, references, GERMAN, 1)] == [3]
    assert find_most_different(systems, None, references, GERMAN, 0) == []


def test_scores_are_computed_by_length() -> None:
    """The full stop is a word: the first reference has 10 words, the second 11."""
    references = [" ".join(["wort"] * 9) + ".", " ".join(["wort"] * 10) + ".", " ".join(["so"] * 61), ""]
    systems = [[*references], ["wort wort", "wort wort wort wort wort", "", "x"]]
    found = score_by_length(systems, references, GERMAN)
    assert [(bucket.words, bucket.pairs) for bucket in found] == [("0-10", 2), ("11-20", 1), (">60", 1)]
    assert [bucket.bleu[0] for bucket in found] == pytest.approx([100] * 3)
    expected = BLEU().corpus_score([systems[1][0], "x"], [[references[0], ""]]).score
    assert found[0].bleu[1] == pytest.approx(expected)
    assert found[1].chrf == pytest.approx([100, CHRF().corpus_score([systems[1][1]], [[references[1]]]).score])
    assert (found[2].bleu[1], found[2].chrf[1]) == (0, 0)


def test_f1_is_computed_by_training_frequency() -> None:
    """The training text has a 101 times, b 3 times, c once, and no d."""
    training = [["a " * 100], ["a b b", "b c", "e e e e e e"]]
    references = ["a b c d", "a a b", "d"]
    first = ["a b c d", "a b b", "d"]  # matches, words, reference words: a 2 2 3, b 2 3 2, c 1 1 1, d 2 2 2
    second = ["b a", "a a a", "e c"]  # a 3 4 3, b 1 1 2, c 0 1 1, d 0 0 2
    found = compute_f1_by_frequency([first, second], references, iter(training), GERMAN)
    assert [(bucket.frequency, bucket.words) for bucket in found] == [("0", 2), ("1", 1), ("2-5", 2), (">100", 3)]
    expected = [[100, 0], [100, 0], [100 * 4 / 5, 100 * 2 / 3], [100 * 4 / 5, 100 * 6 / 7]]
    for bucket, f1 in zip(found, expected, strict=True):
        assert bucket.f1 == pytest.approx(f1)


def test_words_are_the_tokens_of_bleu() -> None:
    assert count_words([["Wer? Er, Wer"]], {"Wer", "?", "wer"}, GERMAN) == {"Wer": 2, "?": 1}
    assert count_words([["他买了书。"]], {"书", "他"}, Scorer("zh", "zh")) == {"书": 1, "他": 1}
