"""Learning-rate schedules: pure functions of the step.

`step` is counted from 1: the learning rate of step s is what the s-th update uses. Each grows linearly while it warms
up, to its peak at `warmup_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import Field

from transformer_mt.config.section import Section

Schedule = Callable[[int], float]
ENDING = ("cosine", "linear", "wsd")
OF_OLD = " (a run that goes on: as in its config.yaml)"
DECAY = 5  # wsd decays over this part of all steps where nothing is said: a fifth, as in Hägele et al. 2024


class ScheduleConfig(Section):
    """The learning rate: warm-up, then what its kind says."""

    kind: Literal["inverse_sqrt", "noam", "cosine", "linear", "wsd", "constant"] = "inverse_sqrt"
    """after the warm-up: constant stays, wsd stays and falls at the end, the others fall; noam: the paper's"""
    warmup_steps: int = Field(default=1000, ge=1)
    """steps until the peak; 1: from the first step on"""
    peak: float = Field(default=2e-3, gt=0)
    """the highest learning rate, of all kinds but noam"""
    factor: float = Field(default=1.0, gt=0)
    """of noam: factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)"""
    total_steps: int | None = Field(default=None, ge=1)
    """of cosine, linear, wsd: where the curve ends; null: at train.max_steps as it was when the run began"""
    decay_steps: int | None = Field(default=None, ge=1)
    """of wsd: the last steps of the curve, in which it falls; null: a fifth of all"""
    final: float = Field(default=0.0, ge=0, le=1)
    """of cosine, linear, wsd: the rate at the end of the curve and after it, as a share of the peak"""

    def problems(self, max_steps: int | None) -> Iterator[tuple[str, str]]:
        """Which key does not fit the length of the run, and what to do."""
        if self.kind not in ENDING:
            return
        total = self.total_steps or max_steps
        if total is None:
            yield "total_steps", f"{self.kind} has to know where its curve ends: set this{OF_OLD}, or train.max_steps"
        elif self.warmup_steps >= total:
            yield (
                "warmup_steps",
                f"the curve ends at step {total:,}, before it falls: lower this, or raise total_steps{OF_OLD}",
            )
        elif self.kind == "wsd" and (self.decay_steps or 0) > total - self.warmup_steps:
            yield (
                "decay_steps",
                f"{total - self.warmup_steps:,} of {total:,} steps are left after the warm-up: lower this, "
                f"or raise total_steps{OF_OLD}",
            )

    def ending(self, max_steps: int | None) -> ScheduleConfig:
        """The same with the end of its curve decided, where it has one."""
        if self.kind not in ENDING or self.total_steps is not None:
            return self
        return self.model_copy(update={"total_steps": max_steps})


def make_schedule(config: ScheduleConfig, d_model: int) -> Schedule:
    """The learning rate by step; where the curve ends has been decided."""
    warmup, total, end = config.warmup_steps, config.total_steps or 0, config.final * config.peak
    assert total or config.kind not in ENDING, "see ScheduleConfig.ending"
    decay = min(config.decay_steps or max(1, total // DECAY), max(1, total - warmup))
    kinds: dict[str, Schedule] = {
        "noam": lambda step: noam(step, d_model, warmup, config.factor),
        "inverse_sqrt": lambda step: inverse_sqrt(step, config.peak, warmup),
        "cosine": lambda step: cosine(step, config.peak, warmup, total, end),
        "linear": lambda step: linear(step, config.peak, warmup, total, end),
        "wsd": lambda step: wsd(step, config.peak, warmup, total, decay, end),
        "constant": lambda step: constant(step, config.peak, warmup),
    }
    return kinds[config.kind]


def noam(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Vaswani et al. 2017, equation 3."""
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def inverse_sqrt(step: int, peak: float, warmup_steps: int) -> float:
    """Linear to `peak` at `warmup_steps`, then peak * sqrt(warmup_steps / step)."""
    return peak * min(step / warmup_steps, (warmup_steps / step) ** 0.5)


def constant(step: int, peak: float, warmup_steps: int) -> float:
    """Linear to `peak` at `warmup_steps`, then the same."""
    return peak * min(1.0, step / warmup_steps)


def cosine(step: int, peak: float, warmup_steps: int, total_steps: int, end: float) -> float:
    """Linear to `peak` at `warmup_steps`, then half a cosine to `end` at `total_steps` (Loshchilov & Hutter 2017)."""
    if step <= warmup_steps:
        return constant(step, peak, warmup_steps)
    gone = _share(step, warmup_steps, total_steps)
    return end + (peak - end) * (1 + math.cos(math.pi * gone)) / 2


def linear(step: int, peak: float, warmup_steps: int, total_steps: int, end: float) -> float:
    """Linear to `peak` at `warmup_steps`, then a straight line to `end` at `total_steps`."""
    return wsd(step, peak, warmup_steps, total_steps, total_steps - warmup_steps, end)


def wsd(step: int, peak: float, warmup_steps: int, total_steps: int, decay_steps: int, end: float) -> float:
    """Warm-up, stable, decay (Hu et al. 2024): a straight line to `end` in the last steps (Hägele et al. 2024)."""
    if step <= warmup_steps:
        return constant(step, peak, warmup_steps)
    gone = _share(step, total_steps - decay_steps, total_steps)
    return peak * (1 - gone) + end * gone


def _share(step: int, start: int, end: int) -> float:
    """How much of the way from one step to another is gone."""
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))
