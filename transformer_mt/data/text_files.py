"""Lines of text files, plain or `.gz`, and pairs of lines.

Only `\\n` ends a line (`\\r\\n` loses its `\\r`); U+2028 and its kind stay inside. Bytes that are not UTF-8 are an
error that names file and line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

from transformer_mt.errors import UserError

Errors = Literal["strict", "replace"]


class SentencePair(NamedTuple):
    """One sentence pair and where it was read."""

    src: str
    tgt: str
    file: str
    line: int


def decode_line(raw: bytes, name: str, number: int, errors: Errors = "strict") -> str:
    """A line of a file, or of standard input, as text, without its end. Invalid bytes are refused, or become U+FFFD."""
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8", errors)
    except UnicodeDecodeError as error:
        at = len(raw) - len(error.object) + error.start  # behind a byte order mark, which was taken off
        raise UserError(
            f"{name}:{number}: not UTF-8 text (byte 0x{raw[at]:02x} at position {at + 1});\n"
            "convert the file to UTF-8, e.g. with iconv"
        ) from None


def read_lines(path: Path, errors: Errors = "strict") -> Iterator[str]:
    """The lines of a text file, plain or `.gz`."""
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                yield decode_line(raw, str(path), number, errors)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file (looked in {Path.cwd()})") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; name a file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}:{number + 1}: the .gz is truncated or damaged ({error}); fetch it again") from None


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))


def zip_lines(*paths: Path, errors: Errors = "strict") -> Iterator[tuple[str, ...]]:
    """Line N of every file, for each N. Raises `UserError` where one of them has more lines than another."""
    files = [read_lines(path, errors) for path in paths]
    for number, row in enumerate(zip_longest(*files), start=1):
        if None in row:
            counts = [number - (line is None) + sum(1 for _ in rest) for line, rest in zip(row, files, strict=True)]
            found = ", ".join(f"{path} has {count:,} lines" for path, count in zip(paths, counts, strict=True))
            raise UserError(
                f"{found}: line N of one must belong to line N of the other;\nfind the line from which they differ"
            )
        yield row


def read_aligned_files(*paths: Path) -> list[list[str]]:
    """The lines of each file. Raises `UserError` unless all have as many, one at least."""
    rows = [*zip_lines(*paths)]
    if not rows:
        raise UserError(f"{paths[0]}: holds no lines; is it the right file?")
    return [list(column) for column in zip(*rows, strict=True)]


def read_pairs(src: Path, tgt: Path, errors: Errors = "strict") -> Iterator[SentencePair]:
    """The pairs of two files. Raises `UserError` as `zip_lines` does."""
    for number, (one, other) in enumerate(zip_lines(src, tgt, errors=errors), start=1):
        yield SentencePair(one, other, str(src), number)
