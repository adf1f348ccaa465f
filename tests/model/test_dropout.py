"""Dropout against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transformer_mt.model.dropout import Dropout, dropout

SHAPES = pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 7, 5), (0, 4)])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])


def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).abs().add(0.5).to(dtype).requires_grad_()


@SHAPES
@DTYPES
def test_an_element_is_zero_or_scaled(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """And its gradient likewise, at the same places; the input stays (trap 16)."""
    x = random(shape, dtype)
    before = x.detach().clone()
    y = dropout(x, 0.25)
    kept = y != 0
    assert y.dtype == dtype and torch.equal(x, before)
    torch.testing.assert_close(y[kept], x[kept] / 0.75)
    weight = torch.randn(shape).to(dtype)
    (gradient,) = torch.autograd.grad((y * weight).sum(), x)
    torch.testing.assert_close(gradient, torch.where(kept, weight / 0.75, torch.zeros_like(weight)))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_rate_and_the_mean(p: float) -> None:
    y = dropout(torch.ones(1000, 1001), p)
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=0.003)
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)


def test_elements_are_dropped_apart() -> None:
    """Neighbours, rows and columns, and the four elements that come from one random number."""
    dropped = (dropout(torch.ones(4000, 64), 0.5) == 0).float()
    correlation = torch.corrcoef(dropped.T) - torch.eye(64)
    assert correlation.abs().max() < 0.1
    assert torch.corrcoef(dropped.flatten().unfold(0, 2, 1).T)[0, 1].abs() < 0.02


def test_the_seed_decides() -> None:
    found: list[Tensor] = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(dropout(torch.ones(50, 50), 0.3))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_only_in_training_and_only_at_a_rate() -> None:
    x, module = torch.randn(8, 8), Dropout(0.5)
    assert not torch.equal(module(x), x)
    assert module.eval()(x) is x
    assert Dropout(0.0)(x) is x
