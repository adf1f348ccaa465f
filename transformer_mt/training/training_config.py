"""Configuration sections of the training, and the learning rate of each step. Importing them does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from transformer_mt.config.section import MAY_CHANGE, PathName, Section, section_error
from transformer_mt.system.device import Waiting

CompileMode = Literal["auto", "off", "layers"]

# --- length, and intervals of events ----------------------------------------------------------------------------------

_INTERVAL = re.compile(r"([1-9][0-9]*(?:_[0-9]+)*)\s*(steps?|epochs?)?")


def _normalize_interval(value: object) -> str:
    match = _INTERVAL.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f'"{value}" is neither a number of steps ("500") nor of epochs ("1 epoch")')
    count, unit = int(match[1]), (match[2] or "steps").rstrip("s")
    return f"{count} {unit}" + ("s" if count > 1 else "")


Interval = Annotated[
    str,
    BeforeValidator(_normalize_interval),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": _INTERVAL.pattern}]}),
]
"""Number of steps or epochs between two events: `500`, `500 steps` or `2 epochs`."""


def split_interval(interval: Interval) -> tuple[int, bool]:
    """Return the number, and whether it counts epochs instead of steps."""
    count, unit = interval.split()
    return int(count), unit.startswith("epoch")


class TrainConfig(Section):
    """Length of the training, and intervals of logging and saving. The first limit that is reached ends it."""

    max_steps: Annotated[int | None, MAY_CHANGE] = Field(default=20_000, ge=1, le=10**12)
    """maximum number of steps; null: no limit"""
    max_epochs: Annotated[int | None, MAY_CHANGE] = Field(default=None, ge=1)
    """maximum number of passes through the training pairs; null: no limit"""
    init_from: PathName | None = None
    """run folder for a warm start: take its best weights and its tokenizers, with a new optimizer and schedule"""
    save_every: Annotated[Interval | None, MAY_CHANGE] = None
    """steps ("500") or epochs ("1 epoch") between checkpoints; null: only each validation saves one"""
    log_every: Annotated[int, MAY_CHANGE] = Field(default=50, ge=1)
    """steps between log lines and points of the curves"""
    waiting: Annotated[Waiting, MAY_CHANGE] = "auto"
    """CPU threads that wait for each other spin (active), sleep (passive), or sleep beside other programs (auto)"""
    cuda_graphs: Annotated[bool, MAY_CHANGE] = False
    """on one GPU: replay forward and backward passes as CUDA graphs; meant for small models and batches"""

    def last_step(self, steps_per_epoch: float) -> int | None:
        """Return the step at which a limit ends the training, or None without a limit."""
        limits = [self.max_steps] if self.max_steps is not None else []
        if self.max_epochs is not None:
            limits.append(math.ceil(self.max_epochs * steps_per_epoch))
        return min(limits, default=None)


class ValidationConfig(Section):
    """Validation: loss, and scores of greedy translations of raw text."""

    every: Annotated[Interval, MAY_CHANGE] = "500 steps"
    """steps ("500") or epochs ("1 epoch") between validations"""
    metric: Literal["loss", "bleu", "chrf", "chrf++"] = "bleu"
    """loss, bleu, chrf or chrf++: ranks checkpoints, and ends patience"""
    patience: Annotated[int | None, MAY_CHANGE] = Field(default=10, ge=1)
    """stop after this many validations in a row without improvement, counted after the warm-up; null: never"""
    probes: Annotated[int, MAY_CHANGE] = Field(default=4, ge=0)
    """number of sample translations to log at each validation; 0: none"""
    gate: dict[str, float] = Field(default={})
    """BLEU that a warm start may lose, by validation source (or all): {old: 2}; together half of the mean"""

    def find_problems(self, sources: Sequence[str], is_warm_start: bool) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield each contradiction: the keys below `validation`, and a message. `sources` are the named sources."""
        names = ["all", *sources]
        for name, limit in self.gate.items():
            if name not in names:
                yield ("gate", name), f"no validation source has this name; choose from {', '.join(names)}"
            elif limit < 0:
                yield ("gate", name), f"{limit:g}: write the BLEU that may be lost, 0 or more"
        if self.gate and not is_warm_start:
            yield ("gate",), "compares with the weights of a warm start: set train.init_from, or remove it"


# --- loss and optimizer -----------------------------------------------------------------------------------------------


class LossConfig(Section):
    """Cross-entropy with label smoothing."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """probability mass that is spread evenly over the vocabulary"""


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """Adam (Kingma & Ba 2015), AdamW or Muon (Jordan et al. 2024), and gradient clipping."""

    kind: Literal["adam", "adamw", "muon"] = "adam"
    """adam; adamw: Adam with decoupled weight decay; muon: Muon for the matrices of the layers, AdamW for the rest"""
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    """decay rates of Adam's running means of the gradient and of its square"""
    eps: float = Field(default=1e-9, ge=1e-30)
    """added to the denominator of Adam's update"""
    weight_decay: float = Field(default=0.0, ge=0)
    """decoupled weight decay (adamw, muon) of the layers' matrices and of an untied output projection"""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """maximum norm of the gradient; null: no clipping"""

    @model_validator(mode="after")
    def _weight_decay_needs_adamw_or_muon(self) -> OptimizerConfig:
        if self.weight_decay and self.kind == "adam":
            raise section_error(
                "weight_decay", "adam would divide it by the gradients' size: set kind: adamw, or leave 0"
            )
        return self


# --- learning rate ----------------------------------------------------------------------------------------------------

# Schedules are pure functions of the step. Steps are counted from 1. Every schedule warms up linearly, and reaches its
# peak at `warmup_steps`.

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
