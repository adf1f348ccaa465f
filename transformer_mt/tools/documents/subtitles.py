"""Subtitles: SRT and WebVTT. The text of cues is translated, with its tags; times and styles are kept."""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from transformer_mt.decoding.segments import Role
from transformer_mt.tools.documents.document import (
    Document,
    DocumentError,
    DocumentOptions,
    InlineToken,
    Piece,
    Replacement,
    add_text,
    make_segment,
)
from transformer_mt.tools.documents.html import split_references

_LINE = re.compile(r"[^\r\n]+|(?<=\n)(?=\r?\n)")
_DASH = re.compile(r"(?:\s*(?:\{[^{}]*\}|<[^<>]*>))*\s*[-\N{EN DASH}\N{EM DASH}]\s*")  # perhaps after tags
_STYLES = re.compile(
    r"<(?P<closing>/?)(?P<name>[bius]|font)\b[^<>]*>"
    r"|\{\\(?P<style>[bius])(?P<is_on>[01])\}|\{\\?/?[biusyc\\][^{}]*\}",  # {\i1}, {\an8}, {y:i}
    re.IGNORECASE,
)
_Range = tuple[int, int]


@dataclass(frozen=True)
class _Syntax:
    """How a format writes the text of a cue."""

    tokenize: Callable[[str, int, int], Iterator[InlineToken]]
    escape: Callable[[str], str] = str

    def read_cue(self, text: str, lines: Sequence[_Range]) -> Iterator[Replacement]:
        """Yield the segments of a cue: one, or one for each line that starts with a dash."""
        dashes = [_DASH.match(text, start, end) for start, end in lines]
        is_dialogue = len(lines) > 0 and all(dashes)
        tokens: list[InlineToken] = []
        for (start, end), dash in zip(lines, dashes, strict=True):
            if is_dialogue and dash is not None:
                yield from self._make_replacements(text, [*self.tokenize(text, dash.end(), end)])
                continue
            if tokens:
                tokens.append(InlineToken(tokens[-1].end, start, " "))
            tokens += self.tokenize(text, start, end)
        yield from self._make_replacements(text, tokens)

    def _make_replacements(self, text: str, tokens: Sequence[InlineToken]) -> Iterator[Replacement]:
        segment = make_segment(text, tokens, str)
        if segment is not None:
            raw = text[segment.start : segment.end]
            newline = "\r\n" if "\r\n" in raw else "\n"
            segment = replace(segment, render=partial(self._render, 1 + raw.count(newline), newline))
            yield Replacement(segment.start, segment.end, [segment])

    def _render(self, n_lines: int, newline: str, pieces: Sequence[Piece]) -> str:
        """Break a translation into at most `n_lines` lines of similar length, at spaces outside tags."""
        visible = "".join(piece.text for piece in pieces if not piece.is_markup)
        spaces = [offset for offset, character in enumerate(visible) if character == " "]
        breaks: set[int] = set()
        first = 0  # index of the first space after the last break
        for line in range(1, n_lines):
            wanted = len(visible) * line / n_lines
            after = bisect_left(spaces, wanted, first)
            nearest = range(max(first, after - 1), min(after + 1, len(spaces)))
            if not nearest:
                break
            chosen = min(nearest, key=lambda i: (abs(spaces[i] - wanted), -i))
            breaks.add(spaces[chosen])
            first = chosen + 1
        output: list[str] = []
        start = 0  # of the piece in the visible text
        for piece in pieces:
            if piece.is_markup:
                output.append(piece.text)
                continue
            for offset, character in enumerate(piece.text, start):
                output.append(newline if offset in breaks else self.escape(character))
            start += len(piece.text)
        return "".join(output).replace("-->", "->")  # else a line of SRT would be read as times


# --- SRT --------------------------------------------------------------------------------------------------------------

_SRT_TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d+:\d\d:\d\d[,.]\d{1,3}(\s.*)?")


