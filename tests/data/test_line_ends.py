"""A text whose lines end in carriage returns alone is refused with its name, wherever text is read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from helpers import Tmt, assert_user_error

from transformer_mt.data.text_files import MAX_LINE_BYTES, read_lines
from transformer_mt.errors import UserError

CASES = {
    "two lines": b"one\rtwo",
    "end after the last line": b"one\rtwo\r",
    "empty lines": b"\r\rone\r",
    "an empty last line": b"one\r\r",
    "byte order mark": b"\xef\xbb\xbfone\rtwo\r",
    "not UTF-8": b"caf\xe9\rtwo\r",
    "longer than a line may be": b"a sentence\r" * (MAX_LINE_BYTES // 5),
}


@pytest.mark.parametrize("content", CASES.values(), ids=CASES)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_carriage_returns_alone_are_refused(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"cr.en{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(UserError, match=r"cr\.en(\.gz)?:1: .*carriage returns.*tr "):
        list(read_lines(path, errors="replace"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_encodings_are_refused_though_errors_are_replaced(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes("A line.\nAnother.\n".encode(encoding))
    with pytest.raises(UserError, match=r"f:1: .*iconv -f UTF-"):
        list(read_lines(tmp_path / "f", errors="replace"))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\r", ["one"]),
        (b"one", ["one"]),
        (b"a progress\rbar\ntwo\n", ["a progress\rbar", "two"]),
        (b"one\ntwo\rthree", ["one", "two\rthree"]),
    ],
)
def test_other_carriage_returns_are_text_or_part_of_a_line_end(
    content: bytes, lines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(content)
    assert list(read_lines(tmp_path / "f")) == lines


@pytest.mark.parametrize(
    "command",
    [
        ("init", "cr.txt", "train.de", "--out", "new.yaml"),
        ("init", "train.en", "cr.txt", "--out", "new.yaml"),
        ("check", "tiny.yaml", "data.train.src=cr.txt"),
        ("check", "tiny.yaml", "data.train.src=cr.txt", "--write", "repaired"),
        ("train", "--config", "tiny.yaml", "name=new", "data.train.src=cr.txt"),
        ("translate", "runs/tiny", "--input", "cr.txt", "--output", "out.txt"),
        ("translate", "runs/tiny", "--input", "train.en", "--output", "out.txt", "--score-targets", "cr.txt"),
        ("evaluate", "runs/tiny", "--src", "train.en", "--ref", "cr.txt"),
        ("evaluate", "cr.txt", "--ref", "train.de"),
        ("translate", "runs/tiny", "--glossary", "cr.txt", "eins"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_every_command_names_the_file(command: tuple[str, ...], run_copy: Path, tmt: Tmt) -> None:
    text = Path("train.en").read_text(encoding="utf-8")
    Path("cr.txt").write_bytes(text.replace("\n", "\r").encode())
    before = {*Path().iterdir()}
    assert_user_error(tmt(*command), "cr.txt:1: ", "carriage return")
    assert {*Path().iterdir()} == before


@pytest.mark.parametrize("content", [b"eins\rzwei\r", b"eins\r" * MAX_LINE_BYTES], ids=["short", "long"])
def test_standard_input_is_refused_too(content: bytes, tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, stdin=content)
    assert_user_error(done, "standard input:1: ", "carriage return")
    assert not done.stdout
