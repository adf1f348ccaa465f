"""Messages on standard error."""

from __future__ import annotations

import io
import sys
import time
import unicodedata
from typing import NoReturn

import pytest

from transformer_mt.system.log import (
    LAYOUT,
    ProgressReport,
    format_probability,
    log,
    log_rank0,
    make_visible,
)


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


# --- Text that is shown to a person -----------------------------------------------------------------------------------

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
BIDIRECTIONAL = [*"\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]


def test_characters_that_a_terminal_obeys_are_escaped() -> None:
    for character in (*CONTROLS, *BIDIRECTIONAL, "\u2028", "\ufeff", "\udc9b"):
        shown = make_visible(f"a{character}b")
        assert shown.startswith("a\\") and shown.isprintable()
        assert shown[1:-1].encode().decode("unicode_escape") == character


def test_a_small_probability_is_not_shown_as_zero() -> None:
    for probability in (1.0, 0.5, 0.001, 6e-4, 4.99e-4, 3e-5, 1e-30):
        assert float(format_probability(probability)) == pytest.approx(probability, rel=0.7)
    assert format_probability(0.0) == "0.000"


def test_text_of_all_scripts_is_unchanged() -> None:
    drawn = "".join(
        char for char in map(chr, range(sys.maxunicode)) if unicodedata.category(char)[0] in "LMNPS" or char == " "
    )
    assert make_visible(drawn) == drawn
    assert make_visible("می\u200cخواهم 👩\u200d🔬 C:\\x") == "می\u200cخواهم 👩\u200d🔬 C:\\x"


def test_a_message_keeps_its_line_feeds(capsys: pytest.CaptureFixture[str]) -> None:
    log("one\x1b]0;title\x07\n\ttwo\r")
    assert capsys.readouterr().err == "one\\x1b]0;title\\x07\n\ttwo\\r\n"
    assert make_visible("\n\t") == "\\n\\t" and make_visible("\n\t", keep=LAYOUT) == "\n\t"


# --- Progress of long commands ----------------------------------------------------------------------------------------


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
