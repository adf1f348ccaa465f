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


class Pair(NamedTuple):
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
        raise UserError(
            f"{name}:{number}: not UTF-8 text (byte 0x{raw[error.start]:02x} at position {error.start + 1});\n"
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


def read_aligned(first: Path, *others: Path) -> list[list[str]]:
    """The lines of files whose lines belong together. Raises `UserError` unless all have as many, one at least."""
    found = [[*read_lines(path)] for path in (first, *others)]
    for path, lines in zip(others, found[1:], strict=True):
        if len(lines) != len(found[0]):
            raise UserError(
                f"{path} has {len(lines):,} lines, {first} has {len(found[0]):,}: line N of one must belong to line N "
                "of the other;\nfind the line from which they differ"
            )
    if not found[0]:
        raise UserError(f"{first}: holds no lines; is it the right file?")
    return found


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))


def read_text(src: Path, tgt: Path, errors: Errors = "strict") -> Iterator[Pair]:
    """The pairs of two text files. Raises `UserError` where one has more lines than the other."""
    sides = read_lines(src, errors), read_lines(tgt, errors)
    for number, (a, b) in enumerate(zip_longest(*sides), start=1):
        if a is None or b is None:
            n_src, n_tgt = (
                number - (last is None) + sum(1 for _ in rest) for last, rest in zip((a, b), sides, strict=True)
            )
            raise UserError(
                f"{src} has {n_src} lines, {tgt} has {n_tgt}: line N of one must translate line N of the other;\n"
                "find the line from which they differ"
            )
        yield Pair(a, b, str(src), number)
