"""Random sampling: frequencies match the probabilities, and draws do not depend on the batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.search import (
    BeamState,
    Candidates,
    Hypothesis,
    MinLength,
    Sampler,
    beam_search,
)

BOS, EOS = -1, 0
DRAWS = 20_000
SCORES = torch.tensor([0.3, 0.05, 0.25, 0.02, 0.2, 0.1, 0.08]).log()
LINE_NUMBERS = list(range(1, DRAWS + 1))


def options(**settings: Any) -> DecodingConfig:
    return DecodingConfig.model_validate({"sample": True, **settings})


def sampler(config: DecodingConfig, line_numbers: list[int]) -> Sampler:
    return Sampler(config.temperature, config.top_k, config.top_p, config.seed, torch.tensor(line_numbers))


def beams_of(n: int, n_beams: int) -> BeamState:
    return BeamState(torch.full((n,), 9), n_beams, BOS, EOS, DecodingConfig().length_normalize)


def first_draws(scores: Tensor, config: DecodingConfig, line_numbers: list[int] = LINE_NUMBERS) -> Candidates:
    """Draw the first token of one sentence per line, all with the same log-probabilities."""
    beams = beams_of(len(line_numbers), config.n_beams)
    return sampler(config, line_numbers)(beams, scores.expand(len(line_numbers), 1, -1), slice(0, len(line_numbers)))


def run_search(toy: Any, line_numbers: list[int], config: DecodingConfig, limit: int = 8) -> list[list[Hypothesis]]:
    """Sample translations of the toy sentences with these line numbers."""
    state = toy(line_numbers, 7)
    beams = BeamState(torch.full((len(line_numbers),), limit), config.n_beams, BOS, EOS, config.length_normalize)
    return beam_search(state.step, state, beams, sampler(config, line_numbers), [MinLength(config.min_length, EOS)])


def assert_drawn_from(tokens: Tensor, probabilities: Tensor) -> None:
    """Assert that chi square is below its mean plus 5 standard deviations, and that impossible tokens never occur."""
    counts, expected = torch.bincount(tokens.flatten(), minlength=len(probabilities)), probabilities * tokens.numel()
    assert not counts[probabilities == 0].any()
    taken = probabilities > 0
    chi_square = ((counts - expected).square() / expected)[taken].sum().item()
    freedom = int(taken.sum()) - 1
    assert chi_square <= freedom + 5 * math.sqrt(2 * freedom), (chi_square, counts, expected)


def kept(probabilities: list[float]) -> Tensor:
    left = torch.tensor(probabilities)
    return left / left.sum()


# --- frequencies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize(
    ("settings", "probabilities"),
    [
        ({}, SCORES.exp()),
        ({"temperature": 0.5}, (2 * SCORES).softmax(0)),
        ({"temperature": 0.001}, kept([1, 0, 0, 0, 0, 0, 0])),
        ({"top_k": 1}, kept([1, 0, 0, 0, 0, 0, 0])),
        ({"top_k": 3}, kept([0.3, 0, 0.25, 0, 0.2, 0, 0])),
        ({"top_k": 1000}, SCORES.exp()),
        ({"top_p": 1e-9}, kept([1, 0, 0, 0, 0, 0, 0])),
        ({"top_p": 0.5}, kept([0.3, 0, 0.25, 0, 0, 0, 0])),
        ({"top_p": 0.76}, kept([0.3, 0, 0.25, 0, 0.2, 0.1, 0])),
        ({"top_k": 4, "top_p": 0.8}, kept([0.3, 0, 0.25, 0, 0.2, 0, 0])),
        ({"top_p": 0.5, "temperature": 0.5}, kept([0.3**2, 0, 0.25**2, 0, 0, 0, 0])),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_token_frequencies_match_the_probabilities(settings: dict[str, Any], probabilities: Tensor, seed: int) -> None:
    """`top_p` sums probabilities at the temperature and after `top_k`. 0.76 needs a token beyond 0.3 + 0.25 + 0.2."""
    found = first_draws(SCORES, options(seed=seed, **settings))
    assert_drawn_from(found.tokens, probabilities)
    assert torch.equal(found.log_probs, SCORES[found.tokens]), "scores are log-probabilities of the model"


def test_tiny_top_p_keeps_the_most_likely_token() -> None:
    """The value is below the smallest fp32 number, and the token is not the first."""
    assert (first_draws(SCORES.flip(0), options(top_p=1e-46)).tokens == len(SCORES) - 1).all()


def test_forbidden_tokens_are_never_drawn() -> None:
    scores = SCORES.clone()
    scores[[0, 4]] = -math.inf
    for settings in ({}, {"top_k": 6}, {"top_p": 0.999}, {"temperature": 50}):
        assert not torch.isin(first_draws(scores, options(**settings)).tokens, torch.tensor([0, 4])).any()


def test_beams_are_drawn_independently() -> None:
    """Pairs of first tokens have the product of their probabilities."""
    found = first_draws(SCORES, options(n_best=2)).tokens  # [n, 2]
    both = (SCORES.exp()[:, None] * SCORES.exp()).flatten()
    assert_drawn_from(found[:, 0] * len(SCORES) + found[:, 1], both)


def test_positions_and_lines_are_drawn_independently() -> None:
    config, beams = options(), beams_of(DRAWS, 1)
    pairs = [first_draws(SCORES, config).tokens]
    beams.position = 1
    pairs.append(sampler(config, LINE_NUMBERS)(beams, SCORES.expand(DRAWS, 1, -1), slice(0, DRAWS)).tokens)
    both = (SCORES.exp()[:, None] * SCORES.exp()).flatten()
    assert_drawn_from(pairs[0] * len(SCORES) + pairs[1], both)
    assert_drawn_from(pairs[0][:-1] * len(SCORES) + pairs[0][1:], both)


# --- independence of the batch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_best", [1, 3])
def test_draw_depends_only_on_seed_and_line(toy: Any, n_best: int) -> None:
    config, line_numbers = options(n_best=n_best, seed=5, min_length=0), [3, 9, 1, 40, 12, 7, 8]
    together = run_search(toy, line_numbers, config)
    assert together == [run_search(toy, [number], config)[0] for number in line_numbers]
    assert run_search(toy, line_numbers[::-1], config) == together[::-1]
    assert together != run_search(toy, line_numbers, config.with_options({"seed": 6}))


def test_samples_of_a_sentence_differ_and_are_sorted(toy: Any) -> None:
    for found in run_search(toy, list(range(1, 21)), options(n_best=6)):
        assert len({tuple(one.ids) for one in found}) > 2
        flags, ranks = [one.finished for one in found], [one.ranking_score for one in found if one.finished]
        assert (flags, ranks) == (sorted(flags, reverse=True), sorted(ranks, reverse=True))


def test_scores_of_samples_are_model_log_probs(toy: Any) -> None:
    for line, found in zip(
        [4, 5, 6], run_search(toy, [4, 5, 6], options(n_best=4, temperature=2.0, top_k=5)), strict=True
    ):
        scores = toy([line], 7).scores(line)
        for one in found:
            tokens = one.ids + [EOS] * one.finished
            assert one.log_probs == pytest.approx([scores([tokens[:t]])[0][token] for t, token in enumerate(tokens)])
            assert one.ranking_score == pytest.approx(one.score / len(tokens))
