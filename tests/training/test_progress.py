"""How often something happens, and when it is due."""

from __future__ import annotations

from math import nan

import pytest
from pydantic import TypeAdapter, ValidationError

from transformer_mt.data.batch_plan import StreamPosition
from transformer_mt.training.trainer import Progress, StepDone
from transformer_mt.training.training_config import Interval, TrainConfig, ValidationConfig


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("500", "500 steps"),
        ("1", "1 step"),
        ("2 step", "2 steps"),
        ("1_000 steps", "1000 steps"),
        (" 1 epoch ", "1 epoch"),
    ],
)
def test_interval_is_normalised(written: object, read: str) -> None:
    adapter = TypeAdapter[str](Interval)
    assert adapter.validate_python(written) == read
    assert adapter.validate_python(read) == read


@pytest.mark.parametrize("written", ["0", "1.5", "1 hour", "1 epoch 2", None])
def test_invalid_interval_is_refused(written: object) -> None:
    with pytest.raises(ValidationError, match="neither a number of steps"):
        TypeAdapter[str](Interval).validate_python(written)


@pytest.mark.parametrize(
    ("interval", "step", "before", "now", "due"),
    [
        (None, 10, 0, 1, False),
        ("1 step", 7, 0, 0, True),
        ("5 steps", 11, 0, 1, False),
        ("1000 steps", 1000, 0, 0, True),
        ("1 epoch", 10, 0, 1, True),
        ("2 epochs", 10, 0, 1, False),
        ("2 epochs", 10, 1, 4, True),  # a step that is longer than an epoch
        ("3 epochs", 10, 3, 5, False),
    ],
)
def test_milestone_ends_an_interval(interval: str | None, step: int, before: int, now: int, due: bool) -> None:
    assert StepDone(step, epochs_before=before, epochs=now).is_due(interval) is due


# --- the best score, and the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "scores", "best_step", "without_improvement"),
    [
        ("bleu", [nan, 5.0, 4.0, 4.0], 2, 2),
        ("bleu", [5.0, 5.0, 6.0, nan], 3, 1),
        ("loss", [nan, 5.0, 6.0, 4.0, 4.0], 4, 1),
        ("loss", [nan, nan], 1, 1),
    ],
)
def test_best_score_and_validations_since_are_recorded(
    metric: str, scores: list[float], best_step: int, without_improvement: int
) -> None:
    progress = Progress()
    for progress.step, score in enumerate(scores, start=1):
        progress.record_score(metric, score)
    assert (progress.best_step, progress.without_improvement) == (best_step, without_improvement)
    assert progress.last_validated == len(scores)
    assert repr(progress.best_score) == repr(scores[best_step - 1])


def test_warm_up_does_not_use_up_patience() -> None:
    progress = Progress()
    for progress.step, (score, rises) in enumerate([(0.0, True), (0.0, True), (0.0, True), (0.0, False)], start=1):
        assert progress.without_improvement == 0
        progress.record_score("bleu", score, is_warming_up=rises)
    assert (progress.best_step, progress.without_improvement) == (1, 1)


@pytest.mark.parametrize(
    ("limits", "patience", "reason"),
    [
        ({"max_steps": 7}, None, "train.max_steps 7 reached"),
        ({"max_steps": 8}, None, None),
        ({"max_steps": None, "max_epochs": 3}, None, "train.max_epochs 3 reached"),
        ({"max_steps": None, "max_epochs": 4}, None, None),
        ({"max_steps": 8}, 2, "no better bleu in 2 validations"),
        ({"max_steps": 8}, 3, None),
    ],
)
def test_stop_reason_names_the_limit(limits: dict[str, int | None], patience: int | None, reason: str | None) -> None:
    progress = Progress(step=7, position=StreamPosition(epoch=3), without_improvement=2)
    config, validation = TrainConfig.model_validate(limits), ValidationConfig(patience=patience)
    assert progress.stop_reason(config, validation) == reason
