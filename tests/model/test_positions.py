"""Positions equal their closed forms: traps 9 (exponent), 10 (overflow), 11 (checkpoint) and 12 (precision)."""

from __future__ import annotations

import math

import pytest
import torch

from transformer_mt.errors import UserError
from transformer_mt.model.positions import LearnedPositions, Rotary, SinusoidalPositions, rotate, sinusoidal_table


def rotate_by(rotary: Rotary, x: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Rotate columns whose positions begin at `start`. [B, H, L, E]"""
    return rotate(x, rotary(slice(start, start + x.size(2)), x.size(2)))


def added_positions(positions: SinusoidalPositions, start: int, length: int) -> torch.Tensor:
    """Return the vectors that are added from `start` on. [length, D]"""
    width = positions.table.size(1)
    at = slice(start, start + length)
    return positions(torch.zeros(1, length, width, dtype=positions.table.dtype), at)[0]


def closed_form(position: int, dim: int, d_model: int) -> float:
    angle = position / 10_000 ** (2 * (dim // 2) / d_model)
    return math.cos(angle) if dim % 2 else math.sin(angle)


@pytest.mark.parametrize("d_model", [2, 7, 8, 512])
@pytest.mark.parametrize("position", [0, 1, 2, 63, 1029])
def test_sinusoidal_table_equals_its_closed_form(position: int, d_model: int) -> None:
    """Trap 9; the last element of an odd width is a sine."""
    row = sinusoidal_table(1030, d_model)[position]
    wanted = [closed_form(position, dim, d_model) for dim in range(d_model)]
    torch.testing.assert_close(row, torch.tensor(wanted), atol=2e-4, rtol=0)  # fp32 angles of up to 1029


@pytest.mark.parametrize(("start", "length"), [(0, 3), (2, 2), (3, 2), (4, 1), (0, 40)])
def test_sinusoidal_positions_have_no_maximum(start: int, length: int) -> None:
    """Trap 10: within the table, up to its end, across it, and beyond it."""
    positions = SinusoidalPositions(8, length=4)
    torch.testing.assert_close(
        added_positions(positions, start, length), sinusoidal_table(64, 8)[start : start + length]
    )
    torch.testing.assert_close(added_positions(positions, 0, 2), sinusoidal_table(2, 8))


def test_the_table_is_computed_in_fp32_then_cast() -> None:
    """Trap 12, also when it grows."""
    positions = SinusoidalPositions(16, length=4)
    assert positions.table.dtype == torch.float32
    positions.to(torch.bfloat16)
    assert torch.equal(added_positions(positions, 0, 1030), sinusoidal_table(1030, 16).bfloat16())


def test_positions_are_distinct_under_autocast() -> None:
    """Trap 12: computed in bf16, only 514 would be distinct."""
    with torch.autocast("cpu", torch.bfloat16):
        found = added_positions(SinusoidalPositions(16, length=4), 0, 1030)
    assert torch.equal(found, sinusoidal_table(1030, 16))
    assert len(found.unique(dim=0)) == 1030


# --- learned ----------------------------------------------------------------------------------------------------------


def test_learned_positions_beyond_the_maximum_are_refused() -> None:
    positions, x = LearnedPositions(8, 5), torch.randn(2, 3, 8)
    torch.testing.assert_close(positions(x, slice(2, 5)), x + positions.table[2:5])
    with pytest.raises(UserError, match=r"sequence has 6 tokens, .* learned 5 positions: .*model\.max_positions"):
        positions(x, slice(3, 6))


# --- rotary -----------------------------------------------------------------------------------------------------------


def test_rotary_equals_a_complex_product() -> None:
    """Su et al. 2021, section 3.4: pair i is rotated by position / 10000^(2i / E)."""
    x, start = torch.randn(2, 3, 7, 10), 4
    pairs = torch.complex(*x.double().chunk(2, dim=-1))  # [2, 3, 7, 5]
    angles = torch.arange(start, start + 7)[:, None] / 10_000 ** (2 * torch.arange(5).double() / 10)
    rotated = pairs * torch.polar(torch.ones_like(angles), angles)
    wanted = torch.cat([rotated.real, rotated.imag], dim=-1).float()
    torch.testing.assert_close(rotate_by(Rotary(10, length=5), x, start), wanted, atol=1e-5, rtol=1e-5)


def test_a_table_that_grew_in_inference_mode_serves_training() -> None:
    """Trap 10: autograd refuses tensors that were made in inference mode."""
    rotary, x = Rotary(8, length=2), torch.randn(1, 2, 9, 8, requires_grad=True)
    with torch.inference_mode():
        rotate_by(rotary, x)
    rotate_by(rotary, x).sum().backward()
    assert not rotary.state_dict()
