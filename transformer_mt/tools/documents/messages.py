"""Messages of programs and subtitles: PO files of gettext, JSON and SRT."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import polib

from transformer_mt.tools.documents.document import (
    Document,
    DocumentError,
    DocumentOptions,
    InlineToken,
    Piece,
    Replacement,
    Segment,
    add_text,
    check_encoding_name,
    make_segment,
    make_text_parts,
)
from transformer_mt.tools.markup.elements import Role

_OTHER_LINE_BREAKS = re.compile("[\v\f\x1c-\x1e\x85\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}]|\r(?!\n)")
_STRING = r'"(?:[^"\\]|\\.)*"'
_KEYWORD = re.compile(
    r"^[ \t]*(?P<keyword>msgctxt|msgid_plural|msgid|msgstr)(?:\[\d+\])?[ \t]*"
    rf"(?P<strings>{_STRING}(?:[ \t]*\r?\n[ \t]*{_STRING})*)",
    re.MULTILINE,
)
_LINE = re.compile(rf"\s*(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*)?{_STRING}[ \t]*)?")
_NUMERIC_ESCAPE = re.compile(r"\\\\|((?:\\x[0-9a-fA-F]{2}|\\[0-7]{1,3}|\\a)+)")  # polib does not decode them
_ESCAPES = {ord(character): f"\\{name}" for character, name in zip('\\"\n\t\r\v\f\b', '\\"ntrvfb', strict=True)}
_CONTROLS = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {7: r"\a"}


def parse_po(text: str, options: DocumentOptions) -> Document:
    """Return the document of a PO file. Messages without a translation and fuzzy messages are translated.

    The language is set in an empty field `Language` of the header. Raises `DocumentError` unless it is a PO file in
    UTF-8.
    """
    _check_lines(text)
    sources = [source for entry in _read_entries(text) if not entry.obsolete for source in _sources(entry)]
    strings = [*_KEYWORD.finditer(text)]
    values = [match.span("strings") for match in strings if match["keyword"] == "msgstr"]
    replacements: list[Replacement] = []
    if strings and strings[0]["keyword"] == "msgid" and not re.sub(r'["\s]', "", strings[0]["strings"]):
        replacements += _header_replacements(text, *values.pop(0), options.language)  # the first message is the header
    if len(values) != len(sources):
        raise DocumentError(1, "messages and translations do not match; check the file with msgfmt -c")
    newline = "\r\n" if "\r\n" in text else "\n"
    for (source, is_wanted), (start, end) in zip(sources, values, strict=True):
        if source and (is_wanted or options.retranslate):
            parts = make_text_parts(source, start, _escape)
            is_long = any(isinstance(part, str) and part.endswith("\\n") for part in parts[:-1])
            opening = f'""{newline}"' if is_long else '"'
            lines = [part.replace("\\n", f'\\n"{newline}"') if isinstance(part, str) else part for part in parts[:-1]]
            replacements.append(Replacement(start, end, [opening, *lines, parts[-1], '"'], always_replaces=True))
    return Document(text, replacements)


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


def _header_replacements(text: str, start: int, end: int, language: str) -> Iterator[Replacement]:
    """Check the encoding in the header, and yield a replacement that sets the language."""
    if match := re.compile(r"charset=([\w.:-]*)").search(text, start, end):
        check_encoding_name(match[1], 1 + text.count("\n", 0, match.start()))
    if match := re.compile(r'"Language:( *)\\n"').search(text, start, end):
        yield Replacement(match.start(1), match.end(1), [f" {language}"])


def _escape(text: str) -> str:
    return text.translate(_CONTROLS | _ESCAPES)


_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"(?P<is_name>[ \t\r\n]*:)?')
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, written as an escape. Its string is not text, and stays unchanged."""


