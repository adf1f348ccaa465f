"""How often something happens, and when it is due."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from transformer_mt.training.progress import Interval, Milestone


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("500", "500 steps"),
        (500, "500 steps"),
        ("1", "1 step"),
        ("1 steps", "1 step"),
        ("2 step", "2 steps"),
        ("1_000 steps", "1000 steps"),
        (" 1 epoch ", "1 epoch"),
        ("3epochs", "3 epochs"),
    ],
)
def test_interval(written: object, read: str) -> None:
    adapter = TypeAdapter[str](Interval)
    assert adapter.validate_python(written) == read
    assert adapter.validate_python(read) == read


@pytest.mark.parametrize("written", ["0", "-1", "1.5", "1e3", "steps", "1 hour", "1 epoch 2", "", None, True])
def test_no_interval(written: object) -> None:
    with pytest.raises(ValidationError, match="neither a number of steps"):
        TypeAdapter[str](Interval).validate_python(written)


@pytest.mark.parametrize(
    ("interval", "step", "before", "now", "due"),
    [
        (None, 10, 0, 1, False),
        ("1 step", 7, 0, 0, True),
        ("5 steps", 10, 0, 0, True),
        ("5 steps", 11, 0, 1, False),
        ("1000 steps", 1000, 0, 0, True),
        ("1 epoch", 10, 0, 0, False),
        ("1 epoch", 10, 0, 1, True),
        ("1 epoch", 10, 3, 3, False),
        ("2 epochs", 10, 0, 1, False),
        ("2 epochs", 10, 1, 2, True),
        ("2 epochs", 10, 1, 4, True),  # a step that is longer than an epoch
        ("3 epochs", 10, 3, 5, False),
    ],
)
def test_an_interval_ends(interval: str | None, step: int, before: int, now: int, due: bool) -> None:
    assert Milestone(step, epochs_before=before, epochs=now).ends(interval) is due
