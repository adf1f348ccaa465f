"""Tables on standard output."""

from __future__ import annotations

import io
import re
import sys

import pytest

from transformer_mt.cli.table import print_table

HEADER = ("name", "score", "why")
ROWS = [("BLEU", "9.50", "[bold] is text"), ("chrF++", "45.25", "a long reason " * 8)]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def print_on_terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """Print the table on a terminal of 60 columns, and return what was written."""
    stream = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "60", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    print_table(HEADER, ROWS)
    return stream.getvalue()


def test_plain_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADER[:2], [row[:2] for row in ROWS], numbers=(1,))
    assert capsys.readouterr().out == "name    score\nBLEU     9.50\nchrF++  45.25\n"
    print_table(("", "n"), [("猫", "1"), ("abc", "2")])
    assert capsys.readouterr().out == "     n\n猫   1\nabc  2\n", "a Chinese character is two cells wide"


def test_a_terminal_gets_colours_and_wrapped_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = print_on_terminal(monkeypatch)
    assert "\x1b[36mBLEU" in printed and "[bold] is text" in printed
    lines = re.sub(r"\x1b\[[\d;]*m", "", printed).split("\n")
    assert len(lines) > 4 and max(map(len, lines)) <= 60
