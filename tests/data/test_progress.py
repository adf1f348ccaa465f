"""A long reading says how far it has come, and changes nothing."""

from __future__ import annotations

import pytest

from transformer_mt.data import progress
from transformer_mt.data.progress import blocks


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_blocks_are_the_items(size: int) -> None:
    found = list(blocks(iter(range(7)), size, "read"))
    assert [item for block in found for item in block] == list(range(7))
    assert {len(block) for block in found[:-1]} <= {size}


def test_a_line_from_time_to_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By a clock on which every look is two seconds after the one before."""
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(progress, "SECONDS", 3)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    list(blocks(iter(range(5000)), 1000, "encoded", 5000))
    list(blocks(iter(range(1000)), 1000, "read"))
    assert capsys.readouterr().err.splitlines() == [
        "data: encoded 2,000 of 5,000 pairs",
        "data: encoded 4,000 of 5,000 pairs",
    ]


def test_what_is_done_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    list(blocks(iter(range(5000)), 1000, "read"))
    assert not capsys.readouterr().err
