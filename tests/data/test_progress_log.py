"""A long run logs its progress."""

from __future__ import annotations

import pytest

from transformer_mt.data.corpus import log_progress
from transformer_mt.system import log


def test_progress_of_a_long_run_is_logged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(log, "FIRST_WAIT", 0)
    list(log_progress([range(1000), range(500)], "encoded", 1500))
    list(log_progress([range(1000)], "read"))
    assert capsys.readouterr().err.splitlines() == [
        "data: encoded 1,000 of 1,500 pairs",
        "data: encoded 1,500 of 1,500 pairs",
        "data: read 1,000 pairs",
    ]
