"""Muon against its formula, computed from singular values in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_mt.training.optimizers import COEFFICIENTS, ITERATIONS, MOMENTUM, UPDATE_RMS, Muon, orthogonalize

SHAPES = [(4, 4), (3, 7), (9, 2), (1, 5)]


def exact(matrix: Tensor) -> Tensor:
    """Apply the polynomial of Muon to the singular values, `ITERATIONS` times."""
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    for _ in range(ITERATIONS):
        s = COEFFICIENTS[0] * s + COEFFICIENTS[1] * s**3 + COEFFICIENTS[2] * s**5
    return u @ torch.diag(s) @ vt


class Oracle:
    """One projection, updated by the formulas of Jordan et al. 2024 and Liu et al. 2025."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.momentum = weight.detach().double(), torch.zeros_like(weight).double()

    def update(self, gradient: Tensor, rate: float, decay: float) -> None:
        gradient = gradient.double()
        self.momentum = MOMENTUM * self.momentum + (1 - MOMENTUM) * gradient
        direction = MOMENTUM * self.momentum + (1 - MOMENTUM) * gradient
        self.weight = (1 - rate * decay) * self.weight
        self.weight -= rate * UPDATE_RMS * max(self.weight.shape) ** 0.5 * exact(direction)


def set_up(optimizer: Muon, rate: float, scale: float = 1.0, bad: bool = False) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(float(bad))


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_nearly_equal(shape: tuple[int, int]) -> None:
    matrices = torch.randn(6, *shape) * torch.tensor([1e-20, 1e-6, 1.0, 3.0, 1e6, 1e15])[:, None, None]
    found = orthogonalize(matrices, torch.float32)
    for matrix, made in zip(matrices, found, strict=True):
        torch.testing.assert_close(made.double(), exact(matrix), atol=1e-3, rtol=1e-3)
        assert torch.linalg.svdvals(made).max() < 1.25


def test_bf16_is_close_to_fp32() -> None:
    matrices = torch.randn(3, 16, 32)
    exact, found = (orthogonalize(matrices, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    for one, other in zip(found, exact, strict=True):
        assert torch.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.99


def test_zeros_stay_zeros() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 5), torch.bfloat16), torch.zeros(2, 3, 5))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_step_equals_its_formula_for_each_fused_projection(decay: float) -> None:
    fused, alone = nn.Parameter(torch.randn(10, 6)), nn.Parameter(torch.randn(6, 4))
    rows = [4, 3, 3]
    optimizer = Muon({fused: rows, alone: [6]}, decay, torch.float32)
    oracles = [Oracle(weight) for weight in (*fused.detach().split(rows), alone.detach())]
    for rate, scale in ((0.1, 1.0), (0.2, 8.0), (0.05, 0.1)):
        for weight in (fused, alone):
            weight.grad = torch.randn_like(weight)
        gradients: Any = (*fused.grad.split(rows), alone.grad)  # pyright: ignore[reportOptionalMemberAccess]
        for oracle, gradient in zip(oracles, gradients, strict=True):
            oracle.update(gradient / scale, rate, decay)
        set_up(optimizer, rate, scale)
        optimizer.step()
        for found, oracle in zip((*fused.detach().split(rows), alone.detach()), oracles, strict=True):
            torch.testing.assert_close(found.double(), oracle.weight, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("shape", [(8, 8), (12, 24), (24, 12)])
def test_updates_equal_those_of_torch_but_for_rounding(shape: tuple[int, int]) -> None:
    """Constants come from torch here, which iterates in bf16: an error of 1 %. One iteration less: 15 %."""
    start = torch.randn(shape)
    weight, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = Muon({weight: [shape[0]]}, 0.1, torch.float32)
    reference = torch.optim.Muon([other], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    set_up(optimizer, 0.1)
    for _ in range(4):
        weight.grad = torch.randn(shape)
        other.grad = weight.grad.clone()
        optimizer.step()
        reference.step()
    expected = other.detach() - start
    assert torch.linalg.norm(weight.detach() - start - expected) < 0.03 * torch.linalg.norm(expected)


def test_step_with_found_inf_changes_nothing() -> None:
    """Weights and momentum stay, to the bit."""
    weight = nn.Parameter(torch.randn(5, 3))
    optimizer, oracle = Muon({weight: [5]}, 0.1, torch.float32), Oracle(weight)
    for bad, value in [(True, 1.0), (False, 0.5), (True, float("nan")), (True, float("inf")), (False, 0.7)]:
        weight.grad = torch.randn_like(weight) * value
        set_up(optimizer, 0.1, bad=bad)
        before = [weight.detach().clone(), *(state["momentum"].clone() for state in optimizer.state.values())]
        if not bad:
            oracle.update(weight.grad, 0.1, 0.1)
        optimizer.step()
        after = [weight.detach(), *(state["momentum"] for state in optimizer.state.values())]
        if bad:
            assert all(torch.equal(*pair) for pair in zip(before, after, strict=False))
        torch.testing.assert_close(weight.detach().double(), oracle.weight, atol=1e-3, rtol=1e-3)
