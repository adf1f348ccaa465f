"""SRT subtitles: the text of each cue is translated, and its lines are broken again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from transformer_mt.data.markup.elements import Role
from transformer_mt.documents.document import Document, DocumentError, Piece, Segment, Splice
from transformer_mt.documents.inline import InlineToken, make_segment

_TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d+:\d\d:\d\d[,.]\d{1,3}(\s.*)?")
_DASH = re.compile(r"\s*[-\N{EN DASH}\N{EM DASH}]\s*")
_TAG = re.compile(
    r"<(?P<closing>/?)(?P<name>[bius]|font)\b[^<>]*>"
    r"|\{\\(?P<style>[bius])(?P<is_on>[01])\}|\{\\?/?[biusyc\\][^{}]*\}",  # {\i1}, {\an8}, {y:i}
    re.IGNORECASE,
)


def parse_srt(text: str) -> Document:
    """Return the document of a subtitle file. Raises `DocumentError` if it has text without a time."""
    lines = [(match.start(), match.end(), match[0]) for match in re.finditer(r"[^\r\n]+|(?<=\n)(?=\r?\n)", text)]
    splices: list[Splice] = []
    cue: list[tuple[int, int]] = []  # lines of the current cue
    has_time = False
    for i, (start, end, line) in enumerate(lines):
        following = lines[i + 1][2] if i + 1 < len(lines) else ""
        if line.strip().isdecimal() and _TIMES.fullmatch(following):
            continue  # the number of a cue
        if _TIMES.fullmatch(line) or not line.strip():
            has_time |= bool(line.strip())
            splices += _cue_splices(text, cue)
            cue = []
        elif not has_time or "-->" in line:
            number = 1 + text.count("\n", 0, start) + ("-->" in following)
            raise DocumentError(number, "expected a time such as 00:00:01,000 --> 00:00:02,500; correct the file")
        else:
            cue.append((start, end))
    return Document(text, [*splices, *_cue_splices(text, cue)])


def _cue_splices(text: str, lines: Sequence[tuple[int, int]]) -> Iterator[Splice]:
    """Yield the segments of a cue: one, or one for each line that starts with a dash."""
    dashes = [_DASH.match(text, start, end) for start, end in lines]
    is_dialogue = len(lines) > 0 and all(dashes)
    tokens: list[InlineToken] = []
    for (start, end), dash in zip(lines, dashes, strict=True):
        if is_dialogue and dash is not None:
            yield from _make_splices(text, [*_tokenize(text, dash.end(), end)])
            continue
        if tokens:
            tokens.append(InlineToken(tokens[-1].end, start, " "))
        tokens += _tokenize(text, start, end)
    yield from _make_splices(text, tokens)


def _tokenize(text: str, start: int, end: int) -> Iterator[InlineToken]:
    position = start
    for match in _TAG.finditer(text, start, end):
        if position < match.start():
            yield InlineToken(position, match.start(), text[position : match.start()])
        position = match.end()
        name = match["name"] or match["style"]
        is_closing = match["closing"] or match["is_on"] == "0"
        role = Role.SINGLE if name is None else Role.CLOSING if is_closing else Role.OPENING
        yield InlineToken(match.start(), position, role=role, name=match[0][0] + (name or "").lower())
    if position < end:
        yield InlineToken(position, end, text[position:end])


def _make_splices(text: str, tokens: Sequence[InlineToken]) -> Iterator[Splice]:
    segment = make_segment(text, tokens, _join)
    if segment is not None:
        raw = text[segment.start : segment.end]
        newline = "\r\n" if "\r\n" in raw else "\n"
        broken: Segment = replace(segment, render=partial(_break_lines, 1 + raw.count("\n"), newline))
        yield Splice(segment.start, segment.end, [broken])


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
