"""Blocks hold all items in order, and a long run logs its progress."""

from __future__ import annotations

import pytest

from transformer_mt.data import blocks
from transformer_mt.data.blocks import in_blocks


@pytest.mark.parametrize("size", [1, 3, 7, 8])
def test_blocks_hold_all_items_in_order(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", size)
    found = list(in_blocks(iter(range(7)), "read"))
    assert [item for block in found for item in block] == list(range(7))
    assert {len(block) for block in found[:-1]} <= {size}


def test_progress_is_logged_at_intervals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(0, 1000, 2))  # each call is two seconds after the previous one
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 1000)
    monkeypatch.setattr(blocks, "LOG_EVERY", 3)
    monkeypatch.setattr(blocks.time, "perf_counter", lambda: next(clock))
    list(in_blocks(iter(range(5000)), "encoded", 5000))
    list(in_blocks(iter(range(1000)), "read"))
    assert capsys.readouterr().err.splitlines() == [
        "data: encoded 2,000 of 5,000 pairs",
        "data: encoded 4,000 of 5,000 pairs",
    ]


def test_a_short_run_logs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    list(in_blocks(iter(range(5000)), "read"))
    assert not capsys.readouterr().err
