"""Learning-rate schedules against their closed forms, and the optimiser against the formula of Adam."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from transformer_mt.training.optim import (
    OptimizerConfig,
    Schedule,
    ScheduleConfig,
    inverse_sqrt,
    make_optimizer,
    make_schedule,
    noam,
)

D_MODEL = 512
SCHEDULES = pytest.mark.parametrize(
    "config",
    [
        {"kind": "noam", "warmup_steps": 4000},
        {"kind": "noam", "warmup_steps": 7, "factor": 2.0},
        {"kind": "inverse_sqrt", "warmup_steps": 1000, "peak": 2e-3},
        {"kind": "inverse_sqrt", "warmup_steps": 1, "peak": 0.5},
    ],
    ids=["the paper's noam", "noam", "inverse_sqrt", "no warm-up"],
)


def read(config: dict[str, Any]) -> tuple[Schedule, int, float]:
    """The schedule, its warm-up, and the peak by the papers' formulas."""
    schedule, warmup = make_schedule(ScheduleConfig.model_validate(config), D_MODEL), config["warmup_steps"]
    peak = config.get("peak") or config.get("factor", 1.0) / math.sqrt(D_MODEL * warmup)
    return schedule, warmup, peak


@SCHEDULES
def test_linear_to_the_peak_then_down_with_the_root(config: dict[str, Any]) -> None:
    schedule, warmup, peak = read(config)
    for step in (1, 2, warmup // 2, warmup - 1, warmup):
        if 1 <= step <= warmup:
            assert schedule(step) == pytest.approx(peak * step / warmup)
    for step in (warmup, warmup + 1, 4 * warmup, 100 * warmup):
        assert schedule(step) == pytest.approx(peak * math.sqrt(warmup / step))


@pytest.mark.parametrize("warmup", [1, 10])
def test_a_constant_rate_after_the_warm_up(warmup: int) -> None:
    schedule = make_schedule(ScheduleConfig(kind="constant", warmup_steps=warmup, peak=1e-4), D_MODEL)
    assert [schedule(step) for step in (warmup, warmup + 1, 10**6)] == [1e-4] * 3
    assert schedule(1) == pytest.approx(1e-4 / warmup)


@SCHEDULES
def test_the_peak_is_at_the_end_of_the_warm_up(config: dict[str, Any]) -> None:
    schedule, warmup, peak = read(config)
    rates = [schedule(step) for step in range(1, 3 * warmup + 1)]
    assert max(rates) == schedule(warmup) == pytest.approx(peak)
    assert rates == sorted(rates[:warmup]) + sorted(rates[warmup:], reverse=True)


@SCHEDULES
def test_no_jump(config: dict[str, Any]) -> None:
    schedule, warmup, peak = read(config)
    steps = range(1, 3 * warmup + 1)
    assert max(abs(schedule(step + 1) - schedule(step)) for step in steps) <= peak / warmup * 1.0001


@SCHEDULES
def test_a_schedule_is_a_pure_function(config: dict[str, Any]) -> None:
    """State as a value: a resumed run asks for any step first."""
    schedule, _, _ = read(config)
    assert [schedule(step) for step in (900, 3, 900, 50)] == [read(config)[0](step) for step in (900, 3, 900, 50)]


@pytest.mark.parametrize("step", [1, 17, 4000, 100_000])
def test_noam_is_inverse_sqrt_with_a_peak_of_its_own(step: int) -> None:
    peak = 2.0 * (D_MODEL * 4000) ** -0.5
    assert noam(step, D_MODEL, 4000, factor=2.0) == pytest.approx(inverse_sqrt(step, peak, 4000))


def test_noam_is_equation_3_of_the_paper() -> None:
    """Vaswani et al. 2017, with numbers that can be checked in the head: 100^-0.5 * min(4^-0.5, 4 * 16^-1.5)."""
    assert noam(4, d_model=100, warmup_steps=16) == pytest.approx(0.1 * 4 / 64)
    assert noam(25, d_model=100, warmup_steps=16) == pytest.approx(0.1 / 5)


def test_adam_is_its_formula() -> None:
    """Kingma & Ba 2015, algorithm 1, with the rate set before each step."""
    (beta1, beta2), eps = OptimizerConfig().betas, OptimizerConfig().eps
    parameter = nn.Parameter(torch.randn(5))
    optimizer = make_optimizer(OptimizerConfig(), [parameter])
    wanted, mean, square = parameter.detach().double(), torch.zeros(5), torch.zeros(5)
    for step, rate in enumerate((0.1, 0.2, 0.05), start=1):
        parameter.grad = torch.randn(5)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        mean = beta1 * mean + (1 - beta1) * parameter.grad.double()
        square = beta2 * square + (1 - beta2) * parameter.grad.double() ** 2
        wanted = wanted - rate * mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + eps)
        torch.testing.assert_close(parameter.detach().double(), wanted, atol=1e-6, rtol=1e-5)


def test_the_settings_reach_the_optimiser() -> None:
    config = OptimizerConfig(betas=(0.8, 0.9), eps=1e-3)
    (group,) = make_optimizer(config, [nn.Parameter(torch.zeros(1))]).param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.9), 1e-3, 0)
