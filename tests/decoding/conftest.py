"""Reference beam search in plain lists, and a toy step function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from search_helpers import Scores, Toy

from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Hypothesis

NEG_INF = -math.inf


@pytest.fixture(scope="session")
def toy() -> type[Toy]:
    """`toy(sentences, vocab)`."""
    return Toy


def reference_beam_search(scores: Scores, limit: int, config: DecodingConfig, eos: int = 0) -> list[Hypothesis]:
    """Search one sentence in plain lists, with the formulas of `DecodingConfig` repeated here."""

    def rank(total: float, length: int) -> float:
        return total / length**config.length_penalty_exponent

    branches: list[tuple[list[int], list[float]]] = [([], [])]
    ended: list[Hypothesis] = []
    for position in range(limit):
        candidates = [
            (sum(log_probs) + log_prob, [*ids, token], [*log_probs, log_prob])
            for (ids, log_probs), row in zip(branches, scores([ids for ids, _ in branches]), strict=True)
            for token, log_prob in enumerate(row)
            if log_prob > NEG_INF and (token != eos or position >= config.min_length)
        ]
        candidates.sort(reverse=True)
        for total, ids, log_probs in candidates[: config.beam]:
            if ids[-1] == eos:
                ended.append(Hypothesis(ids[:-1], log_probs, finished=True, ranking_score=rank(total, position + 1)))
        ended = sorted(ended, key=lambda one: -one.ranking_score)[: config.beam]
        branches = [(ids, log_probs) for _, ids, log_probs in candidates if ids[-1] != eos][: config.beam]
        if len(ended) == config.beam or not branches:
            return ended
    cut = [
        Hypothesis(ids, log_probs, finished=False, ranking_score=rank(sum(log_probs), limit))
        for ids, log_probs in branches
    ]
    return (ended + cut)[: config.beam]


def assert_same_hypotheses(found: Sequence[Hypothesis], wanted: Sequence[Hypothesis]) -> None:
    """Assert that two lists have the same hypotheses in the same order, with equal scores."""
    assert [(one.ids, one.finished) for one in found] == [(one.ids, one.finished) for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=2e-5)
        assert ours.ranking_score == pytest.approx(theirs.ranking_score, abs=1e-4)


@pytest.fixture(scope="session")
def reference_search() -> Callable[..., list[Hypothesis]]:
    """`reference_search(scores, limit, config, eos)` searches one sentence in plain lists."""
    return reference_beam_search


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Sequence[Hypothesis], Sequence[Hypothesis]], None]:
    """`assert_same(found, wanted)` compares two lists of hypotheses."""
    return assert_same_hypotheses
