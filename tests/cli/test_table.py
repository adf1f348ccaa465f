"""Tables on standard output."""

from __future__ import annotations

import pytest

from transformer_mt.cli.table import print_table


def test_plain_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "score"), [("BLEU", "9.50"), ("chrF++", "45.25")], numbers=(1,))
    assert capsys.readouterr().out == "name    score\nBLEU     9.50\nchrF++  45.25\n"
    print_table(("", "n"), [("猫", "1"), ("abc", "2"), ("e\u0301", "3")])
    assert capsys.readouterr().out == "     n\n猫   1\nabc  2\ne\u0301    3\n", "a Chinese character is two cells wide"
