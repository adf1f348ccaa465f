"""Input lines from arguments, files, pipes and the prompt, their prefixes, and their windows."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import (
    Line,
    add_prefixes,
    check_same_length,
    decode_argument,
    group_windows,
    read_input,
)

Write = Callable[[bytes], None]


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_all_windows_but_the_last_are_full(size: int) -> None:
    found = list(group_windows(iter(range(130)), size))
    assert [n for window in found for n in window] == list(range(130))
    assert all(len(window) == size for window in found[:-1])


def test_a_window_ends_if_no_item_is_available() -> None:
    assert list(group_windows([None, 1, 2, None, None, 3, 4, 5, 6], 3)) == [[1, 2], [3, 4, 5], [6]]
    assert list(group_windows([], 3)) == []


def test_items_before_an_error_are_yielded_before_it_is_raised() -> None:
    def items() -> Iterator[int]:
        yield from range(7)
        raise UserError("line 8")

    found: list[list[int]] = []
    with pytest.raises(UserError, match="line 8"):
        found.extend(group_windows(items(), 5))
    assert found == [[0, 1, 2, 3, 4], [5, 6]]


# --- prefixes ---------------------------------------------------------------------------------------------------------


def test_each_line_gets_its_prefix(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("Ein\n\nDrei", encoding="utf-8")
    lines = add_prefixes(["one", None, "two", "three"], tmp_path / "p")
    assert list(lines) == [Line("one", "Ein"), None, Line("two"), Line("three", "Drei")]
    assert list(add_prefixes(["one", None, "two"], None)) == [Line("one"), None, Line("two")]


@pytest.mark.parametrize(("count", "message"), [(2, "has more lines than the input"), (4, "has fewer lines than")])
def test_another_number_of_prefixes_is_an_error_after_the_common_lines(
    tmp_path: Path, count: int, message: str
) -> None:
    (tmp_path / "p").write_text("a\nb\nc\n", encoding="utf-8")
    found: list[Line | None] = []
    with pytest.raises(UserError, match=message):
        found.extend(add_prefixes(["x"] * count, tmp_path / "p"))
    assert len(found) == min(count, 3)


def test_files_of_different_length_are_refused_but_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n" * 15, encoding="utf-8")
    (tmp_path / "p").write_text("Ein\n" * 14, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"f has 15 lines, .*p has 14 lines"):
        check_same_length(tmp_path / "f", tmp_path / "p")
    check_same_length(tmp_path / "f", tmp_path / "pipe")
    check_same_length(tmp_path / "f", None)


# --- standard input ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Generator[Write]:
    """Make standard input a pipe. Return a function that writes to it, and closes it after empty bytes."""
    read, write = os.pipe()

    def write_or_close(content: bytes) -> None:
        if content:
            os.write(write, content)
        else:
            os.close(write)

    with os.fdopen(read) as file:
        monkeypatch.setattr("sys.stdin", file)
        yield write_or_close


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_each_line_of_a_pipe_is_available_at_once(end: bytes, stdin: Write) -> None:
    lines = read_input([], None)
    for text in (b"one", b"", b"two two", b"x" * 50_000, b"z"):
        stdin(text + end)
        assert [next(lines), next(lines)] == [text.decode(), None]
    stdin(b"no end")
    stdin(b"")
    assert list(lines) == ["no end"]


def test_an_unfinished_line_waits_for_its_end(stdin: Write) -> None:
    lines = read_input([], None)
    stdin(b"one\ntw")
    assert [next(lines), next(lines)] == ["one", None]
    stdin(b"o\n")
    assert [next(lines), next(lines)] == ["two", None]


@pytest.mark.parametrize("size", [1, 5, 70_000])
def test_a_pipe_may_be_cut_anywhere(size: int, stdin: Write) -> None:
    """The cut may be within a line, within a character or within \\r\\n."""
    content = ("\ufeffÄ\r\n" + "ö€\n\n" * 9 + "end").encode()
    lines, found = read_input([], None), list[str | None]()
    for start in range(0, len(content), size):
        stdin(content[start : start + size])
        while (line := next(lines)) is not None:
            found.append(line)
    stdin(b"")
    assert [*found, *lines] == ["Ä", *["ö€", ""] * 9, "end"]


def test_a_pipe_that_does_not_block_is_read_to_its_end(stdin: Write) -> None:
    import sys

    os.set_blocking(sys.stdin.fileno(), False)
    lines = read_input([], None)
    assert next(lines) is None
    stdin(b"one\n")
    assert [next(lines), next(lines)] == ["one", None]
    stdin(b"")
    assert list(lines) == []


# --- invalid bytes, arguments, the prompt -----------------------------------------------------------------------------

INVALID = b"one\n" * 15 + b"na\xefve\nthree\n"


@pytest.mark.parametrize("source", ["file", "pipe", "argument"])
def test_invalid_bytes_are_refused_or_replaced(source: str, stdin: Write, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(INVALID)
    stdin(INVALID)
    stdin(b"")
    texts = [os.fsdecode(INVALID.strip())] if source == "argument" else []
    file = tmp_path / "f" if source == "file" else None
    where = {
        "file": f"{file}:16: not UTF-8 text (byte 0xef at position 3)",
        "pipe": "standard input:16: not UTF-8 text (byte 0xef at position 3)",
        "argument": "an argument is not UTF-8 text",
    }
    found: list[str | None] = []
    if source != "pipe":  # a pipe can be read only once
        with pytest.raises(UserError) as error:
            found.extend(read_input(texts, file))
        assert where[source] in str(error.value)
        assert found == (["one"] * 15 if source == "file" else [])
    else:
        with pytest.raises(UserError) as error:
            found.extend(read_input(texts, file))
        assert where[source] in str(error.value) and [line for line in found if line] == ["one"] * 15
        return
    assert list(read_input(texts, file, errors="replace")) == ["one"] * 15 + ["na\ufffdve", "three"]


def test_arguments_are_split_into_lines_like_files() -> None:
    assert list(read_input(["a\r\nb", "c"], None)) == ["a", "b", "c"]
    assert decode_argument("fünf \u2028") == "fünf \u2028"
