"""Markdown: the text of paragraphs, headings, list items and table cells is translated, with its inline markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import regex
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token as MarkdownToken

from transformer_mt.decoding.segments import Role
from transformer_mt.tools.documents.document import (
    Document,
    DocumentOptions,
    DocumentSegment,
    InlineToken,
    Piece,
    Replacement,
    add_text,
    drop_break_hints,
    make_segments,
    render_text,
)
from transformer_mt.tools.documents.html import INLINE, UNTRANSLATED, OpenHtmlElement, split_references
from transformer_mt.tools.markup.elements import Span
from transformer_mt.tools.markup.protection import TEMPLATE, VOID_TAGS, find_placeholders

_RANGE = "range"  # key of the offsets in the metadata of a token
_LABEL = "label"
HARD_BREAK = "hardbreak"
_PAIRS = {"em": "em", "strong": "strong", "s": "s", "link": "link"}
_TAG_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9-]*)")
_EXTENSIONS = re.compile(r"\A\[[ xX]\](?=\s)|\[\^[^\]\s]+\]")  # check boxes of task lists, and footnotes


_MATHS = regex.compile(
    r"\$\$[^$`]+\$\$|(?<![$\w])\$(?![\s$])(?!\d[^$]*(?<![\\\w])[^\W\d_]{2})[^$`]*(?<![\s\\])\$(?![\d$])"
)  # $x$, but not prices: $5 or 5$
_NOT_MATHS = re.compile(r"\]\(|<[A-Za-z/!?]")  # a link or a tag that is cut
_TEX = re.compile(r"\\\(((?:[^\\]|\\(?![()]))++)\\\)")
_FORMULA = re.compile(r"[\\^_=+*/<>\d]|\A.\Z")  # \(x+y\), but not \(see below\)
_DISPLAYS = {"$$": "$$", r"\[": r"\]"}
"""Lines that start maths, and those that end it."""
_MAX_MATHS_LINES = 200
_ENVIRONMENT = re.compile(r"\\begin(\{\w+\*?\})")
_CONTAINER = re.compile(r'(?:!!!|\?\?\?\+?|===)\s+[\w"]')
"""Start of a container whose content is indented."""
_MARKER = re.compile(r"(?:\*\[[^]\n]+\]:|\[\^[^]\s]+\]:|\[![\w-]+\][+-]?|:)(?=\s)|\[![\w-]+\][+-]?\Z")
"""Start of a line: an abbreviation, a footnote, the kind of an alert, or a definition."""
_HIGHLIGHT = re.compile("(?<!=)==(?!=)")


def make_markdown() -> MarkdownIt:
    """Return a parser of CommonMark with tables, strikethrough, maths, templates and containers.

    Its inline tokens have offsets.
    """
    markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    markdown.block.ruler.before("fence", "verbatim", _read_verbatim_block, {"alt": ["paragraph", "blockquote", "list"]})
    markdown.inline.ruler.before("escape", "verbatim", _read_verbatim)
    rules = zip(markdown.inline.ruler.get_active_rules(), [*markdown.inline.ruler.getRules("")], strict=True)
    for name, rule in [*rules]:
        markdown.inline.ruler.at(name, _record_offsets(name, rule))
    markdown.inline.ruler2.disable("fragments_join")  # it would join text with different offsets
    markdown.core.ruler.disable("text_join")
    return markdown


def _read_verbatim_block(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Read maths in lines of its own, or a line that starts or ends a container, with its indented content."""

    def read_line(number: int) -> str:
        return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()

    line, last = read_line(first), first
    environment, following = _ENVIRONMENT.match(line), state.skipEmptyLines(first + 1)
    indent = state.blkIndent + 4
    is_container = following < end and state.sCount[following] >= indent and _CONTAINER.match(line) is not None
    closing = f"\\end{environment[1]}" if environment else _DISPLAYS.get(line)
    is_maths = line.startswith("$$") and line.endswith("$$")
    if state.is_code_block(first) or not (closing or is_container or is_maths or line.startswith(":::")):
        return False
    if closing and not (environment and line.endswith(closing)):
        lines = range(first + 1, min(end, first + _MAX_MATHS_LINES))
        last = next((i for i in lines if read_line(i) in (closing, "")), end)
        if last == end or not read_line(last):
            return False
    if not silent:
        state.line = last + 1
        token = state.push("verbatim_block", "", 0)
        token.content = state.src[state.bMarks[first] : state.eMarks[last]]
    if is_container and not silent:
        line_max, outside = state.lineMax, (i for i in range(following, end) if 0 <= state.sCount[i] < indent)
        state.blkIndent, state.lineMax = indent, next((i for i in outside if not state.isEmpty(i)), end)
        state.level += 1  # it is limited
        state.md.block.tokenize(state, following, state.lineMax)
        state.level -= 1
        state.blkIndent, state.lineMax = indent - 4, line_max
    return True


