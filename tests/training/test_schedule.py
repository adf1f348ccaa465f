"""Learning-rate schedules against their closed forms, torch's own, and what holds of any."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from transformer_mt.training.training_config import Schedule, ScheduleConfig, make_schedule, noam

D_MODEL = 512
FALLING = [
    {"kind": "noam", "warmup_steps": 4000},
    {"kind": "inverse_sqrt", "warmup_steps": 1000, "peak": 2e-3},
    {"kind": "inverse_sqrt", "warmup_steps": 1, "peak": 0.5},
]
ENDING = [
    {"kind": "cosine", "warmup_steps": 10, "total_steps": 90, "peak": 2e-3, "final": 0.1},
    {"kind": "linear", "warmup_steps": 10, "total_steps": 90, "peak": 2e-3, "final": 0.1},
    {"kind": "wsd", "warmup_steps": 10, "total_steps": 40, "decay_steps": 30, "peak": 2e-3, "final": 0.25},
    {"kind": "wsd", "warmup_steps": 90, "total_steps": 100, "peak": 2e-3},  # a fifth is more than what is left
]


def name(config: dict[str, Any]) -> str:
    return " ".join(str(value) for value in config.values())


falling = pytest.mark.parametrize("config", FALLING, ids=name)
ending = pytest.mark.parametrize("config", ENDING, ids=name)
every = pytest.mark.parametrize("config", [*FALLING, *ENDING, {"kind": "constant", "warmup_steps": 10}], ids=name)


def make(**config: Any) -> Schedule:
    return make_schedule(ScheduleConfig.model_validate(config), D_MODEL)


def peak_of(config: dict[str, Any]) -> float:
    """Compute the peak by the formulas of the papers."""
    if config["kind"] == "noam":
        return config.get("factor", 1.0) / math.sqrt(D_MODEL * config["warmup_steps"])
    return config.get("peak", 2e-3)


def steps_of(config: dict[str, Any]) -> range:
    return range(1, max(3 * config["warmup_steps"], config.get("total_steps", 0)) + 10)


# --- what holds of any ------------------------------------------------------------------------------------------------


@every
def test_rate_rises_linearly_to_the_peak_and_never_again(config: dict[str, Any]) -> None:
    schedule, warmup, peak = make(**config), config["warmup_steps"], peak_of(config)
    rates = [schedule(step) for step in steps_of(config)]
    assert rates[:warmup] == pytest.approx([peak * step / warmup for step in range(1, warmup + 1)])
    assert max(rates) == schedule(warmup)
    assert rates[warmup - 1 :] == sorted(rates[warmup - 1 :], reverse=True)


# --- each by its formula ----------------------------------------------------------------------------------------------


@falling
def test_rate_falls_with_the_square_root_of_the_step(config: dict[str, Any]) -> None:
    schedule, warmup, peak = make(**config), config["warmup_steps"], peak_of(config)
    for step in (warmup, warmup + 1, 4 * warmup, 100 * warmup):
        assert schedule(step) == pytest.approx(peak * math.sqrt(warmup / step))


def test_noam_equals_equation_3_of_the_paper() -> None:
    """Vaswani et al. 2017, with easy numbers: 100^-0.5 * min(4^-0.5, 4 * 16^-1.5)."""
    assert noam(4, d_model=100, warmup_steps=16) == pytest.approx(0.1 * 4 / 64)
    assert noam(25, d_model=100, warmup_steps=16) == pytest.approx(0.1 / 5)


@pytest.mark.parametrize("warmup", [1, 10])
def test_constant_stays_at_the_peak(warmup: int) -> None:
    schedule = make(kind="constant", warmup_steps=warmup, peak=1e-4)
    assert [schedule(step) for step in (warmup, warmup + 1, 10**6)] == [1e-4] * 3


@ending
def test_curve_reaches_its_final_rate_and_stays(config: dict[str, Any]) -> None:
    schedule, total = make(**config), config["total_steps"]
    end = config.get("final", 0.0) * config["peak"]
    assert [schedule(total), schedule(total + 1), schedule(10**6)] == pytest.approx([end] * 3, abs=1e-18)
    assert schedule(total - 1) > end


Torch = Callable[[torch.optim.Optimizer, int, float], lr_scheduler.LRScheduler]
DECAYS: dict[str, Torch] = {
    "cosine": lambda optimizer, steps, final: lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.4 * final),
    "linear": lambda optimizer, steps, final: lr_scheduler.LinearLR(optimizer, 1.0, final, steps),
    "wsd": lambda optimizer, steps, final: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 1.0), lr_scheduler.LinearLR(optimizer, 1.0, final, 15)],
        [steps - 15],
    ),
}


@pytest.mark.filterwarnings("ignore:.*epoch parameter in `scheduler.step:UserWarning")  # raised inside SequentialLR
@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("final", [0.0, 0.3])
def test_curve_equals_the_schedulers_of_torch(kind: str, final: float) -> None:
    schedule = make(kind=kind, warmup_steps=5, total_steps=45, decay_steps=15, peak=0.4, final=final)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    oracle = DECAYS[kind](optimizer, 40, final)
    for step in range(5, 46):
        assert schedule(step) == pytest.approx(oracle.get_last_lr()[0], abs=1e-12), step
        optimizer.step()
        oracle.step()


# --- its settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize(
    ("settings", "max_steps", "key"),
    [
        ({}, None, "total_steps"),
        ({"warmup_steps": 100}, 100, "warmup_steps"),
        ({}, 1001, None),
        ({"total_steps": 5000}, None, None),
    ],
)
def test_curve_must_fit_the_run(kind: str, settings: dict[str, Any], max_steps: int | None, key: str | None) -> None:
    config = ScheduleConfig.model_validate({"kind": kind, **settings})
    assert [where for where, _ in config.find_problems(max_steps)] == [key] * (key is not None)


@pytest.mark.parametrize(("decay", "fits"), [(90, True), (91, False)])
def test_wsd_decay_must_fit_after_the_warm_up(decay: int, fits: bool) -> None:
    config = ScheduleConfig(kind="wsd", warmup_steps=10, decay_steps=decay)
    assert [where for where, _ in config.find_problems(100)] == [] if fits else ["decay_steps"]


@pytest.mark.parametrize("kind", ["inverse_sqrt", "noam", "constant"])
def test_schedule_without_an_end_fits_every_run(kind: Any) -> None:
    config = ScheduleConfig(kind=kind, warmup_steps=100)
    assert not list(config.find_problems(50))
    assert config.with_end(50) == config


def test_wsd_decays_in_the_last_fifth_by_default() -> None:
    schedule = make(kind="wsd", warmup_steps=10, total_steps=100, peak=1.0)
    assert [schedule(step) for step in (79, 80, 90, 100)] == pytest.approx([1.0, 1.0, 0.5, 0.0])
