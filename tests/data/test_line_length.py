"""A line of any length ends with an error, before it fills the memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from helpers import Tmt, assert_user_error

from transformer_mt.data.tables import read_table
from transformer_mt.data.text_files import MAX_LINE_BYTES, read_lines
from transformer_mt.errors import UserError

LONG = "x" * MAX_LINE_BYTES


def test_a_line_that_is_too_long_is_refused_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text(f"one\n{LONG[1:]}\nthree")
    assert [len(line) for line in read_lines(tmp_path / "a.en")] == [3, MAX_LINE_BYTES - 1, 5]
    for name in ("b.en", "b.en.gz"):
        with (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "wb") as file:
            file.write(b"one\n" + LONG.encode() * 20)
        with pytest.raises(UserError, match=rf"{name}:2: longer than 1,000,000 bytes"):
            list(read_lines(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.jsonl",
            json.dumps({"en": LONG + "x", "de": ""}),
            "a.jsonl:1: column en has more than 1,000,000 characters",
        ),
        ("a.tsv", f"en\tde\n{LONG}x\ty", "a.tsv:2: column en has more than 1,000,000 characters"),
        ("a.csv", "en,de\n" + LONG * 11, "a.csv:2: longer than 10,000,000 bytes"),
    ],
)
def test_a_text_of_a_table_that_is_too_long_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        list(read_table(tmp_path / name, ("en", "de")))


def test_standard_input_without_line_feeds_is_refused(tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, stdin=b"one\n" + LONG.encode() * 2)
    assert_user_error(done, "standard input:2: longer than")
    assert done.stdout.count("\n") == 1
