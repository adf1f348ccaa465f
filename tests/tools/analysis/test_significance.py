"""The sentences that differ most equal those that are computed by hand."""

from __future__ import annotations

import pytest
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.tools.analysis.significance import find_most_different

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
