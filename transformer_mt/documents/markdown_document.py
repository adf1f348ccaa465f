"""Markdown: the text of paragraphs, headings, list items and table cells is translated, with its inline markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markdown_it.token import Token as MarkdownToken

from transformer_mt.documents.document import Document, Piece, Segment, Splice
from transformer_mt.documents.inline import InlineToken, make_segments, render_text
from transformer_mt.documents.markdown_inline import HARD_BREAK, describe_shape, make_markdown, tokenize_inline

_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(?:.*\r?\n)*?(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)")
_LINE_BREAK = re.compile(r"\r\n?|\n")
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~|!#]")
_NEEDS_ESCAPE = re.compile(r"\\(?=[!-/:-@\[-`{-~])|`|&(?=#?\w+;)|<(?=[A-Za-z/!?])|(?<!\s)\*|\*(?!\s)")
_BLOCK_START = re.compile(
    r"\s*(?:\d{1,9}(?=[.)](?:\s|\Z))|(?=[-+](?:\s|\Z)|#{1,6}(?:\s|\Z)|>|[-=]+\s*\Z))"
)  # up to the character that makes a line the start of a list, heading, quotation or ruler
_OUTER_BAR = re.compile(r"\A\\?\||(?<!\\)\\?\|\Z")  # even with a backslash it makes a table if a ruler follows
_LINE_START = re.compile(r"\n[ \t>]*\Z")
_PREFIX = re.compile(r"\r?\n[ \t>]*")
_DELIMITERS = frozenset({"*", "_", "**", "__", "~~"})


def parse_markdown(text: str) -> Document:
    """Return the document of a Markdown file. Any text is one."""
    return _MarkdownReader(text).read()


@dataclass(frozen=True)
class _Block:
    """The inline content of a block, with the offset in the document of each of its characters."""

    token: MarkdownToken
    offsets: Sequence[int]
    end: int
    kind: str
    """Type of the token before it, such as heading_open."""
    is_after_signs: bool = False
    """Whether it follows number signs in its line."""
    underline: str = ""
    """The line after it, if that makes it a heading."""

    def find_offset(self, position: int) -> int:
        """Return the offset in the document of a character of the content, or of its end."""
        return self.offsets[position] if position < len(self.offsets) else self.end

    @property
    def is_cell(self) -> bool:
        """Return whether it is the cell of a table."""
        return self.kind in ("th_open", "td_open")

    @property
    def is_heading(self) -> bool:
        """Return whether it is a heading that starts with number signs."""
        return self.kind == "heading_open" and self.is_after_signs


class _MarkdownReader:
    """Finds the inline content of a file, and the segments in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.markdown = make_markdown()
        front_matter = _FRONT_MATTER.match(text)
        body = 0 if front_matter is None else front_matter.end()
        breaks = [match.span() for match in _LINE_BREAK.finditer(text, body)]
        self.starts = [body, *(end for _, end in breaks)]
        self.ends = [*(start for start, _ in breaks), len(text)]
        env: dict[str, Any] = {}
        self.tokens = self.markdown.parse(text[body:], env)
        self.references: dict[str, Any] = env.get("references", {})

    def read(self) -> Document:
        splices: list[Splice] = []
        cell_end = 0
        for previous, token in zip(self.tokens, self.tokens[1:], strict=False):
            if token.type != "inline" or token.map is None:
                continue
            block = self._locate(token, previous, cell_end)
            if block is None:
                continue
            cell_end = block.end
            splices += (Splice(segment.start, segment.end, [segment]) for segment in self._make_segments(block))
        return Document(self.text, splices)

    def find_shape(self, content: str) -> list[object]:
        """Return the structure of a block of this file."""
        return describe_shape(self.markdown.parse(content, {"references": dict(self.references)}))

    # --- offsets ------------------------------------------------------------------------------------------------------

    def _locate(self, token: MarkdownToken, previous: MarkdownToken, cell_end: int) -> _Block | None:
        """Return where the content of a token is; None if its lines differ from those of the file."""
        assert token.map is not None
        first = token.map[0]
        if previous.type in ("th_open", "td_open"):
            return self._locate_in_line(token, previous, max(cell_end, self.starts[first]), self.ends[first])
        if previous.type == "heading_open" and previous.markup.startswith("#"):
            start = self.text.index(previous.markup, self.starts[first]) + len(previous.markup)
            return self._locate_in_line(token, previous, start, self.ends[first])
        offsets: list[int] = []
        lines = token.content.split("\n")
        for number, line in enumerate(lines, start=first):
            start, end = self.starts[number], self.ends[number]
            text = self.text[start:end].replace("\0", "\N{REPLACEMENT CHARACTER}").rstrip()
            stripped = line.strip()
            if not text.endswith(stripped):
                return None
            line_start = start + len(text) - len(stripped)
            n_before = len(line) - len(line.lstrip())
            offsets += [line_start] * n_before  # a tab may be several spaces
            offsets += range(line_start, line_start + len(line) - n_before)
            if number < first + len(lines) - 1:
                offsets.append(end)
        end = offsets[-1] + 1 if offsets else self.starts[first]
        return _Block(token, offsets, end, previous.type, underline=3 * previous.markup)

    def _locate_in_line(self, token: MarkdownToken, previous: MarkdownToken, start: int, end: int) -> _Block | None:
        """Return the block of a heading or table cell, which is in one line. Cells have escaped vertical bars."""
        is_cell = previous.type != "heading_open"
        raw = token.content.replace("|", r"\|") if is_cell else token.content
        line = self.text[start:end].replace("\0", "\N{REPLACEMENT CHARACTER}")
        position = line.find(raw)
        if position < 0:
            return None
        offsets: list[int] = []
        offset = start + position
        for character in token.content:
            offsets.append(offset)
            offset += 2 if is_cell and character == "|" else 1
        return _Block(token, offsets, offset, previous.type, not is_cell)

    # --- segments -----------------------------------------------------------------------------------------------------

    def _make_segments(self, block: _Block) -> Iterator[Segment]:
        """Yield the segments of a block, between hard line breaks."""
        lines: list[list[InlineToken]] = [[]]
        for token in tokenize_inline(block.token):
            if token.name == HARD_BREAK:
                lines.append([])
            else:
                lines[-1].append(replace(token, start=block.find_offset(token.start), end=block.find_offset(token.end)))
        for tokens in lines:
            for segment in make_segments(self.text, tokens, render_text(str)):
                yield replace(segment, render=_Renderer(self, block, segment.start, segment.end).render)


