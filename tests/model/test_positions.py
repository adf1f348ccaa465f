"""Positions against their closed form: traps 9 (exponent), 10 (overflow), 11 (checkpoint) and 12 (precision)."""

from __future__ import annotations

import math

import pytest
import torch

from transformer_mt.model.positions import SinusoidalPositions, sinusoidal_table


def closed_form(position: int, dim: int, d_model: int) -> float:
    angle = position / 10_000 ** (2 * (dim // 2) / d_model)
    return math.cos(angle) if dim % 2 else math.sin(angle)


@pytest.mark.parametrize("d_model", [2, 7, 8, 512])
@pytest.mark.parametrize("position", [0, 1, 2, 63, 1029])
def test_closed_form(position: int, d_model: int) -> None:
    """Trap 9; an odd width ends with a sine."""
    row = sinusoidal_table(1030, d_model)[position]
    wanted = [closed_form(position, dim, d_model) for dim in range(d_model)]
    torch.testing.assert_close(row, torch.tensor(wanted), atol=2e-4, rtol=0)  # fp32 angles of up to 1029


def test_a_step_is_a_rotation_by_the_same_angle() -> None:
    """Why sinusoids: the product of two positions depends on their distance alone."""
    table = sinusoidal_table(100, 16).double()
    near, far = table[10] @ table[17], table[80] @ table[87]
    torch.testing.assert_close(near, far, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("start", "length"), [(0, 3), (2, 2), (3, 2), (4, 1), (0, 40)])
def test_any_length_works(start: int, length: int) -> None:
    """Trap 10: inside the table, up to its end, across it, behind it."""
    positions = SinusoidalPositions(8, length=4)
    torch.testing.assert_close(positions(start, length), sinusoidal_table(64, 8)[start : start + length])
    torch.testing.assert_close(positions(0, 2), sinusoidal_table(2, 8))


def test_the_table_grows_in_strides() -> None:
    positions = SinusoidalPositions(8, length=4)
    sizes = [len(positions(0, length)) and len(positions.table) for length in range(1, 33)]
    assert len(set(sizes)) == 4  # 4, 8, 16, 32


def test_no_checkpoint_holds_the_table() -> None:
    """Trap 11."""
    assert not SinusoidalPositions(8).state_dict()
    SinusoidalPositions(8, length=4).load_state_dict(SinusoidalPositions(8, length=9).state_dict())


def test_the_table_follows_the_module_to_another_precision() -> None:
    """Trap 12: computed in fp32, then cast, also where it grows."""
    positions = SinusoidalPositions(16, length=4)
    assert positions.table.dtype == torch.float32
    positions.to(torch.bfloat16)
    assert torch.equal(positions(0, 1030), sinusoidal_table(1030, 16).bfloat16())


def test_positions_stay_apart_under_autocast() -> None:
    """Trap 12: computed in bf16, 514 of them would be left."""
    with torch.autocast("cpu", torch.bfloat16):
        found = SinusoidalPositions(16, length=4)(0, 1030)
    assert torch.equal(found, sinusoidal_table(1030, 16))
    assert len(found.unique(dim=0)) == 1030
