"""Lines in for the command line: arguments, files, a prompt, standard input; and windows of them.

Among lines, None says that no more are ready right now: so a program that writes a line and waits for its translation
gets it at once, while a file or a full pipe is translated in windows of many lines.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from queue import Empty, Queue
from shlex import quote
from typing import IO, NamedTuple, TypeVar

from transformer_mt.data.text_files import Errors, decode_line, read_lines, read_pairs
from transformer_mt.errors import UserError
from transformer_mt.system.logging import log_rank0

BYTES = 1 << 16  # read at once: what a pipe holds
AHEAD = 2000  # lines that are read while others are translated

T = TypeVar("T")


class Line(NamedTuple):
    """A line to translate, and what is given of its translation: how it has to begin, or, to be scored, all of it."""

    text: str
    tgt: str = ""


# --- lines ------------------------------------------------------------------------------------------------------------


def lines(texts: Sequence[str], file: Path | None, at_prompt: bool, errors: Errors = "strict") -> Iterator[str | None]:
    """What is to be read: arguments, a file, what is typed, or standard input. Raises `UserError` for other bytes
    than UTF-8, unless they are to be replaced."""
    if texts:
        return (line.removesuffix("\r") for text in texts for line in decode_argument(text, errors).split("\n"))
    if file:
        return read_lines(file, errors)
    if at_prompt:
        return _prompt_lines(errors)
    return _read_ahead(_standard_input(errors), AHEAD)


def decode_argument(text: str, errors: Errors = "strict") -> str:
    """The text of an argument, or of a typed line, whose bytes Python may have held as lone surrogates.

    Raises `UserError` where they are not UTF-8, unless `errors` is replace.
    """
    try:
        return os.fsencode(text).decode(errors=errors) if any("\ud800" <= char <= "\udfff" for char in text) else text
    except UnicodeError:
        raise UserError("an argument or a typed line is not UTF-8 text") from None


def _prompt_lines(errors: Errors) -> Iterator[str | None]:
    """What is typed, line by line, until the end of input."""
    with suppress(ImportError):
        __import__("readline")  # gives input() a history
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # for `decode_argument`
    with suppress(EOFError):
        while True:
            yield decode_argument(input("> "), errors)
            yield None


def _standard_input(errors: Errors) -> Iterator[str | None]:
    number = 0
    for raw in _raw_lines(sys.stdin.buffer):
        number += raw is not None
        yield None if raw is None else decode_line(raw, "standard input", number, errors)


def _raw_lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """The lines of a pipe, a terminal or a file as they come in."""
    try:
        handle = stream.fileno()
    except io.UnsupportedOperation:  # text in memory: all of it is there
        yield from stream
        return
    begun: list[bytes] = []  # of a line whose end is still to come
    while chunk := (yield from _next_chunk(handle)):
        first, *rest = chunk.split(b"\n")
        begun.append(first)
        if rest:
            yield b"".join(begun)
            yield from rest[:-1]
            begun = [rest[-1]]
    if last := b"".join(begun):
        yield last


def _next_chunk(handle: int) -> Generator[None, None, bytes]:
    """Yields None before it waits. The file itself is read, for a lock on its buffer would outlive the program."""
    if not select.select([handle], [], [], 0)[0]:
        yield None
        select.select([handle], [], [])
    return os.read(handle, BYTES)


@dataclass(frozen=True)
class _End:
    """Of what a thread reads; with what stopped it."""

    error: Exception | None


def _read_ahead(items: Iterator[T | None], room: int) -> Iterator[T | None]:
    """The same items, read by a thread, so many ahead; an error comes behind what was read before it.

    A None that more has followed meanwhile is left out.
    """
    queue: Queue[T | _End | None] = Queue(room)
    is_left = threading.Event()

    def read() -> None:
        error: Exception | None = None
        try:
            for item in items:
                queue.put(item)
                if is_left.is_set():
                    return
        except Exception as found:
            error = found
        queue.put(_End(error))

    threading.Thread(target=read, name="reading", daemon=True).start()
    try:
        while not isinstance(item := queue.get(), _End):
            if item is not None or queue.empty():
                yield item
        if item.error:
            raise item.error
    finally:
        is_left.set()
        with suppress(Empty):
            while True:
                queue.get_nowait()  # whoever waits for room goes on, and ends


# --- what becomes of them ---------------------------------------------------------------------------------------------


def paired(texts: Iterable[str | None], file: Path | None = None, errors: Errors = "strict") -> Iterator[Line | None]:
    """Each line with the line of a file that its translation has to begin with. Raises `UserError` where one has more
    lines than the other."""
    prefixes, number = (read_lines(file, errors) if file else repeat("")), 0
    for text in texts:
        if text is None:
            yield None
            continue
        prefix = next(prefixes, None)
        if prefix is None:
            raise UserError(
                f"{file}: has {number:,} lines, and the input goes on with line {number + 1:,}: line N of one must "
                "begin the translation of line N of the other"
            )
        number += 1
        yield Line(text, prefix)
    if file and next(prefixes, None) is not None:
        raise UserError(
            f"{file}:{number + 1}: the input has {number:,} lines, and this has more: line N of one must begin the "
            "translation of line N of the other"
        )


def check_prefixes(file: Path | None, prefixes: Path | None, errors: Errors = "strict") -> None:
    """Raise `UserError` where these are no lines and their beginnings; files that can be read only once are not
    looked into."""
    if file and prefixes and file.is_file() and prefixes.is_file():
        for _ in paired(read_lines(file, errors), prefixes, errors):
            pass


def translated(src: Path, tgt: Path, errors: Errors = "strict") -> Iterator[Line]:
    """Each line of a file with its translation in another. Raises `UserError` where one has more lines than the other,
    at once where the files can be read twice."""
    if src.is_file() and tgt.is_file():
        for _ in read_pairs(src, tgt, errors):
            pass
    return (Line(pair.src, pair.tgt) for pair in read_pairs(src, tgt, errors))


def windows(items: Iterable[T | None], size: int) -> Iterator[list[T]]:
    """Up to `size` at a time, fewer where None says so; when reading fails, what was read before comes first."""
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


def check_input(texts: Sequence[str], file: Path | None, verb: str) -> None:
    """Refuse what cannot be read before anything is loaded."""
    if texts and file:
        raise UserError(f"{verb}: give texts or --input, not both")
    if not texts and not file and not sys.stdin:
        raise UserError(f"{verb}: standard input is closed; give texts or --input")
    check_file(file)
    for text in texts:
        if os.path.isfile(text):  # noqa: PTH113  (unlike Path, it finds nothing wrong with a long text)
            command = f"{verb} --input {quote(text)}"
            log_rank0(f"tmt: warning: {text} is a file, and was taken for a text; {command} reads its lines")


def check_file(file: Path | None) -> None:
    """Refuse a file that cannot be read, where there is to be one."""
    if file and file.is_dir():
        raise UserError(f"{file}: is a directory; name a file")
    if file and not file.exists():
        raise UserError(f"{file}: no such file (looked in {Path.cwd()})")
