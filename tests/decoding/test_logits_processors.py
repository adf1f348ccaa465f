"""Logits processors, compared with the same rules in plain lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.search import (
    BeamState,
    ForcedTag,
    Hypothesis,
    LogitsProcessor,
    MinLength,
    beam_candidates,
    beam_search,
)

Scores = Callable[[list[list[int]]], list[list[float]]]
ReferenceSearch = Callable[..., list[Hypothesis]]
AssertSame = Callable[[Sequence[Hypothesis], Sequence[Hypothesis]], None]
BOS, EOS, NEG_INF = -1, 0, -math.inf
LIMITS = [9, 3, 12, 7, 12, 1]
BEAMS = pytest.mark.parametrize("beam", [1, 2, 5])


def run_search(
    toy: Any, config: DecodingConfig, *rules: LogitsProcessor, limits: Sequence[int] = LIMITS
) -> list[list[Hypothesis]]:
    beams = BeamState(torch.tensor(limits), config.beam, BOS, EOS, config.length_normalize)
    return beam_search(toy.step, toy, beams, beam_candidates, [MinLength(config.min_length, EOS), *rules])


def with_rule(scores: Scores, rule: Callable[[list[int], list[float]], list[float]]) -> Scores:
    """Return log-probabilities that a rule changes for each prefix."""
    return lambda prefixes: [rule(ids, row) for ids, row in zip(prefixes, scores(prefixes), strict=True)]


# --- tags -----------------------------------------------------------------------------------------------------------


@BEAMS
def test_forced_tag_equals_reference(
    toy: Any, reference_search: ReferenceSearch, assert_same: AssertSame, beam: int
) -> None:
    """The tag has a log-probability of 0."""
    tags = [3, 2, 1, 4, 5, 5]
    config, language = DecodingConfig(beam=beam), toy(range(len(LIMITS)), 6)
    found = run_search(language, config, ForcedTag(tags, torch.device("cpu")))
    for i, tag in enumerate(tags):

        def force(ids: list[int], row: list[float], tag: int = tag) -> list[float]:
            return row if ids else [0.0 if token == tag else NEG_INF for token in range(len(row))]

        assert_same(found[i], reference_search(with_rule(language.scores(i), force), LIMITS[i], config))
        for one in found[i]:
            assert (one.ids[0], one.log_probs[0]) == (tag, 0.0)


# --- minimum length ---------------------------------------------------------------------------------------------------


@BEAMS
@pytest.mark.parametrize("least", [0, 1, 2, 5, 40])
def test_min_length_equals_reference(
    toy: Any, reference_search: ReferenceSearch, assert_same: AssertSame, least: int, beam: int
) -> None:
    """The maximum length takes precedence."""
    config, language = DecodingConfig(beam=beam, min_length=least), toy(range(len(LIMITS)), 3)
    shortest: list[int] = []
    for i, found in enumerate(run_search(language, config)):
        assert_same(found, reference_search(language.scores(i), LIMITS[i], config))
        assert all(len(one.ids) >= least if one.finished else len(one.ids) == LIMITS[i] for one in found)
        shortest += [len(one.ids) for one in found if one.finished]
    assert min(shortest, default=least) == least
