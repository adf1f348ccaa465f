"""Progress of a training, the conditions that end it, and the settings of both."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter, WithJsonSchema

from transformer_mt.config.section import MAY_CHANGE, PathName, Section
from transformer_mt.data.batches import StreamPosition
from transformer_mt.evaluation.behaviour_tests import BehaviourTests
from transformer_mt.runs.records import Count, format_score, is_better

_INTERVAL = re.compile(r"([1-9][0-9_]*)\s*(steps?|epochs?)?")


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


class Milestone(NamedTuple):
    """A completed step (counted from 1), with the number of completed epochs before and after it."""

    step: int
    epochs_before: int
    epochs: int

    def is_due(self, interval: str | None) -> bool:
        """Return whether an event with this interval is due after this step. None is never due."""
        if interval is None:
            return False
        count, unit = interval.split()
        if unit.startswith("step"):
            return self.step % int(count) == 0
        return self.epochs // int(count) > self.epochs_before // int(count)


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
    ledger: Annotated[bool, MAY_CHANGE] = False
    """record the running loss of each training pair, for `tmt check RUN --worst N`"""

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
    metric: Literal["loss", "bleu", "chrf", "expect"] = "bleu"
    """loss, bleu, chrf, or expect (share of passed behaviour tests): selects the best checkpoint and ends patience"""
    patience: Annotated[int | None, MAY_CHANGE] = Field(default=10, ge=1)
    """stop after this many validations in a row without improvement, counted after the warm-up; null: never"""
    probes: Annotated[int, MAY_CHANGE] = Field(default=4, ge=0)
    """number of sample translations to log at each validation; 0: none, and no figures in TensorBoard"""
    goal: Annotated[float | None, MAY_CHANGE] = None
    """end the training when the metric reaches this value; null: never"""
    expect: BehaviourTests = ()
    """behaviour tests: a list of sentences with conditions, a YAML file with such a list, or starter"""
    expect_all: bool = False
    """a checkpoint that fails a behaviour test is never the best one; if all fail, tmt train ends with an error"""
    gate: dict[str, float] = Field(default={})
    """BLEU that a validation source (or all) may lose after a warm start; one that loses more is never the best"""

    def find_problems(self, sources: Sequence[str], is_warm_start: bool) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield each contradiction: the keys below `validation`, and a message. `sources` are the named sources."""
        for key in ("metric", "expect_all"):
            if not self.expect and getattr(self, key) in ("expect", True):
                yield (key,), "needs behaviour tests: set validation.expect"
        names = ["all", *sources]
        for name, limit in self.gate.items():
            if name not in names:
                yield ("gate", name), f"no validation source has this name; choose from {', '.join(names)}"
            elif limit < 0:
                yield ("gate", name), f"{limit:g}: write the BLEU that may be lost, 0 or more"
        if self.gate and not is_warm_start:
            yield ("gate",), "compares with the weights of a warm start: set train.init_from, or remove it"


@dataclass
class Progress:
    """Training state apart from weights and optimizers. Every checkpoint contains it."""

    step: Count = 0
    position: StreamPosition = field(default_factory=StreamPosition)
    last_validated: Count = 0  # step
    best_step: Count = 0
    best_score: float | None = None
    best_seen: float | None = None  # best score of all checkpoints, rejected ones included
    without_improvement: Count = 0  # validations in a row
    skipped: Count = 0  # steps without an update, because the gradient was not finite
    skipped_in_a_row: Count = 0
    diverged_at: Count = 0  # first of the skipped steps that require a rollback; 0: none
    splits: Count = 0  # batches that were split because memory ran out
    rollbacks: Annotated[int, Field(ge=0, le=100)] = 0  # each halves the learning rate
    seconds: float = 0.0  # of training, validation and saving, including those before a resume
    initial_scores: dict[str, float] = field(default_factory=dict[str, float])  # of the weights of a warm start

    @classmethod
    def from_checkpoint(cls, saved: dict[str, Any], step: int, n_sources: int) -> Progress:
        """Restore the progress at a step from a checkpoint. `n_sources` is the number of sources of a mixture.

        Raises `KeyError`, `TypeError` or `ValueError` for another format, or for impossible values.
        """
        values: dict[str, Any] = {**saved, "position": StreamPosition(**saved["position"])}
        progress = TypeAdapter(Progress).validate_python(asdict(cls(**values)))
        if progress.step != step or len(progress.position.n_taken) not in (0, n_sources):
            raise ValueError("it belongs to another step, or to other data")
        return progress

    def record_score(
        self, metric: str, score: float, *, is_warming_up: bool = False, is_rejected: bool = False
    ) -> None:
        """Record a validation of the current step. During the warm-up, patience is not used up.

        A rejected score is never the best, but it is an improvement if no score was better so far.
        """
        self.last_validated = self.step
        if not is_rejected and (self.best_score is None or is_better(metric, score, self.best_score)):
            self.best_score, self.best_step = score, self.step
        if self.best_seen is None or is_better(metric, score, self.best_seen):
            self.best_seen, self.without_improvement = score, 0
        elif not is_warming_up:
            self.without_improvement += 1

    def describe(self, metric: str) -> str:
        """Return the step, and the best step with its score by `metric` after a validation."""
        if self.best_score is None:
            return f"step {self.step:,}"
        score = format_score(metric, self.best_score)
        return f"step {self.step:,}; best so far: step {self.best_step:,}, {metric} {score}"

    def stop_reason(self, limits: TrainConfig, validation: ValidationConfig) -> str | None:
        """Return the limit that is reached, or None to continue."""
        if limits.max_steps is not None and self.step >= limits.max_steps:
            return f"train.max_steps {limits.max_steps} reached"
        if limits.max_epochs is not None and self.position.epoch >= limits.max_epochs:
            return f"train.max_epochs {limits.max_epochs} reached"
        goal, best = validation.goal, self.best_score
        if goal is not None and best is not None and not is_better(validation.metric, goal, best):
            return f"validation.goal {goal:g} reached"
        if validation.patience is not None and self.without_improvement >= validation.patience:
            return f"no better {validation.metric} in {validation.patience} validations"
        return None
