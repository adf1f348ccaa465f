"""Text that is shown to a person."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from transformer_mt.system.log import (
    LAYOUT,
    format_probability,
    log,
    make_visible,
)

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
