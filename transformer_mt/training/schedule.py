"""Learning-rate schedules: pure functions of the step.

Steps are counted from 1. Every schedule warms up linearly and reaches its peak at `warmup_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import Field

from transformer_mt.config.section import Section

Schedule = Callable[[int], float]
"""Maps a step to its learning rate."""

KINDS_WITH_END = ("cosine", "linear", "wsd")
TRIAL_WARMUP_DIVISOR = 5  # a short trial warms up in a fifth of its steps
WSD_DECAY_DIVISOR = 5  # without decay_steps, wsd decays in the last fifth of the steps (Hägele et al. 2024)


class ScheduleConfig(Section):
    """Learning-rate schedule: a warm-up, then the curve of its kind."""

    kind: Literal["inverse_sqrt", "noam", "cosine", "linear", "wsd", "constant"] = "inverse_sqrt"
    """inverse_sqrt, cosine, linear: decay after warm-up; wsd: constant, then decay; constant; noam: as in the paper"""
    warmup_steps: int = Field(default=1000, ge=1)
    """step that reaches the peak; 1: no warm-up"""
    peak: float = Field(default=2e-3, gt=0)
    """maximum learning rate (not for noam)"""
    factor: float = Field(default=1.0, gt=0)
    """for noam: factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)"""
    total_steps: int | None = Field(default=None, ge=1)
    """for cosine, linear, wsd: step at which the curve ends; null: the value of train.max_steps when the run started"""
    decay_steps: int | None = Field(default=None, ge=1)
    """for wsd: number of steps of the decay at the end; null: a fifth of all steps"""
    final: float = Field(default=0.0, ge=0, le=1)
    """for cosine, linear, wsd: learning rate at the end of the curve and afterwards, as a share of the peak"""

    def find_problems(self, max_steps: int | None) -> Iterator[tuple[str, str]]:
        """Yield each key that does not fit the length of the run, with an error message."""
        if self.kind not in KINDS_WITH_END:
            return
        total = self.total_steps or max_steps
        if total is None:
            yield (
                "total_steps",
                f"{self.kind} has to know where its curve ends: set this (for a resumed run: as in its config.yaml), "
                "or train.max_steps",
            )
        elif self.warmup_steps >= max(2, total):  # a single step needs no warm-up
            yield (
                "warmup_steps",
                f"the warm-up takes {self.warmup_steps:,} of {total:,} steps: lower this below {max(2, total):,}, "
                f"or raise {self._end_key()}; for a short trial, add to the command: "
                f"name=trial schedule.warmup_steps={max(1, total // TRIAL_WARMUP_DIVISOR)}",
            )
        elif self.kind == "wsd" and (self.decay_steps or 0) > total - self.warmup_steps:
            yield (
                "decay_steps",
                f"{total - self.warmup_steps:,} of {total:,} steps are left after the warm-up: lower this, "
                f"or raise {self._end_key()}",
            )

    def _end_key(self) -> str:
        """Return the key that sets the end of the curve."""
        return "train.max_steps" if self.total_steps is None else "total_steps"

    def with_end(self, max_steps: int | None) -> ScheduleConfig:
        """Return the same settings with `total_steps` filled in, if the kind needs it."""
        if self.kind not in KINDS_WITH_END or self.total_steps is not None:
            return self
        return self.model_copy(update={"total_steps": max_steps})


def make_schedule(config: ScheduleConfig, d_model: int) -> Schedule:
    """Return the schedule. `config.total_steps` must be set if the kind has an end, see `with_end`."""
    warmup, total, end = config.warmup_steps, config.total_steps or 0, config.final * config.peak
    assert total or config.kind not in KINDS_WITH_END
    decay = min(config.decay_steps or max(1, total // WSD_DECAY_DIVISOR), max(1, total - warmup))
    schedules: dict[str, Schedule] = {
        "noam": lambda step: noam(step, d_model, warmup, config.factor),
        "inverse_sqrt": lambda step: inverse_sqrt(step, config.peak, warmup),
        "cosine": lambda step: cosine(step, config.peak, warmup, total, end),
        "linear": lambda step: linear(step, config.peak, warmup, total, end),
        "wsd": lambda step: wsd(step, config.peak, warmup, total, decay, end),
        "constant": lambda step: constant(step, config.peak, warmup),
    }
    return schedules[config.kind]


def noam(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Compute equation 3 of Vaswani et al. 2017."""
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def inverse_sqrt(step: int, peak: float, warmup_steps: int) -> float:
    """Rise linearly to `peak` at `warmup_steps`, then fall as peak * sqrt(warmup_steps / step)."""
    return peak * min(step / warmup_steps, (warmup_steps / step) ** 0.5)


def constant(step: int, peak: float, warmup_steps: int) -> float:
    """Rise linearly to `peak` at `warmup_steps`, then stay."""
    return peak * min(1.0, step / warmup_steps)


def cosine(step: int, peak: float, warmup_steps: int, total_steps: int, end: float) -> float:
    """Rise linearly, then follow half a cosine to `end` at `total_steps` (Loshchilov & Hutter 2017)."""
    if step <= warmup_steps:
        return constant(step, peak, warmup_steps)
    progress = _progress(step, warmup_steps, total_steps)
    return end + (peak - end) * (1 + math.cos(math.pi * progress)) / 2


def linear(step: int, peak: float, warmup_steps: int, total_steps: int, end: float) -> float:
    """Rise linearly, then fall linearly to `end` at `total_steps`."""
    return wsd(step, peak, warmup_steps, total_steps, total_steps - warmup_steps, end)


def wsd(step: int, peak: float, warmup_steps: int, total_steps: int, decay_steps: int, end: float) -> float:
    """Warm up, stay, and decay linearly to `end` in the last steps (Hu et al. 2024; Hägele et al. 2024)."""
    if step <= warmup_steps:
        return constant(step, peak, warmup_steps)
    progress = _progress(step, total_steps - decay_steps, total_steps)
    return peak * (1 - progress) + end * progress


def _progress(step: int, start: int, end: int) -> float:
    """Return how far `step` is from `start` to `end`, from 0 to 1."""
    return min(1.0, max(0.0, (step - start) / max(1, end - start)))
