"""PO files of gettext: messages are translated, comments, flags and order are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import polib

from transformer_mt.documents.document import Document, DocumentError, Splice
from transformer_mt.documents.encoding import check_encoding_name
from transformer_mt.documents.inline import make_text_parts

_OTHER_LINE_BREAKS = re.compile("[\v\f\x1c-\x1e\x85\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}]|\r(?!\n)")
_STRING = r'"(?:[^"\\]|\\.)*"[ \t]*'
_KEYWORD = re.compile(
    rf"^[ \t]*(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d+)\])?[ \t]*({_STRING}(?:\r?\n[ \t]*{_STRING})*)", re.MULTILINE
)
_LINE = re.compile(rf"\s*(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*)?{_STRING})?")
_NUMERIC_ESCAPE = re.compile(r"\\\\|((?:\\x[0-9a-fA-F]{2}|\\[0-7]{1,3}|\\a)+)")  # polib does not decode them
_ESCAPES = {ord(character): f"\\{name}" for character, name in zip('\\"\n\t\r\v\f\b', '\\"ntrvfb', strict=True)}
_CONTROLS = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {7: r"\a"}


class _Value(NamedTuple):
    """The translation of a message in the file, with the range of its strings."""

    keyword: str
    start: int
    end: int


def parse_po(text: str, language: str, *, retranslate: bool = False) -> Document:
    """Return the document of a PO file. Messages without a translation and fuzzy messages are translated.

    Args:
        text: The file.
        language: Language code of the translation, for an empty field `Language` of the header.
        retranslate: Translate also messages that have a translation.

    Raises:
        DocumentError: It is not a PO file, or not in UTF-8.
    """
    _check_lines(text)
    entries = [entry for entry in _read_entries(text) if not entry.obsolete]
    values = [value for value in _find_values(text) if value.keyword == "msgstr"]
    sources = [source for entry in entries for source in _sources(entry)]
    splices: list[Splice] = []
    remaining = iter(values)
    if _starts_with_header(text):
        splices += _header_splices(text, next(remaining), language)
    values = [*remaining]
    if len(values) != len(sources):
        raise DocumentError(1, "messages and translations do not match; check the file with msgfmt -c")
    for (source, is_wanted), value in zip(sources, values, strict=True):
        if source and (is_wanted or retranslate):
            newline = "\r\n" if "\r\n" in text else "\n"
            parts = make_text_parts(source, value.start, _escape)
            is_long = any(isinstance(part, str) and part.endswith("\\n") for part in parts[:-1])
            start = f'""{newline}"' if is_long else '"'
            lines = [part.replace("\\n", f'\\n"{newline}"') if isinstance(part, str) else part for part in parts[:-1]]
            splices.append(Splice(value.start, value.end, [start, *lines, parts[-1], '"'], always_replaces=True))
    return Document(text, splices)


def _check_lines(text: str) -> None:
    """Raise `DocumentError` for a line that no PO file has. polib accepts some of them."""
    for number, line in enumerate(text.split("\n"), 1):
        if not _LINE.fullmatch(line.removesuffix("\r")):
            raise DocumentError(number, "not a line of a PO file; check the file with msgfmt -c")


def _read_entries(text: str) -> Sequence[polib.POEntry]:
    try:
        # A final line break, because polib opens a text that is the name of a file.
        return polib.pofile(_OTHER_LINE_BREAKS.sub(" ", _NUMERIC_ESCAPE.sub(_read_escapes, text)) + "\n")
    except (OSError, ValueError, IndexError, KeyError) as error:
        match = re.search(r"line (\d+)\)?:?\s*(.*)", str(error))
        line, reason = (int(match[1]), match[2]) if match else (1, "")
        raise DocumentError(line, f"not a PO file{f' ({reason})' if reason else ''}; check it with msgfmt -c") from None


def _read_escapes(match: re.Match[str]) -> str:
    """Return the characters of escapes by number, with the other escapes unchanged."""
    if match[1] is None:
        return match[0]
    codes = re.findall(r"\\(?:x(..)|([0-7]+)|a)", match[1])
    values = bytes(int(hexadecimal or octal or "7", 16 if hexadecimal else 8) & 255 for hexadecimal, octal in codes)
    return values.decode(errors="replace").translate(_ESCAPES)


def _sources(entry: polib.POEntry) -> Iterator[tuple[str, bool]]:
    """Yield the text to translate for each `msgstr` of a message, and whether its translation is missing or fuzzy."""
    if not entry.msgid_plural:
        yield entry.msgid, not entry.msgstr or entry.fuzzy
        return
    for index, translation in entry.msgstr_plural.items():  # in the order of the file
        yield entry.msgid_plural if index else entry.msgid, not translation or entry.fuzzy


def _find_values(text: str) -> list[_Value]:
    return [
        _Value(match[1], match.start(3), match.start(3) + len(match[3].rstrip())) for match in _KEYWORD.finditer(text)
    ]


def _starts_with_header(text: str) -> bool:
    first = next((match for match in _KEYWORD.finditer(text)), None)
    return first is not None and first[1] == "msgid" and not "".join(re.findall(_STRING, first[3])).strip('" \t')


def _header_splices(text: str, value: _Value, language: str) -> Iterator[Splice]:
    """Check the encoding, and yield a splice that sets the language."""
    match = re.compile(r"charset=([\w.:-]*)").search(text, value.start, value.end)
    if match:
        check_encoding_name(match[1], 1 + text.count("\n", 0, match.start()))
    match = re.compile(r'"Language:( *)\\n"').search(text, value.start, value.end)
    if match:
        yield Splice(match.start(1), match.end(1), [f" {language}"])


def _escape(text: str) -> str:
    return text.translate(_CONTROLS | _ESCAPES)
