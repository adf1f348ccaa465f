"""Blocks hold all items in order, and a long run logs its progress."""

from __future__ import annotations

import pytest

from transformer_mt.data import corpus as blocks
from transformer_mt.data.corpus import split_into_blocks
from transformer_mt.system import log as progress_report


@pytest.mark.parametrize("size", [1, 3, 7, 8])
def test_blocks_hold_all_items_in_order(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", size)
    found = list(split_into_blocks(iter(range(7)), "read"))
    assert [item for block in found for item in block] == list(range(7))
    assert {len(block) for block in found[:-1]} <= {size}


def test_progress_of_a_long_run_is_logged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 1000)
    monkeypatch.setattr(progress_report, "FIRST_WAIT", 0)
    list(split_into_blocks(iter(range(1500)), "encoded", 1500))
    list(split_into_blocks(iter(range(1000)), "read"))
    assert capsys.readouterr().err.splitlines() == [
        "data: encoded 1,000 of 1,500 pairs",
        "data: encoded 1,500 of 1,500 pairs",
        "data: read 1,000 pairs",
    ]


def test_a_short_run_logs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    list(split_into_blocks(iter(range(5000)), "read"))
    assert not capsys.readouterr().err
