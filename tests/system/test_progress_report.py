"""Progress of long commands."""

from __future__ import annotations

import time

import pytest

from transformer_mt.system.log import ProgressReport


def test_a_log_file_gets_few_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = ProgressReport("test.en: translated", 1000)
    progress.update(1)
    with progress.show():
        for second in range(101):
            clock[0] = second
            progress.update(10 * second)
    progress.update(1000)
    assert capsys.readouterr().err.splitlines() == [
        f"test.en: translated {done} of 1,000 lines" for done in ("100", "300", "700", "1,000")
    ]