def parse_srt(text: str, _: DocumentOptions) -> Document:
    """Return the document of a subtitle file. Raises `DocumentError` if it has text without a time."""
    syntax = _Syntax(_tokenize_styles)
    lines = [(match.start(), match.end(), match[0]) for match in _LINE.finditer(text)]
    replacements: list[Replacement] = []
    cue: list[_Range] = []  # lines of the current cue
    has_time = False
    for i, (start, end, line) in enumerate(lines):
        following = lines[i + 1][2] if i + 1 < len(lines) else ""
        if line.strip().isdecimal() and _SRT_TIMES.fullmatch(following):
            continue  # the number of a cue
        if _SRT_TIMES.fullmatch(line) or not line.strip():
            has_time |= bool(line.strip())
            replacements += syntax.read_cue(text, cue)
            cue = []
        elif not has_time or "-->" in line:
            number = 1 + text.count("\n", 0, start) + ("-->" in following)
            raise DocumentError(number, "expected a time such as 00:00:01,000 --> 00:00:02,500; correct the file")
        else:
            cue.append((start, end))
    return Document(text, [*replacements, *syntax.read_cue(text, cue)])


def _tokenize_styles(text: str, start: int, end: int) -> Iterator[InlineToken]:
    tags: list[InlineToken] = []
    for match in _STYLES.finditer(text, start, end):
        name = match["name"] or match["style"]
        is_closing = match["closing"] or match["is_on"] == "0"
        role = Role.SINGLE if name is None else Role.CLOSING if is_closing else Role.OPENING
        tags.append(InlineToken(*match.span(), role=role, name=match[0][0] + (name or "").lower()))
    return add_text(text, tags, start, end)


# --- WebVTT -----------------------------------------------------------------------------------------------------------

_VTT_TIMES = re.compile(r"\s*(?:\d+:)?\d\d:\d\d\.\d{3}\s*-->\s*(?:\d+:)?\d\d:\d\d\.\d{3}(\s.*)?")
_VTT_TAG = re.compile(r"<rt\b[^<>]*>.*?(?:</rt>|(?=</ruby>)|\Z)|<(?P<closing>/?)(?P<name>[A-Za-z]*)[^<>]*>", re.DOTALL)


def parse_vtt(text: str, _: DocumentOptions) -> Document:
    """Return the document of a WebVTT file. Notes, styles and names of cues are kept.

    Raises `DocumentError` if it does not start with WEBVTT, or if a time is not one.
    """
    if not re.match(r"WEBVTT(?:\s|\Z)", text):
        raise DocumentError(1, "not WebVTT: the first line is not WEBVTT; correct the file")
    syntax = _Syntax(_tokenize_vtt, _escape_vtt)
    replacements: list[Replacement] = []
    cue: list[_Range] | None = None  # lines after a time; None in other blocks
    for match in _LINE.finditer(text):
        if not match[0]:
            replacements += syntax.read_cue(text, cue or [])
            cue = None
        elif not match[0].strip():
            continue  # does not end a cue, unlike an empty line
        elif cue is not None and "-->" not in match[0]:
            cue.append(match.span())
        elif _VTT_TIMES.fullmatch(match[0]):
            replacements += syntax.read_cue(text, cue or [])
            cue = []
        elif "-->" in match[0]:
            number = 1 + text.count("\n", 0, match.start())
            raise DocumentError(number, "expected a time such as 00:01.000 --> 00:02.500; correct the file")
    return Document(text, [*replacements, *syntax.read_cue(text, cue or [])])


def _tokenize_vtt(text: str, start: int, end: int) -> Iterator[InlineToken]:
    for match in _VTT_TAG.finditer(text, start, end):
        yield from split_references(text, start, match.start())
        start, name = match.end(), match["name"]
        role = Role.SINGLE if not name else Role.CLOSING if match["closing"] else Role.OPENING
        yield InlineToken(*match.span(), role=role, name=name or "", is_content=name is None)
    yield from split_references(text, start, end)


def _escape_vtt(text: str) -> str:
    return html.escape(text, quote=False).replace("\N{NO-BREAK SPACE}", "&nbsp;")  # some players know only names
