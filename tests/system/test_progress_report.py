"""Progress of long commands."""

from __future__ import annotations

import time
from itertools import pairwise

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


def test_a_pipe_gets_no_messages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressReport("translated").show(messages=False) as progress:
        monkeypatch.setattr(time, "monotonic", lambda: 1e9)
        progress.update(1)
    assert capsys.readouterr().err == ""


def test_messages_of_a_long_operation_come_at_least_every_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with ProgressReport("data: read", unit="pairs").show(bar=False) as progress:
        for minute in range(601):
            clock[0] = 60.0 * minute
            progress.update(minute)
    minutes = [int(line.split()[2]) for line in capsys.readouterr().err.splitlines()]
    assert max(after - before for before, after in pairwise(minutes)) == 10


def test_only_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for bar in (True, False):
        with ProgressReport("translated", 10).show(bar=bar) as progress:
            progress.update(10)
        assert ("10/10" in capsys.readouterr().err) == bar


def test_only_rank_0_reports(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    with ProgressReport("translated").show() as progress:
        monkeypatch.setattr(time, "monotonic", lambda: 1e9)
        progress.update(1)
    assert capsys.readouterr().err == ""
