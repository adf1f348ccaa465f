"""The optimiser, and learning-rate schedules as pure functions of the step.

`step` is counted from 1: the learning rate of step s is what the s-th update uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from transformer_mt.settings import Section

if TYPE_CHECKING:
    import torch

Schedule = Callable[[int], float]
Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """Adam (Kingma & Ba 2015)."""

    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """decay of the running mean of the gradient and of its square"""
    eps: float = Field(default=1e-9, gt=0)
    """added to the root of the mean square"""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """longest gradient; a longer one is scaled down; null: as it is"""


class ScheduleConfig(Section):
    """The learning rate. It grows linearly while it warms up, then falls with the root of the step or stays."""

    kind: Literal["inverse_sqrt", "noam", "constant"] = "inverse_sqrt"
    """noam: factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5); inverse_sqrt, constant: by their peak"""
    warmup_steps: int = Field(default=1000, ge=1)
    """steps until the peak; 1: from the first step on"""
    peak: float = Field(default=2e-3, gt=0)
    """of inverse_sqrt and constant: the highest learning rate"""
    factor: float = Field(default=1.0, gt=0)
    """of noam: multiplies the whole schedule"""


def make_schedule(config: ScheduleConfig, d_model: int) -> Schedule:
    """The learning rate by step."""
    kinds: dict[str, Schedule] = {
        "noam": lambda step: noam(step, d_model, config.warmup_steps, config.factor),
        "inverse_sqrt": lambda step: inverse_sqrt(step, config.peak, config.warmup_steps),
        "constant": lambda step: constant(step, config.peak, config.warmup_steps),
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


def make_optimizer(config: OptimizerConfig, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Fused Adam; the learning rate is set before each step."""
    import torch

    return torch.optim.Adam(parameters, lr=0.0, betas=config.betas, eps=config.eps, fused=True)
