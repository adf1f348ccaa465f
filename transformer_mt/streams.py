"""Lines in and lines out of the command line: arguments, files, a prompt, standard input and output."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from transformer_mt.data.sources import decode_line, read_lines
from transformer_mt.errors import UserError


def lines(texts: Sequence[str], file: Path | None, at_prompt: bool) -> Iterable[str]:
    """What is to be read: arguments, a file, what is typed, or standard input. Raises `UserError` for other bytes
    than UTF-8."""
    if texts:
        return (line for text in texts for line in check_text(text).split("\n"))
    if file:
        return read_lines(file)
    if at_prompt:
        return _prompt_lines()
    return (decode_line(raw, "standard input", number) for number, raw in enumerate(sys.stdin.buffer, start=1))


def check_text(text: str) -> str:
    """An argument whose bytes were no UTF-8, or that another locale took for none, holds lone surrogates."""
    try:
        return os.fsencode(text).decode() if any("\ud800" <= char <= "\udfff" for char in text) else text
    except UnicodeError:
        raise UserError("an argument is not UTF-8 text") from None


def _prompt_lines() -> Iterator[str]:
    """What is typed, line by line, until the end of input."""
    with suppress(ImportError):
        __import__("readline")  # gives input() a history
    with suppress(EOFError):
        while True:
            yield check_text(input("> "))


def check_input(texts: Sequence[str], file: Path | None, verb: str) -> None:
    """Refuse what cannot be read before anything is loaded."""
    if texts and file:
        raise UserError(f"{verb}: give texts or --input, not both")
    if file and file.is_dir():
        raise UserError(f"{file}: is a directory; name a file")
    if file and not file.exists():
        raise UserError(f"{file}: no such file (looked in {Path.cwd()})")


def check_output(path: Path | None) -> None:
    """Refuse what cannot be written before anything is loaded."""
    if path is not None and path.is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}")


@contextmanager
def output(path: Path | None) -> Generator[IO[bytes]]:
    """Standard output, or a file that takes its name when it is whole; until then its lines are in `path.part`."""
    if path is None:
        yield sys.stdout.buffer
        return
    path = path.resolve()  # what a link points to is written, not the link
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        yield file
    part.replace(path)


def windows(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lines by the window; when reading fails, what was read before comes first."""
    window: list[str] = []
    try:
        for line in lines:
            window.append(line)
            if len(window) == size:
                yield window
                window = []
    except UserError:
        yield window
        raise
    yield window
