"""Input lines: from arguments, a file, a prompt or standard input, grouped into windows.

A stream of lines yields None before it waits for input, and the consumer then processes the lines that it has. Thus a
program that writes one line and waits for the translation gets it at once.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, TypeVar

from transformer_mt.data.text_files import (
    MAX_LINE_BYTES,
    Errors,
    check_is_file,
    decode_line,
    line_length_error,
    read_lines,
    zip_lines,
)
from transformer_mt.errors import UserError
from transformer_mt.system.log import log_rank0

WINDOW_LINES = 1000  # lines in memory at a time
CHUNK_BYTES = 1 << 16  # the capacity of a Linux pipe
REFILL_SECONDS = 0.01  # time for the writer of a pipe to refill it, so that windows are full

T = TypeVar("T")


class Line(NamedTuple):
    """A source line with its target: for translation, the prefix to force; for scoring, the whole translation."""

    src: str
    tgt: str = ""


def read_input(
    texts: Sequence[str], file: Path | None, at_prompt: bool = False, errors: Errors = "strict"
) -> Iterator[str | None]:
    """Read the lines of `texts` if there are any, else of `file`, else of the prompt or standard input.

    Raises `UserError` for input that is not UTF-8, unless `errors` is replace.
    """
    if texts:
        return (line.removesuffix("\r") for text in texts for line in decode_argument(text, errors).split("\n"))
    if file:
        return read_lines(file, errors)
    return _read_prompt(errors) if at_prompt else _read_stdin(errors)


def decode_argument(text: str, errors: Errors = "strict") -> str:
    """Return an argument without surrogate escapes, which Python uses for bytes that are not UTF-8.

    Raises `UserError` for such bytes, unless `errors` is replace.
    """
    try:
        return text.encode(errors="surrogateescape").decode(errors=errors)
    except UnicodeError:
        raise UserError("an argument is not UTF-8 text") from None


def _read_prompt(errors: Errors) -> Iterator[str | None]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # as in arguments
    with suppress(ImportError):
        import readline  # noqa: F401  # pyright: ignore[reportUnusedImport]  (gives input() a history)
    with suppress(EOFError):
        while True:
            line = input("> ")
            try:
                yield decode_argument(line, errors)
            except UserError:
                log_rank0("tmt: the line is not UTF-8 text; type it again, or start with --errors replace")
                continue
            yield None


def _read_stdin(errors: Errors) -> Iterator[str | None]:
    """Read standard input line by line, with a None before each wait for more."""
    stdin, number, unfinished = sys.stdin.fileno(), 0, b""
    while True:
        if not select.select([stdin], [], [], REFILL_SECONDS)[0]:
            yield None
            select.select([stdin], [], [])  # because a read of an empty non-blocking pipe raises an error
        chunk = os.read(stdin, CHUNK_BYTES)
        *complete, unfinished = (unfinished + chunk).split(b"\n")
        if not chunk and unfinished:
            complete.append(unfinished)
        for raw in complete:
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise line_length_error("standard input", number)
            yield decode_line(raw, "standard input", number, errors)
        if not chunk:
            return
        if len(unfinished) > MAX_LINE_BYTES:
            raise line_length_error("standard input", number + 1)


def add_prefixes(texts: Iterable[str | None], file: Path | None, errors: Errors = "strict") -> Iterator[Line | None]:
    """Pair line N of the input with line N of a file. Raises `UserError` unless both have the same number of lines."""
    prefixes = read_lines(file, errors) if file else repeat("")
    rule = "line N of one must begin the translation of line N of the other"
    for text in texts:
        if text is None:
            yield None
        elif (prefix := next(prefixes, None)) is None:
            raise UserError(f"{file}: has fewer lines than the input; {rule}")
        else:
            yield Line(text, prefix)
    if file and next(prefixes, None) is not None:
        raise UserError(f"{file}: has more lines than the input; {rule}")


def check_same_length(src: Path | None, tgt: Path | None, errors: Errors = "strict") -> None:
    """Raise `UserError` if two files differ in their number of lines. Skip pipes, which can be read only once."""
    if src and tgt and src.is_file() and tgt.is_file():
        for _ in zip_lines(src, tgt, errors=errors):
            pass


def group_windows(items: Iterable[T | None], size: int) -> Iterator[list[T]]:
    """Group items into lists of `size`. A None, an error or the end of the items ends a list early."""
    window: list[T] = []
    try:
        for item in items:
            if item is not None:
                window.append(item)
            if window and (item is None or len(window) == size):
                yield window
                window = []
    except UserError:
        if window:
            yield window
        raise
    if window:
        yield window


def check_files(*files: Path | None) -> None:
    """Raise `UserError` if a file is missing or is a directory. Skip None."""
    for file in filter(None, files):
        check_is_file(file)
