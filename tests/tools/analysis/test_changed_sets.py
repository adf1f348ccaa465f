"""Changed copies of a test set, and the scores of systems with known strengths."""

from __future__ import annotations

import pytest

from transformer_mt.evaluation.metrics import EvaluationSet, Scorer, Texts
from transformer_mt.tools.analysis.changed_sets import make_changed_sets, measure_robustness

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
        assert 1 <= sum(old != new for old, new in words) <= 2  # a double letter may be swapped with itself
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
