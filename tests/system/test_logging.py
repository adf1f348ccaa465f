"""Messages on standard error."""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import pytest

from transformer_mt.system.log import log, log_rank0


class BrokenStream(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> NoReturn:
        raise BrokenPipeError


def test_log_rank0_writes_in_the_first_process_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_rank0("no rank")
    monkeypatch.setenv("RANK", "1")
    log_rank0("rank 1")
    log("rank 1, any process")
    monkeypatch.setenv("RANK", "0")
    log_rank0("rank 0")
    assert capsys.readouterr() == ("", "no rank\nrank 1, any process\nrank 0\n")


def test_log_continues_silently_when_the_reader_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", BrokenStream())
    log_rank0("one")
    assert not isinstance(sys.stderr, BrokenStream)
    log_rank0("two")
    sys.stderr.close()