def _read_verbatim(state: StateInline, silent: bool) -> bool:
    """Read maths, a value or control of a template, or a mark of an extension."""
    if state.src[state.pos] not in "$[{<\\*:=":
        return False
    is_start = state.pos == 0 or state.src[state.pos - 1] == "\n"
    if marker := _HIGHLIGHT.match(state.src, state.pos) or (is_start and _MARKER.match(state.src, state.pos)):
        if not silent:
            state.push("marker", "", 0).content = marker[0]
        state.pos = marker.end()
        return True
    match = _MATHS.match(state.src, state.pos)
    if (tex := _TEX.match(state.src, state.pos)) and _FORMULA.search(tex[1]):
        match = tex
    elif match and (_NOT_MATHS.search(match[0]) or match[0].count("[") != match[0].count("]")):
        return False
    match = match or TEMPLATE.match(state.src, state.pos)
    if match is None or (match[0].startswith("[[") and state.src[match.end() : match.end() + 1] in ("(", "[", ":")):
        return False
    if not silent:
        state.push("verbatim", "", 0).content = match[0]
    state.pos = match.end()
    return True


def _record_offsets(name: str, rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    """Return a rule that stores the offsets of the tokens that it adds."""

    def recording_rule(state: StateInline, silent: bool) -> bool:
        start, first = state.pos, len(state.tokens) + bool(state.pending)  # pending text becomes a separate token
        is_link = name == "link" and not silent and state.src[start] == "["
        label_end = state.md.helpers.parseLinkLabel(state, start, True) if is_link else -1
        if not rule(state, silent):
            return False
        if silent:
            return True
        added = state.tokens[first:]
        if name in ("emphasis", "strikethrough"):
            for token in added:
                token.meta[_RANGE] = start, start + len(token.content)
                start += len(token.content)
        elif name == "link" and added:
            added[0].meta[_RANGE] = start, start + 1
            added[-1].meta[_RANGE] = label_end, state.pos
            if state.src[label_end : state.pos] in ("]", "][]"):  # the text of the link is the label of its target
                added[-1].meta[_LABEL] = state.src[start + 1 : label_end]
        elif name == "autolink" and added:
            added[0].meta[_RANGE] = start, state.pos  # of all three tokens
        elif name == "newline":  # it removes spaces from the pending text
            while start and state.src[start - 1] == " ":
                start -= 1
            state.tokens[-1].meta[_RANGE] = start, state.pos
        elif added:
            added[-1].meta[_RANGE] = start, state.pos
        return True

    return recording_rule


def tokenize_inline(token: MarkdownToken) -> list[InlineToken]:
    """Return the tokens of inline Markdown, with offsets in its content."""
    content = token.content
    tokens: list[InlineToken] = []
    end = 0
    children = [child for child in token.children or [] if _RANGE in child.meta]
    for each in sorted(children, key=lambda child: child.meta[_RANGE]):
        start, stop = each.meta[_RANGE]
        if start < end:
            continue  # it is part of an element, such as the text of an autolink
        tokens += _text_tokens(content, end, start)
        tokens += _convert(content, start, stop, each)
        end = stop
    tokens += _text_tokens(content, end, len(content))
    return _merge_untranslated(_join_delimiters(tokens))


def _convert(content: str, start: int, stop: int, token: MarkdownToken) -> Iterator[InlineToken]:
    name, _, side = token.type.rpartition("_")
    if token.type == "softbreak":
        is_hard = _MARKER.match(content, stop) is not None
        yield InlineToken(start, stop, None if is_hard else " ", name=HARD_BREAK if is_hard else "")
    elif token.type == "marker" and token.content == "==":
        is_opening = bool(content[stop : stop + 1].strip()) and not content[start - 1 : start].isalnum()
        yield InlineToken(start, stop, role=Role.OPENING if is_opening else Role.CLOSING, name="==")
    elif token.type == "text_special":
        if token.info == "entity":
            yield from split_references(content, start, stop)
        else:
            yield InlineToken(start, stop, token.content)
    elif token.type == "text":
        yield InlineToken(start, stop, token.content, name="delimiter")
    elif name in _PAIRS and token.info != "auto":
        role = Role.OPENING if side == "open" else Role.CLOSING
        rewritten = f"][{token.meta[_LABEL]}]" if _LABEL in token.meta else ""
        yield InlineToken(start, stop, role=role, name=name, rewritten=rewritten)
    elif token.type == "html_inline":
        match = _TAG_NAME.match(content, start, stop)
        tag = match[1].lower() if match else ""
        is_single = match is None or tag in VOID_TAGS or content.endswith("/>", start, stop)
        role = Role.SINGLE if is_single else Role.CLOSING if content.startswith("</", start) else Role.OPENING
        yield InlineToken(start, stop, role=role, name=f"<{tag}")
    elif token.type == "verbatim":
        span = next(iter(find_placeholders(token.content)), Span(0, 0))
        yield InlineToken(start, stop, role=span.role, name=span.name, is_content=True)
    elif token.type == HARD_BREAK:
        yield InlineToken(start, stop, name=HARD_BREAK)
    else:
        yield InlineToken(start, stop, is_content=token.type in ("code_inline", "link_open"))  # link_open: an autolink


def _text_tokens(content: str, start: int, end: int) -> Iterator[InlineToken]:
    extensions = (InlineToken(*match.span()) for match in _EXTENSIONS.finditer(content, start, end))
    return add_text(content, extensions, start, end)


def _join_delimiters(tokens: Sequence[InlineToken]) -> list[InlineToken]:
    """Join the two tokens of a delimiter such as `**`: the outer one is empty text."""
    joined: list[InlineToken] = []
    for token in tokens:
        last = joined[-1] if joined else InlineToken(0, 0)
        if (last.name, last.text, token.name, token.role) == ("delimiter", "", "strong", Role.OPENING):
            joined[-1] = replace(token, start=last.start)
        elif (last.name, last.role, token.name, token.text) == ("strong", Role.CLOSING, "delimiter", ""):
            joined[-1] = replace(last, end=token.end)
        else:
            joined.append(token)
    return joined


def _merge_untranslated(tokens: Sequence[InlineToken]) -> list[InlineToken]:
    """Merge each HTML element that is not translated, such as `<kbd>`, into one token, with its content."""
    html_element: OpenHtmlElement | None = None
    result: list[InlineToken] = []
    for token in tokens:
        tag = token.name.removeprefix("<") if token.name.startswith("<") else ""
        if html_element is not None:
            kind = "closing" if token.role is Role.CLOSING else "opening"
            where = html_element.locate_end(kind, tag, token.role is Role.SINGLE) if tag else "later"
            if where == "later":
                continue
            end = token.end if where == "after" else token.start
            result.append(InlineToken(html_element.start, end, is_content=True))
            html_element = None
            if where == "after":
                continue
        if tag in UNTRANSLATED & INLINE and token.role is Role.OPENING:
            html_element = OpenHtmlElement(tag, token.start)
        else:
            result.append(token)
    if html_element is not None:
        result.append(InlineToken(html_element.start, tokens[-1].end, is_content=True))
    return result


_FRONT_MATTER = re.compile(  # YAML, TOML or JSON
    r"(?:---[ \t]*\r?\n(?:.*\n)*?(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n(?:.*\n)*?\+\+\+|\{[ \t]*\r?\n(?:.*\n)*?\})"
    r"[ \t]*(?:\r?\n|\Z)"
)
_LINE_BREAK = re.compile(r"\r\n?|\n")
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~|!#${]")
_NEEDS_ESCAPE = re.compile(r"\\(?=[!-/:-@\[-`{-~])|`|&(?=#?\w+;)|<(?=[A-Za-z/!?])|(?<!\s)\*|\*(?!\s)")
_NEEDS_ESCAPE_IN_CELL = re.compile(rf"{_NEEDS_ESCAPE.pattern}|\|")
_BLOCK_START = re.compile(
    r"\s*(?:\d{1,9}(?=[.)](?:\s|\Z))|(?=[-+](?:\s|\Z)|#{1,6}(?:\s|\Z)|>|[-=]+\s*\Z|:::|\$\$))"
)  # up to the character that makes a line the start of a list, heading, quotation or ruler
_OUTER_BAR = re.compile(r"\A\\?\||(?<!\\)\\?\|\Z")  # even with a backslash it makes a table if a ruler follows
_LINE_START = re.compile(r"\n[ \t>]*\Z")
_PREFIX = re.compile(r"\r?\n[ \t>]*")
_CONTEXT = 200  # characters around a segment in which its translation may change the structure
_DELIMITERS = frozenset({"*", "_", "**", "__", "~~"})


def parse_markdown(text: str, _: DocumentOptions) -> Document:
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
    underline: str = ""
    """The line after it, if that makes it a heading."""

    def find_offset(self, position: int) -> int:
        """Return the offset in the document of a character of the content, or of its end."""
        return self.offsets[position] if position < len(self.offsets) else self.end

    @property
    def is_cell(self) -> bool:
        return self.kind in ("th_open", "td_open")

    @property
    def is_heading(self) -> bool:
        """Return whether it is a heading that starts with number signs."""
        return self.kind == "heading_open" and not self.underline


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
        replacements: list[Replacement] = []
        cell_end = 0
        for previous, token in zip(self.tokens, self.tokens[1:], strict=False):
            if token.type != "inline" or token.map is None:
                continue
            block = self._locate(token, previous, cell_end)
            if block is None:
                continue
            cell_end = block.end
            replacements += (Replacement(each.start, each.end, [each]) for each in self._make_segments(block))
        return Document(self.text, replacements)

    def find_shape(self, content: str) -> list[object]:
        """Return the kinds of blocks of a text of this file, with the sorted inline tokens and targets of links."""
        shape: list[object] = []
        for token in self.markdown.parse(content, {"references": dict(self.references)}):
            if token.type == "inline":
                children = [child for child in token.children or [] if not child.type.startswith(("text", "softbreak"))]
                shape.append(
                    sorted((child.type, child.content, str(sorted(child.attrs.items()))) for child in children)
                )
            else:
                shape.append((token.type, token.tag))
        return shape

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
        return _Block(token, offsets, offset, previous.type)

    # --- segments -----------------------------------------------------------------------------------------------------

    def _make_segments(self, block: _Block) -> Iterator[DocumentSegment]:
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
        expected = self._find_shape(drop_break_hints(source))
        for attempt in (pieces, [*_separate(pieces)]):
            for special in (_NEEDS_ESCAPE_IN_CELL if self.block.is_cell else _NEEDS_ESCAPE, _SPECIAL):
                rendered = render_text(partial(special.sub, r"\\\g<0>"))(attempt)
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
        first_read = max(first, self.start - _CONTEXT)
        return self.start == first or _LINE_START.search(text, first_read, self.start) is not None

    def _find_shape(self, rendered: str) -> object:
        """Return the structure of the block near the segment, with this text in place of the segment."""
        block, text = self.block, self.reader.text
        first, end = max(block.find_offset(0), self.start - _CONTEXT), min(block.end, self.end + _CONTEXT)
        content = _PREFIX.sub("\n", f"{text[first : self.start]}{rendered}{text[self.end : end]}")
        if block.is_cell:
            content = f"| {content} |\n| --- |"
        elif block.is_heading:
            content = f"# {content}"
        elif block.underline:
            content = f"{content}\n{block.underline}"
        return self.reader.find_shape(content)


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
