"""Readers of text files, plain or compressed, and of line-aligned files.

Only a line feed ends a line; a carriage return before it is removed. Separators such as U+2028 stay inside a line.
A file whose lines end in carriage returns alone is refused.
A line has a maximum length, so that a file of another kind, or a crafted one, cannot fill the memory. The first bytes
of a file tell whether it is compressed, because its name may be wrong.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

from transformer_mt.errors import UserError, suggest_file

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Errors = Literal["strict", "replace"]
Pair = tuple[str, str]
"""Source and target sentence."""

PAIRS_REMEDY = (
    "tmt check X.yaml finds the first shifted line, and with --write FOLDER it pairs lines of data.train again"
)
"""Advice for files of a configuration."""

MAX_LINE_BYTES = 1_000_000  # of a sentence or paragraph, with its line feed


DELETE_BLANK_LINES = "delete the blank lines at the end of the longer file"
"""Remedy if all surplus lines of the longer file are blank."""


class UnequalLengthError(UserError):
    """Files that belong together have different numbers of lines."""

    def __init__(self, counts: str, remedy: str) -> None:
        """`counts` names the files and their numbers of lines."""
        self.problem = f"{counts}: line N of one must belong to line N of the other"
        self.remedy = remedy
        self._arguments = counts, remedy
        super().__init__(f"{self.problem};\n{remedy}")

    def __reduce__(self) -> tuple[type[UnequalLengthError], tuple[str, str]]:
        """Make the error again in another process, which gets it from a worker."""
        return type(self), self._arguments


class MissingFileError(UserError):
    """A file does not exist."""


class SentencePair(NamedTuple):
    """A sentence pair with the file and line that it was read from."""

    src: str
    tgt: str
    file: str
    line: int
    numbers: tuple[float, ...] = ()  # of the columns that filters read


def check_is_file(path: Path) -> None:
    """Raise `UserError` if `path` is a directory, and `MissingFileError` if it does not exist."""
    if not path.exists():
        if path.is_symlink():
            raise MissingFileError(f"{path}: is a link to {path.readlink()}, which does not exist")
        raise MissingFileError(f"{path}: no such file (looked in {Path.cwd()}){suggest_file(path)}")
    if path.is_dir():
        raise UserError(f"{path}: is a directory; pass a file")


def check_is_regular(path: Path) -> None:
    """Raise `UserError` if a file that a configuration names is missing, a directory, or a pipe that may never end."""
    check_is_file(path)
    if not path.is_file():
        raise UserError(f"{path}: is a pipe or a device; save its content to a file")


# --- compression ------------------------------------------------------------------------------------------------------

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma", ".zst")
_COMPRESSIONS: Sequence[tuple[bytes, Callable[[BufferedReader], Any]]] = (
    (rb"\x1f\x8b", gzip.open),
    (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", bz2.open),
    (rb"\xfd7zXZ\0|\x5d\0\0", lzma.open),
    (rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", zstd.open),  # the latter: a frame to be skipped
)
"""First bytes of a compressed file, and the function that opens it."""
_OTHER_FILES = (
    (rb"PK[\x03\x05\x07][\x04\x06\x08]", "a ZIP archive or an Office document", "unzip, or by saving it as text"),
    (rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07", "a 7z or RAR archive", "7z x"),
    (rb".{257}ustar", "a tar archive", "tar -xf"),
    (rb"\x1f\x9d", "compressed (.Z)", "gzip -d"),
    (rb"\x04\x22\x4d\x18", "compressed with lz4", "lz4 -d"),
    (rb"%PDF-\d", "a PDF", "pdftotext"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1", "an old Office document", "saving it as text"),
    (rb"SQLite format 3\0", "an SQLite database", "sqlite3 -csv"),
)
"""First bytes of files that are not text, what they are, and what extracts their text."""
_HEAD_BYTES = 512
DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zstd.ZstdError)
"""Errors of the libraries that decompress."""


def remove_compressed_suffix(path: Path) -> Path:
    """Return the name that a file has without compression."""
    return path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path


def _find_decompressor(file: IO[bytes], path: Path) -> Callable[[BufferedReader], Any] | None:
    """Return the function that opens a compressed file. Raises `UserError` for other files that are not text."""
    try:
        head = cast(BufferedReader, file).peek(_HEAD_BYTES)[:_HEAD_BYTES]  # because a pipe cannot seek
    except DAMAGE as error:
        raise damage_error(str(path), 1, error) from None
    for magic, kind, remedy in _OTHER_FILES:
        if re.match(magic, head, re.DOTALL):
            raise UserError(f"{path}: is {kind}, and cannot be read; extract its text, e.g. with {remedy}")
    return next((opener for magic, opener in _COMPRESSIONS if re.match(magic, head)), None)


@contextmanager
def open_text(path: Path) -> Generator[IO[bytes]]:
    """Open a file for reading, and decompress it if its first bytes are those of a compressed one.

    Reading may raise `DAMAGE`. Raises `UserError` if the file is missing or cannot hold plain text.
    """
    check_is_file(path)
    with path.open("rb") as file:
        decompress = _find_decompressor(file, path)
        if decompress is None:
            yield file
            return
        with decompress(file) as text:
            if _find_decompressor(text, path):
                raise UserError(f"{path}: is compressed twice; decompress it once")
            yield text


def damage_error(name: str, line: int, error: Exception) -> Exception:
    """Return the error for a line that cannot be decompressed. An error of the disk gets the name of the file."""
    if isinstance(error, OSError) and error.errno is not None:
        error.filename = name
        return error
    return UserError(f"{name}:{line}: the compressed data is truncated or damaged ({error}); fetch the file again")


# --- structured text --------------------------------------------------------------------------------------------------

_STRUCTURED = (
    "adoc asciidoc ass bib cfg css csv dfxp doc docx epub htm html ini ipynb js json jsonl mqxliff ndjson odp ods odt "
    "org pdf php po pot ppt pptx properties py resx rst rtf sbv sdlxliff sql srt ssa stl strings sub svg tex tmx toml "
    "tsv ttml vtt vue xhtml xlf xliff xls xlsx xml yaml yml zip"
)
_STRUCTURED_SUFFIXES = frozenset(_STRUCTURED.split())
_STRUCTURE_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "rtf": re.compile(r"\{\\rtf"),
    "tmx": re.compile(r"(?:<\?xml[^>]*>\s*)?(?:<!DOCTYPE[^>]*>\s*)?<tmx\b"),
    "xliff": re.compile(r"(?:<\?xml[^>]*>\s*)?<xliff\b"),
    "html": re.compile(r"(?:<\?xml[^>]*>\s*)?(?:<!DOCTYPE html|<html\b)", re.IGNORECASE),
    "xml": re.compile(r"<\?xml\b|<!DOCTYPE\b"),
    "vtt": re.compile(r"WEBVTT\s"),
    "ass": re.compile(r"\[Script Info\]"),
    "srt": re.compile(r"\d+\s*\n\s*\d+:\d\d:\d\d[,.]\d+\s*-->"),
    "po": re.compile(r'(?:#.*\n|[^\S\n]*\n)*(?:msgctxt ".*"\n)?msgid ".*"\n(?:".*"\n)*(?:msgstr|msgid_plural) ?"'),
    "tex": re.compile(r"(?:%.*\n|[^\S\n]*\n)*\\documentclass\b"),
    "json": re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*:|\[\s*\{\s*"'),
    "tsv": re.compile(r"(?:[^\t\n]*(?:\t[^\t\n]*){1}\n){3}|(?:[^\t\n]*(?:\t[^\t\n]*){2}\n){3}"),
}
"""Patterns of the start of structured text, by its usual suffix."""
_HEAD_LINES, _HEAD_WIDTH = 100, 1000  # lines of the start, and characters of each


def find_structure(path: Path, *, by_name: bool = True) -> str | None:
    """Return the suffix, without its dot, of a file whose lines are not sentences, by its name or its beginning.

    With `by_name=False`, only the beginning counts.
    """
    suffix = remove_compressed_suffix(path).suffix.lower().removeprefix(".")
    if by_name and suffix in _STRUCTURED_SUFFIXES:
        return suffix
    if not path.is_file():  # a pipe can be read only once
        return None
    lines = islice(read_lines(path, "replace", on_bad=skip_bad_row), _HEAD_LINES)
    head = "".join(f"{line[:_HEAD_WIDTH]}\n" for line in lines).lstrip()
    return next((kind for kind, pattern in _STRUCTURE_PATTERNS.items() if pattern.match(head)), None)


# --- lines ------------------------------------------------------------------------------------------------------------


def read_file_state(path: Path) -> tuple[str, int, int]:
    """Return path, size and modification time of a file, for a cache key. Raises `UserError` if it is not regular."""
    check_is_regular(path)
    return str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns


def decode_line(raw: bytes, name: str, number: int, errors: Errors = "strict") -> str:
    """Decode line `number` of a file and strip its line end, and the byte order mark of line 1.

    Invalid UTF-8 and zero bytes become U+FFFD with `errors="replace"`, else raise `UserError` with file and line.
    """
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors)
    except UnicodeDecodeError as error:
        at = len(raw) - len(error.object) + error.start  # error.object lacks the byte order mark
        problem = f"not UTF-8 text (byte 0x{raw[at]:02x} at position {at + 1})"
        is_latin = _is_mostly_ascii(raw)
        problem += f";\n{_advise_iconv('cp1252')}" if is_latin else f";\n{_advise_iconv('ENCODING')}{_ENCODINGS}"
    else:
        if "\0" not in text:
            return text
        if errors == "replace" and not _find_wide_encoding(raw, number):
            return text.replace("\0", "\ufffd")
        at = raw.index(0) + 1
        problem = f"holds a zero byte (position {at}); is it a text file? Remove the byte or the line"
    if encoding := _find_wide_encoding(raw, number):
        problem = f"is text in {encoding}; {_advise_iconv(encoding)}"
    raise UserError(f"{name}:{number}: {problem}")


def _advise_iconv(encoding: str) -> str:
    return f"convert the plain text to UTF-8, e.g. with iconv -f {encoding} -t UTF-8 < OLD > NEW"


_ENCODINGS = "\n(ENCODING: cp1251 for Russian, gb18030 for Chinese, shift_jis for Japanese, euc-kr for Korean, ...)"


def _is_mostly_ascii(raw: bytes) -> bool:
    """Return whether less than a third of the letters are outside ASCII, as in text of Western Europe."""
    return 3 * sum(byte > 0x7F for byte in raw) < sum(byte > 0x40 for byte in raw)


def _find_wide_encoding(raw: bytes, number: int) -> str:
    """Return the encoding of a line in UTF-16 or UTF-32, else "". Latin text in them has many zero bytes."""
    if number == 1 and raw.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if number == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    even, odd = raw[::2].count(0), raw[1::2].count(0)
    if len(raw) < 4 or 4 * min(even, odd) > max(even, odd) or even + odd <= len(raw) / 3:
        return ""
    return "UTF-16BE" if even > odd else "UTF-16LE"


def check_line_ends(only_line: bytes, name: str) -> None:
    """Raise `UserError` if a text without a line feed has a carriage return between others: one ends each line."""
    if b"\r" in only_line[:-1]:
        raise UserError(
            f"{name}:1: lines end in carriage returns (\\r) alone; convert the plain text to line feeds, e.g. with "
            r"tr '\r' '\n' < OLD > NEW"
        )


def line_length_error(name: str, number: int, limit: int = MAX_LINE_BYTES) -> UserError:
    """Return the error for a line that is too long."""
    return UserError(f"{name}:{number}: longer than {limit:,} bytes; is it the right file? Split or remove this line")


BAD_LINE = "\0"
"""A line that cannot be read. A valid line has no zero byte."""

OnBad = Callable[[UserError], None]
"""Called with the error of a bad line or row, which is then left out."""


class UnpairedError(UserError):
    """A row lacks one of the two languages. It is not damaged, so it is left out and not counted as bad."""


def raise_bad_row(error: UserError) -> None:
    """Raise the error of a bad line or row. A row that lacks a language is left out."""
    if not isinstance(error, UnpairedError):
        raise error


def skip_bad_row(error: UserError) -> None:
    """Leave out a bad line or row, for a first look at a file."""


def read_lines(
    path: Path,
    errors: Errors = "strict",
    limit: int = MAX_LINE_BYTES,
    on_bad: OnBad = raise_bad_row,
) -> Iterator[str]:
    """Yield the lines of a text file, plain or compressed. A bad line becomes `BAD_LINE`, if `on_bad` returns.

    Raises `UserError` if the file cannot be read.
    """
    with open_text(path) as file:
        yield from iterate_lines(file, str(path), errors, limit, on_bad)


def iterate_lines(
    file: IO[bytes],
    name: str,
    errors: Errors = "strict",
    limit: int = MAX_LINE_BYTES,
    on_bad: OnBad = raise_bad_row,
) -> Iterator[str]:
    """Yield the lines of an open file."""
    number = 0
    try:
        for number, raw in enumerate(iter(lambda: file.readline(limit + 1), b""), start=1):
            if number == 1 and not raw.endswith(b"\n"):
                check_line_ends(raw, name)
            try:
                if len(raw) > limit:
                    raise line_length_error(name, number, limit)
                line = decode_line(raw, name, number, errors)
            except UserError as error:
                on_bad(error)
                line = BAD_LINE
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(limit)
            yield line
    except DAMAGE as error:
        raise damage_error(name, number + 1, error) from None


def zip_lines(
    *paths: Path, errors: Errors = "strict", remedy: str | None = None, on_bad: OnBad = raise_bad_row
) -> Iterator[tuple[str, ...]]:
    """Yield line N of every file, for each N. Raises `UnequalLengthError` if the files differ in length.

    The default `remedy` is a configuration with which `tmt check` finds the first shifted line.
    """
    return zip_iterators([read_lines(path, errors, on_bad=on_bad) for path in paths], paths, remedy)


def zip_iterators(
    files: Sequence[Iterator[str]], paths: Sequence[Path], remedy: str | None = None
) -> Iterator[tuple[str, ...]]:
    """Yield line N of every file like `zip_lines`."""
    for number, row in enumerate(zip_longest(*files), start=1):
        if None in row:
            surplus = [
                Counter(bool(line.strip()) for line in (rest if first is None else chain([first], rest)))
                for first, rest in zip(row, files, strict=True)
            ]
            counts = [number - 1 + each.total() for each in surplus]
            found = ", ".join(f"{path} has {count:,} lines" for path, count in zip(paths, counts, strict=True))
            if not any(each[True] for each in surplus):
                raise UnequalLengthError(found, DELETE_BLANK_LINES)
            other = next(path for path, count in zip(paths, counts, strict=True) if count != counts[0])
            raise UnequalLengthError(found, remedy or advise_check(str(paths[0]), str(other)))
        yield row


def advise_check(src: str, tgt: str, languages: tuple[str, str] = ("xx", "xx")) -> str:
    """Return advice for files of different length, and a configuration in one line."""
    src, tgt = (json.dumps(file, ensure_ascii=False) for file in (src, tgt))
    return (
        "save the last line as pairs.yaml: `tmt check pairs.yaml` finds the first shifted line\n"
        f"data: {{src_lang: {languages[0]}, tgt_lang: {languages[1]}, train: {{src: {src}, tgt: {tgt}}}}}"
    )


def read_aligned_files(*paths: Path) -> list[list[str]]:
    """Return the lines of each file. Raises `UserError` if the files are empty or differ in length."""
    rows = [*zip_lines(*paths)]
    if not rows:
        raise UserError(f"{paths[0]}: holds no lines; is it the right file?")
    return [list(column) for column in zip(*rows, strict=True)]


def read_pairs(
    src: Path, tgt: Path, errors: Errors = "strict", on_bad: OnBad = raise_bad_row
) -> Iterator[SentencePair]:
    """Yield the pairs of two line-aligned files. Raises `UserError` if the files differ in length."""
    lines = zip_lines(src, tgt, errors=errors, remedy=PAIRS_REMEDY, on_bad=on_bad)
    yield from pair_lines(lines, str(src))


def pair_lines(lines: Iterable[tuple[str, ...]], name: str) -> Iterator[SentencePair]:
    """Yield the pairs of lines that can be read."""
    for number, (src, tgt) in enumerate(lines, start=1):
        if src != BAD_LINE and tgt != BAD_LINE:
            yield SentencePair(src, tgt, name, number)
