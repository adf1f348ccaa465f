"""Scores by length and differing sentences equal values that are computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.evaluation.metrics import EvaluationSet, Scorer, Texts
from transformer_mt.tools.analysis.breakdown import (
    TextPart,
    find_most_different,
    mark_differences,
    score_by_length,
)
from transformer_mt.tools.analysis.changed_sets import make_changed_sets, measure_robustness

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
    assert [(bucket.label, bucket.pairs) for bucket in found] == [("0-10", 2), ("11-20", 1), (">60", 1)]
    assert [bucket.bleu[0] for bucket in found] == pytest.approx([100] * 3)
    expected = BLEU().corpus_score([systems[1][0], "x"], [[references[0], ""]]).score
    assert found[0].bleu[1] == pytest.approx(expected)
    assert found[1].chrf == pytest.approx([100, CHRF().corpus_score([systems[1][1]], [[references[1]]]).score])
    assert (found[2].bleu[1], found[2].chrf[1]) == (0, 0)


# --- Changed copies of a test set, and the scores of systems with known strengths -------------------------------------

SOURCES = ["The dogs sleep, today.", "A woman sings loudly!", "Who is there under trees?"]
DATA = EvaluationSet("test", SOURCES, SOURCES, Scorer("13a", "en"))


def test_the_sources_are_changed_as_users_write() -> None:
    sets = {changed.data.name: changed for changed in make_changed_sets(DATA)}
    sources = {name: changed.data.sources[0] for name, changed in sets.items()}
    assert sources["upper case"] == "THE DOGS SLEEP, TODAY."
    assert sources["title case"] == "The Dogs Sleep, Today."
    assert sources["no end punctuation"] == "The dogs sleep, today"
    assert sources["spaces before punctuation"] == "The dogs sleep , today ."
    for source, changed in zip(SOURCES, sets["two typing errors"].data.sources, strict=True):
        words = zip(source.split(), changed.split(), strict=True)
        assert 1 <= sum(old != new for old, new in words) <= 2  # a double letter may be exchanged with itself
    for name in ("emoji", "number"):
        for text, source, reference in zip(
            sets[name].inserted, sets[name].data.sources, sets[name].data.references, strict=True
        ):
            assert text in source and source == reference
    again = [changed.data.sources for changed in make_changed_sets(DATA)]
    assert again == [changed.data.sources for changed in sets.values()]


def test_scores_show_what_a_system_cannot_do() -> None:
    def copy_without_emoji(data: EvaluationSet) -> Texts:
        return ["".join(sign for sign in text if ord(sign) < 0x2000) for text in data.sources]

    scores = {score.name: score for score in measure_robustness(DATA, copy_without_emoji)}
    assert scores["unchanged"].bleu == pytest.approx(100)
    assert scores["upper case"].share == pytest.approx(1) and scores["number"].kept == 1
    assert scores["emoji"].kept == 0
    lower, typos = scores["lower-case source"].share, scores["two typing errors"].share
    assert lower is not None and lower < 0.9 and typos is not None and typos < 0.9


def test_copies_without_a_change_are_left_out() -> None:
    data = EvaluationSet("test", ["我来了"], ["他走了"], Scorer("zh", "zh"))
    assert {changed.data.name for changed in make_changed_sets(data)} == {"emoji", "number"}


# --- Words in which a translation and its reference differ ------------------------------------------------------------

WORDS = st.lists(st.sampled_from(["ein", "Hund", "schläft", ",", "nicht", "हिन्दी", "\u0301"]), max_size=8).map(" ".join)


def different(parts: list[TextPart]) -> list[str]:
    return [part.text.strip() for part in parts if not part.is_common]


def test_words_of_one_text_alone_are_marked() -> None:
    ours, theirs = mark_differences("Das Schiff fährt ab.", "Die Schiffe fahren um acht ab.", "de")
    assert different(ours) == ["Das Schiff fährt"]
    assert different(theirs) == ["Die Schiffe fahren um acht"]
    assert [part.text for part in ours if part.is_common] == [" ab."]


def test_languages_without_spaces_are_compared_by_character() -> None:
    ours, theirs = mark_differences("我是猫", "我是狗", "zh")
    assert (different(ours), different(theirs)) == (["猫"], ["狗"])


@settings(deadline=None)
@given(WORDS, WORDS)
def test_marked_parts_join_to_the_text(translation: str, reference: str) -> None:
    for text, parts in zip((translation, reference), mark_differences(translation, reference, "de"), strict=True):
        assert "".join(part.text for part in parts) == text


@settings(deadline=None)
@given(WORDS, WORDS)
def test_common_words_are_the_same_in_both(translation: str, reference: str) -> None:
    ours, theirs = mark_differences(translation, reference, "de")
    common = [[word for part in parts if part.is_common for word in part.text.split()] for parts in (ours, theirs)]
    assert common[0] == common[1]