@dataclass(frozen=True)
class _Renderer:
    """Writes the translation of a segment so that its block has the same structure as the source."""

    reader: _MarkdownReader
    block: _Block
    start: int
    end: int

    def render(self, pieces: Sequence[Piece]) -> str:
        """Escape as few characters as possible. If no way keeps the structure, return the source."""
        source = self.reader.text[self.start : self.end]
        expected = self._find_shape(source)
        for attempt in (pieces, [*_separate(pieces)]):
            for escape in (_escape_in_cell if self.block.is_cell else _escape_some, _escape_all):
                rendered = render_text(escape)(attempt)
                if self._is_at_line_start and (start := _BLOCK_START.match(rendered)):
                    rendered = f"{start[0]}\\{rendered[start.end() :]}"
                if not self.block.is_cell:
                    rendered = _OUTER_BAR.sub("&#124;", rendered)
                if self._find_shape(rendered) == expected:
                    return rendered
        return source

    @property
    def _is_at_line_start(self) -> bool:
        """Return whether the first character could start another block."""
        if self.block.is_heading:
            return False
        text, first = self.reader.text, self.block.find_offset(0)
        if self.block.is_cell:  # a row may lack its first vertical bar
            first = max(text.rfind("\n", 0, self.start), 0)
        return self.start == first or _LINE_START.search(text, first, self.start) is not None

    def _find_shape(self, rendered: str) -> object:
        """Return the structure of the block with this text in place of the segment."""
        block, text = self.block, self.reader.text
        content = _PREFIX.sub("\n", f"{text[block.find_offset(0) : self.start]}{rendered}{text[self.end : block.end]}")
        if block.is_cell:
            content = f"| {content} |\n| --- |"
        elif block.is_heading:
            content = f"# {content}"
        elif block.kind == "heading_open":
            content = f"{content}\n{block.underline}"
        return self.reader.find_shape(content)


def _escape_some(text: str) -> str:
    return _NEEDS_ESCAPE.sub(r"\\\g<0>", text)


def _escape_in_cell(text: str) -> str:
    return _escape_some(text).replace("|", r"\|")


def _escape_all(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


def _separate(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yield the pieces with spaces around emphasis, which Markdown does not recognise between some characters."""
    open_delimiters: list[str] = []
    last = " "
    for piece in pieces:
        text = piece.text
        if piece.is_markup and text in _DELIMITERS:
            is_closing = bool(open_delimiters) and open_delimiters[-1] == text
            if is_closing:
                open_delimiters.pop()
                text = f"{text} "
            else:
                open_delimiters.append(text)
                text = text if last.isspace() else f" {text}"
        elif last.isspace():
            text = text.lstrip()
        if text:
            last = text[-1]
            yield Piece(text, piece.is_markup)
