"""How far a training has come, what ends it, and what is kept of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema

from transformer_mt.config.section import MAY_CHANGE, PathName, Section
from transformer_mt.data.batches import StreamPosition
from transformer_mt.runs.folder import is_better

_INTERVAL = re.compile(r"([1-9][0-9_]*)\s*(steps?|epochs?)?")


def _read_interval(value: object) -> str:
    match = _INTERVAL.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f'"{value}" is neither a number of steps ("500") nor of epochs ("1 epoch")')
    count, unit = int(match[1]), (match[2] or "steps").rstrip("s")
    return f"{count} {unit}" + ("s" if count > 1 else "")


Interval = Annotated[
    str,
    BeforeValidator(_read_interval),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": _INTERVAL.pattern}]}),
]
"""How often something happens: `500`, `500 steps` or `2 epochs`."""


class Milestone(NamedTuple):
    """The end of a step (counted from 1), which took the run from one count of whole epochs to another."""

    step: int
    epochs_before: int
    epochs: int

    def ends(self, interval: str | None) -> bool:
        """Whether an interval ends here; null never does."""
        if interval is None:
            return False
        count, unit = interval.split()
        if unit.startswith("step"):
            return self.step % int(count) == 0
        return self.epochs // int(count) > self.epochs_before // int(count)


class TrainConfig(Section):
    """How long, and how often something is said or saved. The first limit that is reached ends the training."""

    max_steps: Annotated[int | None, MAY_CHANGE] = Field(default=20_000, ge=1, le=10**12)
    """last step; null: no such limit"""
    max_epochs: Annotated[int | None, MAY_CHANGE] = Field(default=None, ge=1)
    """last pass through the training pairs; null: no such limit"""
    init_from: PathName | None = None
    """a run folder: begin with its best weights and its tokenizers, and with a new optimiser and schedule"""
    save_every: Annotated[Interval | None, MAY_CHANGE] = None
    """steps ("500") or epochs ("1 epoch") between checkpoints besides those at each validation"""
    log_every: Annotated[int, MAY_CHANGE] = Field(default=50, ge=1)
    """steps between two entries of the log and the curves"""


class ValidationConfig(Section):
    """Validation: the loss, and greedy translations scored on raw text."""

    every: Annotated[Interval, MAY_CHANGE] = "500 steps"
    """steps ("500") or epochs ("1 epoch") between validations"""
    metric: Literal["loss", "bleu", "chrf"] = "bleu"
    """which score says what the best checkpoint is and when to stop"""
    patience: Annotated[int | None, MAY_CHANGE] = Field(default=10, ge=1)
    """stop after so many validations in a row without a better score, after the warm-up; null: never"""
    probes: Annotated[int, MAY_CHANGE] = Field(default=4, ge=0)
    """sentences whose translations are shown at each validation; 0: none, and no pictures in TensorBoard either"""


@dataclass(frozen=True)
class Health:
    """How a run has fared with degenerate output."""

    was_well: bool = False  # at some validation; until then the model is new
    failing: int = 0  # validations in a row with such output; of a new model in its warm-up 1 at most


@dataclass
class Progress:
    """How far a run has come. With weights, optimiser and settings it is all that the next step depends on."""

    step: int = 0
    position: StreamPosition = field(default_factory=StreamPosition)
    validated: int = 0  # last step that was validated
    best_step: int = 0
    best_score: float | None = None
    not_better: int = 0  # validations in a row
    health: Health = Health()
    skipped: int = 0  # steps whose gradient was not finite
    skipped_in_a_row: int = 0
    trouble: int = 0  # first step of so many in a row that the run has to go back
    splits: int = 0  # batches that did not fit into memory as they were
    returns: int = 0  # to an earlier checkpoint, each with half the learning rate
    seconds: float = 0.0  # of training, over all starts, validating and saving counted

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Progress:
        """The progress that a checkpoint holds. Raises `KeyError` or `TypeError` for one of another version."""
        parts: dict[str, Any] = {"position": StreamPosition(**saved["position"]), "health": Health(**saved["health"])}
        return cls(**{**saved, **parts})

    def take_score(self, metric: str, score: float, warming_up: bool = False) -> None:
        """A validation of the step that was reached. Patience is not lost while the learning rate still rises."""
        self.validated = self.step
        if self.best_score is None or is_better(metric, score, self.best_score):
            self.best_score, self.best_step, self.not_better = score, self.step, 0
        elif not warming_up:
            self.not_better += 1

    def reason_to_stop(self, limits: TrainConfig, validation: ValidationConfig) -> str | None:
        """Which limit is reached, if one is."""
        if limits.max_steps is not None and self.step >= limits.max_steps:
            return f"train.max_steps {limits.max_steps} reached"
        if limits.max_epochs is not None and self.position.epoch >= limits.max_epochs:
            return f"train.max_epochs {limits.max_epochs} reached"
        if validation.patience is not None and self.not_better >= validation.patience:
            return f"no better {validation.metric} in {validation.patience} validations"
        return None
