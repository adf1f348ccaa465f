"""Offsets of inline Markdown, such as emphasis and links, which markdown-it-py parses without them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token as MarkdownToken

from transformer_mt.data.markup.elements import Role
from transformer_mt.data.markup.protection import VOID_TAGS
from transformer_mt.documents.html_tags import INLINE, UNTRANSLATED, End, OpenHtmlElement
from transformer_mt.documents.inline import InlineToken
from transformer_mt.documents.references import split_references

_RANGE = "range"  # key of the offsets in the metadata of a token
_LABEL = "label"
HARD_BREAK = "hardbreak"
_PAIRS = {"em": "em", "strong": "strong", "s": "s", "link": "link"}
_TAG_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9-]*)")
_EXTENSIONS = re.compile(r"\A\[[ xX]\](?=\s)|\[\^[^\]\s]+\]:?")  # check boxes of task lists, and footnotes


def make_markdown() -> MarkdownIt:
    """Return a parser of CommonMark with tables and strikethrough, whose inline tokens have offsets."""
    markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    rules = zip(markdown.inline.ruler.get_active_rules(), [*markdown.inline.ruler.getRules("")], strict=True)
    for name, rule in [*rules]:
        markdown.inline.ruler.at(name, _record_offsets(name, rule))
    markdown.inline.ruler2.disable("fragments_join")  # it would join text with different offsets
    markdown.core.ruler.disable("text_join")
    return markdown


def _record_offsets(name: str, rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    """Return a rule that stores the offsets of the tokens that it adds."""

    def recording_rule(state: StateInline, silent: bool) -> bool:
        start, first = state.pos, len(state.tokens) + bool(state.pending)  # pending text becomes a separate token
        label_end = state.md.helpers.parseLinkLabel(state, start, True) if name == "link" and not silent else -1
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
    for start, stop, each in sorted(_with_offsets(token.children or []), key=lambda item: item[:2]):
        if start < end:
            continue  # it is part of an element, such as the text of an autolink
        tokens += _text_tokens(content, end, start)
        tokens += _convert(content, start, stop, each)
        end = stop
    tokens += _text_tokens(content, end, len(content))
    return _merge_untranslated(_join_delimiters(tokens))


def _with_offsets(children: Sequence[MarkdownToken]) -> Iterator[tuple[int, int, MarkdownToken]]:
    for child in children:
        if _RANGE in child.meta:
            start, stop = child.meta[_RANGE]
            yield start, stop, child


def _convert(content: str, start: int, stop: int, token: MarkdownToken) -> Iterator[InlineToken]:
    name, _, side = token.type.rpartition("_")
    if token.type == "softbreak":
        yield InlineToken(start, stop, " ")
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
    elif token.type == HARD_BREAK:
        yield InlineToken(start, stop, name=HARD_BREAK)
    else:
        yield InlineToken(start, stop, is_content=token.type in ("code_inline", "link_open"))  # link_open: an autolink


def _text_tokens(content: str, start: int, end: int) -> Iterator[InlineToken]:
    position = start
    for match in _EXTENSIONS.finditer(content, start, end):
        if position < match.start():
            yield InlineToken(position, match.start(), content[position : match.start()])
        position = match.end()
        yield InlineToken(match.start(), position)
    if position < end:
        yield InlineToken(position, end, content[position:end])


def _join_delimiters(tokens: Sequence[InlineToken]) -> list[InlineToken]:
    """Join the two tokens of a delimiter such as `**`: the outer one is empty text."""
    joined: list[InlineToken] = []
    for token in tokens:
        last = joined[-1] if joined else None
        if last is not None and _is_joinable(last) and token.name == "strong" and token.role is Role.OPENING:
            joined[-1] = replace(token, start=last.start)
        elif last is not None and last.name == "strong" and last.role is Role.CLOSING and _is_joinable(token):
            joined[-1] = replace(last, end=token.end)
        else:
            joined.append(token)
    return joined


def _is_joinable(token: InlineToken) -> bool:
    return token.name == "delimiter" and token.text == ""


def _merge_untranslated(tokens: Sequence[InlineToken]) -> list[InlineToken]:
    """Merge each HTML element that is not translated, such as `<kbd>`, into one token, with its content."""
    html_element: OpenHtmlElement | None = None
    result: list[InlineToken] = []
    for token in tokens:
        tag = token.name.removeprefix("<") if token.name.startswith("<") else ""
        if html_element is None:
            if tag in UNTRANSLATED & INLINE and token.role is Role.OPENING:
                html_element = OpenHtmlElement(tag, token.start)
            else:
                result.append(token)
            continue
        if not tag:
            continue
        is_closing = token.role is Role.CLOSING
        where = (
            html_element.read_closing(tag) if is_closing else html_element.read_opening(tag, token.role is Role.SINGLE)
        )
        if where is End.AFTER:
            result.append(InlineToken(html_element.start, token.end, is_content=True))
            html_element = None
    if html_element is not None:
        result.append(InlineToken(html_element.start, tokens[-1].end, is_content=True))
    return result


def describe_shape(tokens: Sequence[MarkdownToken]) -> list[object]:
    """Return the kinds of blocks, each with the sorted kinds of its inline tokens, and the targets of links."""
    shape: list[object] = []
    for token in tokens:
        if token.type == "inline":
            children = [child for child in token.children or [] if not child.type.startswith(("text", "softbreak"))]
            shape.append(sorted((child.type, child.content, str(sorted(child.attrs.items()))) for child in children))
        else:
            shape.append((token.type, token.tag))
    return shape
