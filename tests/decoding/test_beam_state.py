"""The state of beam search in worked examples: finished hypotheses, limits, dropping and back pointers."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from torch import Tensor

from transformer_mt.decoding.search import COMPACTION_SHARE, BeamState, Candidates

NEG_INF = -math.inf
BOS, EOS = 1, 2
Row = list[tuple[float, float, int, int]]  # of each candidate: total, log_prob, parent, token


def sums(totals: Tensor, length: int) -> Tensor:
    """Rank by log-probability without a length penalty."""
    return totals


def candidates(*rows: Row) -> Candidates:
    totals, log_probs, parents, tokens = torch.tensor(rows).permute(2, 0, 1)
    return Candidates(totals, log_probs, parents.long(), tokens.long())


def beams(limits: list[int], n_beams: int = 2) -> BeamState:
    return BeamState(torch.tensor(limits), n_beams, BOS, EOS, sums)


def listed(tensor: Tensor | None) -> list[int]:
    assert tensor is not None
    return cast("list[int]", tensor.tolist())


def test_memory_does_not_depend_on_max_length() -> None:
    one = beams([10**12])
    one.advance(candidates([(-1.0, -1.0, 0, EOS), (-2.0, -2.0, 0, 5)]))
    one.advance(candidates([(-2.5, -0.5, 0, EOS), (-3.0, -1.0, 0, 6)]))
    one.drop_finished()
    ((best, other),) = one.hypotheses()
    assert (best.ids, other.ids) == ([], [5])


def test_worked_example_with_crossing_beams() -> None:
    """Two beams cross. One hypothesis finishes early, another in the beam that was second."""
    one = beams([9])
    parents = one.advance(
        candidates([(-1.0, -1.0, 0, 5), (-2.0, -2.0, 0, EOS), (-3.0, -3.0, 0, 6), (-4.0, -4.0, 0, 7)])
    )
    assert (listed(parents), listed(one.tokens), one.scores.tolist()) == ([[0, 0]], [[5, 6]], [[-1.0, -3.0]])
    assert one.drop_finished() is None
    parents = one.advance(
        candidates([(-3.5, -0.5, 1, 8), (-4.0, -3.0, 0, 9), (-5.0, -2.0, 1, EOS), (NEG_INF, 0, 0, 0)])
    )
    assert (listed(parents), listed(one.tokens)) == ([[1, 0]], [[8, 9]]), "EOS at rank three is ignored"
    assert one.drop_finished() is None
    one.advance(candidates([(-3.6, -0.1, 0, EOS), (-4.1, -0.1, 1, EOS), (-6.0, -2.0, 0, 3), (-7.0, -3.0, 1, 3)]))
    assert listed(one.drop_finished()) == []
    (first, second) = one.hypotheses()[0]
    assert (first.ids, first.log_probs, first.finished, first.ranking_score) == ([], [-2.0], True, -2.0)
    assert (second.ids, second.log_probs, second.finished) == ([6, 8], pytest.approx([-3.0, -0.5, -0.1]), True)
    assert second.ranking_score == pytest.approx(-3.6), "the score is that of the position of EOS"


def test_finished_hypotheses_are_replaced_only_by_better_ones() -> None:
    """Trap 27: the score of a finished hypothesis never changes."""
    one = beams([9], n_beams=3)
    seen: list[list[float]] = []
    for position, end in enumerate([-2.0, -5.0, -4.0]):
        total = -1.0 - position
        one.advance(
            candidates([(total, -1.0, 0, 5), (end, -0.5, 0, EOS), (total - 9, -9.0, 0, 6), (total - 9.5, -9.5, 0, 7)])
        )
        seen.append([rank for rank in one.finished.ranking_scores.flatten().tolist() if rank > NEG_INF])
        one.drop_finished()
    assert seen == [[-2.0], [-2.0, -5.0], [-2.0, -4.0, -5.0]]
    assert not (one.scores > NEG_INF).any(), "three hypotheses are finished, so that the search ends"
    assert [len(found.ids) for found in one.hypotheses()[0]] == [0, 2, 1]


def test_each_sentence_has_its_own_limit_and_unfinished_rank_last() -> None:
    """Traps 25 and 29: a sentence at its limit stays unchanged while the others continue."""
    three = beams([1] + [3] * 8)
    ends = [(-9.0, -9.0, 0, 5), (-9.5, -9.5, 0, EOS), (-10.0, -10.0, 0, 6), (-11.0, -11.0, 0, 7)]
    goes_on = [(-1.0, -1.0, 0, 5), (-2.0, -2.0, 0, 6), (-3.0, -3.0, 0, 7), (-4.0, -4.0, 0, 8)]
    dead = [(NEG_INF, 0.0, 0, 5)] * 4
    three.advance(candidates(ends, *[goes_on] * 8))
    assert three.drop_finished() is None, "one finished sentence of nine is too few"
    three.advance(candidates(dead, *[goes_on] * 8))
    assert three.drop_finished() is None
    three.advance(candidates(dead, *[goes_on] * 8))
    assert listed(three.drop_finished()) == []
    first, second, *_ = three.hypotheses()
    assert [(one.ids, one.finished) for one in first] == [([], True), ([5], False)], "finished hypotheses come first"
    assert [(one.ids, one.finished, one.ranking_score) for one in second] == [
        ([5, 5, 5], False, -1),
        ([5, 5, 6], False, -2),
    ]


def test_finished_sentences_are_dropped_once_enough_are_done() -> None:
    """The kept rows are returned, and results keep the order of the call."""
    many = beams([4] * 8)
    ended = [(-1.0, -1.0, 0, EOS), (-2.0, -2.0, 0, EOS), (-3.0, -3.0, 0, 6), (-4.0, -4.0, 0, 6)]
    goes_on = [(-1.0, -1.0, 0, 5), (-2.0, -2.0, 0, 6), (-3.0, -3.0, 0, 7), (-4.0, -4.0, 0, 8)]
    many.advance(candidates(*[goes_on] * 8))
    assert many.drop_finished() is None
    many.advance(candidates(*[ended if i in (0, 3, 7) else goes_on for i in range(8)]))
    assert COMPACTION_SHARE > 5 / 8
    assert listed(many.drop_finished()) == [1, 2, 4, 5, 6]
    assert (
        listed(many.sentences) == [1, 2, 4, 5, 6] and len(many.tokens) == len(many.scores) == len(many.max_lengths) == 5
    )
    many.advance(candidates(*[ended] * 5))
    assert listed(many.drop_finished()) == []
    lengths = [[len(one.ids) for one in found] for found in many.hypotheses()]
    assert lengths == [[1, 1] if i in (0, 3, 7) else [2, 2] for i in range(8)]


def test_impossible_candidates_are_ignored() -> None:
    """A beam without candidates ends, the other continues, and an impossible EOS is not a hypothesis."""
    one = beams([3])
    one.advance(
        candidates([(-1.0, -1.0, 0, 5), (NEG_INF, NEG_INF, 0, EOS), (NEG_INF, NEG_INF, 0, 0), (NEG_INF, NEG_INF, 0, 0)])
    )
    one.drop_finished()
    one.advance(
        candidates(
            [(-2.0, -1.0, 0, EOS), (NEG_INF, NEG_INF, 1, EOS), (NEG_INF, NEG_INF, 1, 0), (NEG_INF, NEG_INF, 1, 0)]
        )
    )
    assert listed(one.drop_finished()) == []
    assert [(found.ids, found.finished) for found in one.hypotheses()[0]] == [([5], True)]


@pytest.mark.parametrize("number", [NEG_INF, math.nan])
def test_no_candidate_at_all_gives_one_empty_hypothesis(number: float) -> None:
    nothing = beams([3, 3])
    nothing.advance(candidates(*[[(number, number, 0, 4)] * 4] * 2))
    assert listed(nothing.drop_finished()) == []
    found = nothing.hypotheses()
    assert [[(one.ids, one.finished, one.score) for one in of_one] for of_one in found] == [[([], False, NEG_INF)]] * 2
