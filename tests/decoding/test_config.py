"""The configuration section `decoding`: formulas and refused values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.errors import UserError


@pytest.mark.parametrize(
    ("settings", "total", "length", "rank"),
    [
        ({}, -6.0, 4, -1.5),
        ({"length_penalty_exponent": 0}, -6.0, 4, -6.0),
        ({"length_penalty_exponent": 2}, -6.0, 4, -0.375),
    ],
)
def test_length_penalty_matches_worked_examples(
    settings: dict[str, Any], total: float, length: int, rank: float
) -> None:
    """Trap 28: examples worked out by hand from the documented formula."""
    found = DecodingConfig.model_validate(settings).length_normalize(torch.tensor([total, -torch.inf]), length)
    assert found.tolist() == pytest.approx([rank, -torch.inf])


def test_largest_exponent_does_not_overflow() -> None:
    found = DecodingConfig(length_penalty_exponent=10).length_normalize(torch.tensor([-100.0, -200.0]), 2058)
    assert found[0] > found[1]


def test_max_target_tokens() -> None:
    config = DecodingConfig(max_length_factor=1.5, max_length_offset=3)
    assert [config.max_target_tokens(tokens) for tokens in (0, 1, 2, 7)] == [3, 4, 6, 13]
    assert DecodingConfig(min_length=300).max_target_tokens(5) == 301  # with EOS


def test_method_name() -> None:
    found = [DecodingConfig.model_validate(one).method for one in ({}, {"beam": 1}, {"sample": True, "beam": 1})]
    assert found == ["beam 5", "greedy", "sampled"]


def test_validation_is_greedy_and_keeps_only_length_limits() -> None:
    limits = {"max_length_factor": 1.5, "max_length_offset": 3, "max_source_length": 99, "batch_tokens": 77}
    ours = {"beam": 7, "n_best": 3, "min_length": 4, "sample": True}
    config = DecodingConfig.model_validate({**limits, **ours}).for_validation()
    assert config == DecodingConfig.model_validate({**limits, "beam": 1, "min_length": 0})


def test_validation_on_a_large_gpu_decodes_larger_batches() -> None:
    """The size of the GPU decides, up to the batch size of translation."""
    sizes = [DecodingConfig().validation_batch_tokens(gib << 30) for gib in (0, 4, 16, 40, 80)]
    assert sizes == sorted(sizes) and sizes[0] == sizes[1] < sizes[2] < sizes[3]
    assert sizes[-1] == DecodingConfig().batch_tokens
    assert DecodingConfig(batch_tokens=77).validation_batch_tokens(80 << 30) == 77


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bean": 3}, 'decoding.bean: unknown key, did you mean "beam"?'),
        ({"n_best": 6}, r"decoding.n_best: 6 translations out of a beam of 5: raise decoding.beam \(--beam\)"),
        ({"temperature": 1e-50}, "decoding.temperature: must be greater than or equal to 0.001, not 1e-50"),
        ({"sample": True, "n_best": 10**20}, "decoding.n_best: 1.* at most 128.*"),
        ({"beam": 129}, "decoding.beam: 129: .* at most 128.*"),
        ({"max_length_offset": 10**20}, "decoding.max_length_offset: .* less than or equal to 1000000, not 1.*"),
        ({"beam": None}, "decoding.beam: must be a valid integer, not nothing"),
    ],
)
def test_invalid_options_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=f"^{said.replace('?', '[?]')}$"):
        DecodingConfig().with_options(change)
