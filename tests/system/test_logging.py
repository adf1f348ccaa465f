"""What is said on standard error: by the first process, and by none once nobody hears it."""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import pytest

from transformer_mt.system.logging import log, log_rank0


class Broken(io.StringIO):
    """Whoever read it has gone."""

    def write(self, text: str) -> NoReturn:
        raise BrokenPipeError


def test_the_first_of_several_processes_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_rank0("alone")
    monkeypatch.setenv("RANK", "1")
    log_rank0("second")
    log("second, of itself")
    monkeypatch.setenv("RANK", "0")
    log_rank0("first")
    assert capsys.readouterr() == ("", "alone\nsecond, of itself\nfirst\n")


def test_where_nobody_listens_it_goes_on_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Broken())
    log_rank0("one")
    assert not isinstance(sys.stderr, Broken)
    log_rank0("two")
    sys.stderr.close()
