"""Segments from inline tokens: text and inline markup that a parser has found, with their offsets in the document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from transformer_mt.tools.documents.document import (
    DocumentElement,
    Piece,
    Render,
    Segment,
    Splice,
)
from transformer_mt.tools.markup.elements import (
    MarkedText,
    Role,
    Span,
    mark,
)

_ATTRIBUTE = re.compile(r"([^\s\"'<>/=]+)(?:\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s\"'>][^\s>]*))?")
_LINKS = frozenset({"a", "link"})  # names of their tags


@dataclass(frozen=True)
class InlineToken:
    """A range of the document with its text, or with an element."""

    start: int
    end: int
    text: str | None = None
    """Text without escapes; None for an element."""
    role: Role = Role.SINGLE
    name: str = ""
    """Name of a tag. An opening and a closing tag of one name form a pair."""
    is_content: bool = False
    """Whether an element is part of the sentence, such as inline code. At an end of the segment it is not trimmed."""
    rewritten: str = ""
    """Characters of an element in a translation, if they differ from those in the document."""

    @property
    def is_visible(self) -> bool:
        """Return whether the token is more than a tag or white space."""
        return self.is_content if self.text is None else bool(self.text.strip())


def make_segments(document: str, tokens: Sequence[InlineToken], render: Render) -> Iterator[Segment]:
    """Yield the segments of consecutive tokens: one, or one for each link if no text is between them.

    Text without a letter has no segment.
    """
    if _has_letters_outside_tags(tokens):
        for part in _split_links(document, _drop_outer_tags(document, tokens)):
            if (segment := make_segment(document, part, render)) is not None:
                yield segment


def make_segment(document: str, tokens: Sequence[InlineToken], render: Render) -> Segment | None:
    """Return the segment of consecutive tokens; None if it has no letter.

    It excludes tags and white space at its ends, and pairs of tags that enclose all of it.
    """
    if not _has_letters_outside_tags(tokens):
        return None
    tokens = _strip_outer_spaces(document, _drop_outer_tags(document, tokens))
    marked = _mark(document, tokens)
    element_tokens = [token for token in tokens if token.text is None]
    elements: list[DocumentElement] = []
    for element, token in zip(marked.elements, element_tokens, strict=True):
        elements.append(DocumentElement(**vars(element), start=token.start, end=token.end, rewritten=token.rewritten))
    return Segment(MarkedText(marked.parts, tuple(elements)), tokens[0].start, tokens[-1].end, render)


def _has_letters_outside_tags(tokens: Sequence[InlineToken]) -> bool:
    return any(token.text is not None and _has_letter(token.text) for token in tokens)


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def _mark(document: str, tokens: Sequence[InlineToken]) -> MarkedText:
    texts: list[str] = []
    spans: list[Span] = []
    end = 0
    for token in tokens:
        text = document[token.start : token.end] if token.text is None else token.text
        if token.text is None:
            spans.append(Span(end, end + len(text), token.role, token.name))
        texts.append(text)
        end += len(text)
    return mark("".join(texts), spans)


def _drop_outer_tags(document: str, tokens: Sequence[InlineToken]) -> Sequence[InlineToken]:
    """Return the tokens without white space and tags at both ends. At least one has text that is not blank."""
    elements = iter(enumerate(_mark(document, tokens).elements))
    positions = [i for i, token in enumerate(tokens) if token.text is None]
    roles: dict[int, tuple[Role, int]] = {}  # with the position of the partner
    for index, element in elements:
        partner = positions[index if element.partner is None else element.partner]
        roles[positions[index]] = element.role, partner
    visible = [0, *accumulate(token.is_visible for token in tokens)]  # number of visible tokens before each
    first, last = 0, len(tokens) - 1
    while True:
        is_start_done = is_end_done = True
        role, partner = roles.get(first, (None, first))
        if visible[partner] == visible[partner + 1] == visible[first] and role is not Role.CLOSING:
            first, is_start_done = partner + 1, False
        elif role is Role.OPENING and partner == last:
            first, last, is_start_done = first + 1, last - 1, False
        role, partner = roles.get(last, (None, last))
        if visible[partner] == visible[last + 1] and role is not Role.OPENING:
            last, is_end_done = partner - 1, False
        if is_start_done and is_end_done:
            return tokens[first : last + 1]


def _split_links(document: str, tokens: Sequence[InlineToken]) -> Sequence[Sequence[InlineToken]]:
    """Return the contents of links if nothing else has a letter, as in a menu. Otherwise return all tokens at once."""
    elements = iter(_mark(document, tokens).elements)
    links: list[list[InlineToken]] = []
    depth = 0
    for token in tokens:
        element = next(elements) if token.text is None else None
        if element is not None and element.role is Role.CLOSING:
            depth -= 1
        if depth:
            links[-1].append(token)
        elif element is not None and element.role is Role.OPENING and token.name in _LINKS:
            links.append([])
        elif (
            (element is not None and element.role is Role.OPENING)
            or _has_letters_outside_tags([token])
            or token.is_content
        ):
            return [tokens]
        if element is not None and element.role is Role.OPENING:
            depth += 1
    return links


def _strip_outer_spaces(document: str, tokens: Sequence[InlineToken]) -> list[InlineToken]:
    """Return the tokens without white space at both ends."""
    stripped = [*tokens]
    if (text := stripped[0].text) is not None:
        raw = document[stripped[0].start : stripped[0].end]
        stripped[0] = replace(stripped[0], start=stripped[0].end - len(raw.lstrip()), text=text.lstrip())
    if (text := stripped[-1].text) is not None:
        raw = document[stripped[-1].start : stripped[-1].end]
        stripped[-1] = replace(stripped[-1], end=stripped[-1].start + len(raw.rstrip()), text=text.rstrip())
    return stripped


# --- plain text -------------------------------------------------------------------------------------------------------


def make_text_parts(value: str, offset: int, escape: Callable[[str], str]) -> list[str | Segment]:
    """Return the parts of a text without markup, such as a string in JSON. Each line with a letter is a segment.

    `offset` is that of the text in the document. `escape` writes text in the syntax of the document.
    """
    parts: list[str | Segment] = []
    for line in re.split(r"(\s*\n\s*|\A\s+|\s+\Z)", value):
        if _has_letter(line):
            parts.append(Segment(MarkedText.from_text(line), offset, offset, render_text(escape), protects_tags=True))
        elif line:
            parts.append(escape(line))
    return parts


def render_text(escape: Callable[[str], str]) -> Render:
    """Return a function that joins the pieces of a translation, with their text escaped."""

    def render(pieces: Sequence[Piece]) -> str:
        return "".join(piece.text if piece.is_markup else escape(piece.text) for piece in pieces)

    return render


# --- attributes of tags -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attribute:
    """An attribute of a tag, with the range of its value in the document, without quotes."""

    name: str
    start: int
    end: int
    quote: str
    """The quote character around the value, or nothing."""


def find_attributes(document: str, start: int, end: int) -> Iterator[Attribute]:
    """Yield the attributes of the tag at a range. An attribute without a value has an empty range after its name."""
    name_end = re.compile(r"<[^\s/>]*").match(document, start, end)
    assert name_end is not None
    for match in _ATTRIBUTE.finditer(document, name_end.end(), end):
        value = match[2]
        if value is None:
            yield Attribute(match[1].lower(), match.end(), match.end(), "")
        else:
            quote = value[0] if value[0] in "\"'" else ""
            value_start, value_end = match.span(2)
            yield Attribute(match[1].lower(), value_start + len(quote), value_end - len(quote), quote)


def set_language(document: str, start: int, end: int, names: Sequence[str], language: str) -> list[Splice]:
    """Return splices that set the language in attributes of the tag at a range.

    The first of the names is added if the tag has none of them. Another spelling of the language, such as de-AT for de,
    is kept.
    """
    splices: list[Splice] = []
    wanted = {name.lower() for name in names}
    found = [each for each in find_attributes(document, start, end) if each.name in wanted]
    for attribute in found:
        value = document[attribute.start : attribute.end]
        if re.split("[-_]", value.strip().lower())[0] == re.split("[-_]", language.lower())[0]:
            continue
        if document[attribute.start - 1] in "\"'=":
            splices.append(Splice(attribute.start, attribute.end, [language]))
        else:  # without a value
            splices.append(Splice(attribute.start, attribute.end, [f'="{language}"']))
    if not found:
        match = re.compile(r"<[^\s/>]*").match(document, start, end)
        assert match is not None
        splices.append(Splice(match.end(), match.end(), [f' {names[0]}="{language}"']))
    return splices
