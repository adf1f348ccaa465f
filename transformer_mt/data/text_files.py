"""Readers of text files, plain or gzipped, and of line-aligned files.

Only a line feed ends a line; a carriage return before it is removed. Separators such as U+2028 stay inside a line.
A line has a maximum length, so that a file of another kind, or a crafted one, cannot fill the memory.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

from transformer_mt.errors import UserError

Errors = Literal["strict", "replace"]
Pair = tuple[str, str]
"""Source and target sentence."""

CHECK_ADVICE = "save the last line as pairs.yaml: `tmt check pairs.yaml` finds the first shifted line"
"""Advice for files of different length; a configuration in one line follows."""
PAIRS_REMEDY = (
    "tmt check X.yaml finds the first shifted line, and with --write FOLDER it pairs lines of data.train again"
)
"""Advice for files of a configuration."""

MAX_LINE_BYTES = 1_000_000  # of a sentence or paragraph, with its line feed


class UnequalLengthError(UserError):
    """Files that belong together have different numbers of lines."""

    def __init__(self, counts: str, remedy: str) -> None:
        """`counts` names the files and their numbers of lines."""
        self.problem = f"{counts}: line N of one must belong to line N of the other"
        self._arguments = counts, remedy
        super().__init__(f"{self.problem};\n{remedy}")

    def __reduce__(self) -> tuple[type[UnequalLengthError], tuple[str, str]]:
        """Make the error again in another process, which gets it from a worker."""
        return type(self), self._arguments


class SentencePair(NamedTuple):
    """A sentence pair with the file and line that it was read from."""

    src: str
    tgt: str
    file: str
    line: int


def has_letters(text: str) -> bool:
    """Return whether a text has a letter of any script. Text without letters is copied instead of translated."""
    return any(map(str.isalpha, text))


def check_is_file(path: Path) -> None:
    """Raise `UserError` if `path` does not exist or is a directory."""
    if not path.exists():
        raise UserError(f"{path}: no such file (looked in {Path.cwd()})")
    if path.is_dir():
        raise UserError(f"{path}: is a directory; pass a file")


def read_file_state(path: Path) -> tuple[str, int, int]:
    """Return path, size and modification time of a file, for a cache key. Raises `UserError` if it is missing."""
    check_is_file(path)
    return str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns


def decode_line(raw: bytes, name: str, number: int, errors: Errors = "strict") -> str:
    """Decode line `number` of a file and strip its line end, and the byte order mark of line 1.

    Invalid UTF-8 becomes U+FFFD with `errors="replace"`, else raises `UserError` with file and line.
    """
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8", errors)
    except UnicodeDecodeError as error:
        at = len(raw) - len(error.object) + error.start  # error.object lacks the byte order mark
        raise UserError(
            f"{name}:{number}: not UTF-8 text (byte 0x{raw[at]:02x} at position {at + 1});\n"
            "convert the file to UTF-8, e.g. with iconv"
        ) from None


def line_length_error(name: str, number: int, limit: int = MAX_LINE_BYTES) -> UserError:
    """Return the error for a line that is too long."""
    return UserError(f"{name}:{number}: longer than {limit:,} bytes; is it the right file? Split or remove this line")


class LineStart(NamedTuple):
    """Position of line `number` (from 1) of an uncompressed file: `skipped` lines after the byte `offset`."""

    number: int = 1
    offset: int = 0
    skipped: int = 0


FIRST_LINE = LineStart()


def read_lines(
    path: Path, errors: Errors = "strict", limit: int = MAX_LINE_BYTES, start: LineStart = FIRST_LINE
) -> Iterator[str]:
    """Yield the lines of a text file, plain or `.gz`. Raises `UserError` if it cannot be read."""
    check_is_file(path)
    number = start.number - 1
    try:
        with cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as file:
            if start.offset:  # a pipe cannot seek
                file.seek(start.offset)
            for _ in range(start.skipped):
                file.readline()
            for number, raw in enumerate(iter(lambda: file.readline(limit + 1), b""), start.number):
                if len(raw) > limit:
                    raise line_length_error(str(path), number, limit)
                yield decode_line(raw, str(path), number, errors)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}:{number + 1}: the .gz is truncated or damaged ({error}); fetch it again") from None


def zip_lines(*paths: Path, errors: Errors = "strict", remedy: str | None = None) -> Iterator[tuple[str, ...]]:
    """Yield line N of every file, for each N. Raises `UnequalLengthError` if the files differ in length.

    The default `remedy` is a configuration with which `tmt check` finds the first shifted line.
    """
    files = [read_lines(path, errors) for path in paths]
    for number, row in enumerate(zip_longest(*files), start=1):
        if None in row:
            counts = [number - (line is None) + sum(1 for _ in rest) for line, rest in zip(row, files, strict=True)]
            raise unequal_length_error(paths, counts, remedy)
        yield row


def unequal_length_error(paths: Sequence[Path], counts: Sequence[int], remedy: str | None = None) -> UnequalLengthError:
    """Return the error for files with different line counts."""
    found = ", ".join(f"{path} has {count:,} lines" for path, count in zip(paths, counts, strict=True))
    other = next(path for path, count in zip(paths, counts, strict=True) if count != counts[0])
    return UnequalLengthError(found, remedy or _advise_check(paths[0], other))


def _advise_check(path: Path, other: Path) -> str:
    src, tgt = (json.dumps(str(file), ensure_ascii=False) for file in (path, other))
    return f"{CHECK_ADVICE}\ndata: {{src_lang: xx, tgt_lang: xx, train: {{src: {src}, tgt: {tgt}}}}}"


def read_aligned_files(*paths: Path) -> list[list[str]]:
    """Return the lines of each file. Raises `UserError` if the files are empty or differ in length."""
    rows = [*zip_lines(*paths)]
    if not rows:
        raise UserError(f"{paths[0]}: holds no lines; is it the right file?")
    return [list(column) for column in zip(*rows, strict=True)]


def read_pairs(src: Path, tgt: Path, errors: Errors = "strict") -> Iterator[SentencePair]:
    """Yield the pairs of two line-aligned files. Raises `UserError` if the files differ in length."""
    lines = zip_lines(src, tgt, errors=errors, remedy=PAIRS_REMEDY)
    for number, (src_line, tgt_line) in enumerate(lines, start=1):
        yield SentencePair(src_line, tgt_line, str(src), number)
