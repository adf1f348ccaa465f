"""Description of a checkpoint, and the order of checkpoints by their scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transformer_mt.errors import UserError
from transformer_mt.runs.manifest import CorruptFileError, read_manifest
from transformer_mt.runs.schemas import CheckpointRecord, describe_validation_error

CHECKPOINT = "checkpoint.json"


@dataclass(frozen=True)
class CheckpointInfo:
    """The content of `checkpoint.json`. There are no scores if the step was not validated."""

    path: Path
    step: int
    metric: str  # by which the best checkpoint of the run is chosen
    scores: dict[str, float]
    stopped: bool = False  # written at a stop signal, not at a step where a checkpoint was due
    is_rejected: bool = False  # by validation.gate or validation.expect_all: it is never the best one
    tests: list[dict[str, str | None]] = field(default_factory=list[dict[str, str | None]])  # of validation.expect
    files: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)  # size and checksum by file name

    @classmethod
    def read(cls, folder: Path) -> CheckpointInfo:
        """Read the description in a checkpoint folder. Raises `CorruptFileError` if it is damaged."""
        path = folder / CHECKPOINT
        try:
            found = CheckpointRecord.model_validate(read_manifest(path))
        except ValidationError as error:
            raise CorruptFileError(path, describe_validation_error(error)) from None
        if found.step != int(folder.name.removeprefix("step-")):
            raise CorruptFileError(path, "belongs to another step")
        return cls(folder, **{key: value for key, value in found.model_dump().items() if key in cls.__annotations__})

    @property
    def score(self) -> float | None:
        """The validation score by the run's metric, or None if this step was not validated, or was rejected."""
        return None if self.is_rejected else self.scores.get(self.metric)


def damaged_checkpoint_error(damage: CorruptFileError) -> UserError:
    """Return the error for a user who named a checkpoint that is damaged."""
    return UserError(
        f"{damage}: this checkpoint is damaged and was not used;\n"
        f"restore it, or delete {damage.path.parent} (or choose another checkpoint, if the command has this option)"
    )


def is_better(metric: str, score: float, than: float) -> bool:
    """Return whether a score is better: a lower loss, a higher BLEU or chrF. Anything is better than NaN."""
    return _merit(metric, score) > _merit(metric, than)


def format_score(metric: str, score: float) -> str:
    """Return a score with two decimals if it is in per cent, and with four otherwise."""
    return f"{score:.{2 if metric in ('bleu', 'chrf') else 4}f}"


def rank_checkpoints(found: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return the validated checkpoints, the best first, NaN last. Equal scores are ordered by step."""
    scored = [(_merit(info.metric, info.score), info) for info in found if info.score is not None]
    return [info for _, info in sorted(scored, key=lambda pair: pair[0], reverse=True)]


def _merit(metric: str, score: float) -> tuple[bool, float]:
    """Return a sort key that is larger for a better score."""
    if math.isnan(score):
        return False, 0.0
    return True, -score if metric == "loss" else score