def parse_json(text: str, _: DocumentOptions) -> Document:
    """Return the document of a JSON file. Raises `DocumentError` if it is not JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise DocumentError(error.lineno, f"not JSON: {error.msg} (column {error.colno}); correct it") from None
    except RecursionError:
        raise DocumentError(1, "values are nested too deeply; use a flatter file") from None
    # A file that is ASCII by escapes stays ASCII.
    escape = partial(_escape_json, ascii=text.isascii() and re.search(r"\\u0*[0-9a-fA-F]{3}", text) is not None)
    replacements: list[Replacement] = []
    for match in _JSON_STRING.finditer(text):
        if match["is_name"] is None:
            start, end = match.start() + 1, match.end() - 1
            value = json.loads(match[0])
            replacement = Replacement(start, end, make_text_parts(value, start, escape))
            if replacement.segments and not _SURROGATE.search(value):
                replacements.append(replacement)
    return Document(text, replacements)


def _escape_json(text: str, *, ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii)[1:-1]


_TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d+:\d\d:\d\d[,.]\d{1,3}(\s.*)?")
_DASH = re.compile(r"\s*[-\N{EN DASH}\N{EM DASH}]\s*")
_TAG = re.compile(
    r"<(?P<closing>/?)(?P<name>[bius]|font)\b[^<>]*>"
    r"|\{\\(?P<style>[bius])(?P<is_on>[01])\}|\{\\?/?[biusyc\\][^{}]*\}",  # {\i1}, {\an8}, {y:i}
    re.IGNORECASE,
)


def parse_srt(text: str, _: DocumentOptions) -> Document:
    """Return the document of a subtitle file. Raises `DocumentError` if it has text without a time."""
    lines = [(match.start(), match.end(), match[0]) for match in re.finditer(r"[^\r\n]+|(?<=\n)(?=\r?\n)", text)]
    replacements: list[Replacement] = []
    cue: list[tuple[int, int]] = []  # lines of the current cue
    has_time = False
    for i, (start, end, line) in enumerate(lines):
        following = lines[i + 1][2] if i + 1 < len(lines) else ""
        if line.strip().isdecimal() and _TIMES.fullmatch(following):
            continue  # the number of a cue
        if _TIMES.fullmatch(line) or not line.strip():
            has_time |= bool(line.strip())
            replacements += _cue_replacements(text, cue)
            cue = []
        elif not has_time or "-->" in line:
            number = 1 + text.count("\n", 0, start) + ("-->" in following)
            raise DocumentError(number, "expected a time such as 00:00:01,000 --> 00:00:02,500; correct the file")
        else:
            cue.append((start, end))
    return Document(text, [*replacements, *_cue_replacements(text, cue)])


def _cue_replacements(text: str, lines: Sequence[tuple[int, int]]) -> Iterator[Replacement]:
    """Yield the segments of a cue: one, or one for each line that starts with a dash."""
    dashes = [_DASH.match(text, start, end) for start, end in lines]
    is_dialogue = len(lines) > 0 and all(dashes)
    tokens: list[InlineToken] = []
    for (start, end), dash in zip(lines, dashes, strict=True):
        if is_dialogue and dash is not None:
            yield from _make_replacements(text, [*_tokenize(text, dash.end(), end)])
            continue
        if tokens:
            tokens.append(InlineToken(tokens[-1].end, start, " "))
        tokens += _tokenize(text, start, end)
    yield from _make_replacements(text, tokens)


def _tokenize(text: str, start: int, end: int) -> Iterator[InlineToken]:
    tags: list[InlineToken] = []
    for match in _TAG.finditer(text, start, end):
        name = match["name"] or match["style"]
        is_closing = match["closing"] or match["is_on"] == "0"
        role = Role.SINGLE if name is None else Role.CLOSING if is_closing else Role.OPENING
        tags.append(InlineToken(*match.span(), role=role, name=match[0][0] + (name or "").lower()))
    return add_text(text, tags, start, end)


def _make_replacements(text: str, tokens: Sequence[InlineToken]) -> Iterator[Replacement]:
    segment = make_segment(text, tokens, _join)
    if segment is not None:
        raw = text[segment.start : segment.end]
        newline = "\r\n" if "\r\n" in raw else "\n"
        broken: Segment = replace(segment, render=partial(_break_lines, 1 + raw.count("\n"), newline))
        yield Replacement(segment.start, segment.end, [broken])


def _join(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _break_lines(n_lines: int, newline: str, pieces: Sequence[Piece]) -> str:
    """Break a translation into at most `n_lines` lines of similar length, at spaces outside tags."""
    joined = _join(pieces)
    spaces: list[tuple[int, int]] = []  # offset of each space, and the number of visible characters before it
    offset = n_visible = 0
    for piece in pieces:
        if not piece.is_markup:
            spaces += [(offset + i, n_visible + i) for i, character in enumerate(piece.text) if character == " "]
            n_visible += len(piece.text)
        offset += len(piece.text)
    breaks: set[int] = set()
    for line in range(1, n_lines):
        free = [space for space in spaces if space[0] not in breaks]
        if free:
            breaks.add(min(free, key=lambda space: abs(space[1] - n_visible * line / n_lines))[0])
    return "".join(newline if i in breaks else character for i, character in enumerate(joined))
