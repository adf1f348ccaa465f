"""A document: its text, and the ranges that translations replace. Everything else is copied unchanged."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from transformer_mt.tools.markup.elements import Element, MarkedText


class DocumentError(Exception):
    """A document that does not follow its format."""

    def __init__(self, line: int, message: str) -> None:
        """`line` is counted from 1. `message` says what is wrong there, and what to do."""
        super().__init__(line, message)
        self.line, self.message = line, message


@dataclass(frozen=True)
class DocumentElement(Element):
    """A protected element that is a range of the document, such as a markup tag. It is copied, not escaped."""

    start: int = 0
    end: int = 0
    rewritten: str = ""
    """Its characters in a translation, if they differ from those in the document."""


class Piece(NamedTuple):
    """A piece of a translation: text that must be escaped, or markup of the document."""

    text: str
    is_markup: bool = False


Render = Callable[[Sequence[Piece]], str]
"""Returns a translation in the syntax of the document."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A text of a document that is translated as a unit, such as a paragraph."""

    source: MarkedText
    start: int
    """Offset in the document of the text, or of the range that its translation replaces."""
    end: int
    render: Render
    protects_tags: bool = False
    """Whether HTML tags in its text are protected elements, as in a message of a program. Otherwise they are text."""


@dataclass(frozen=True, eq=False)
class Splice:
    """A range of the document that is replaced by translated segments and by text between them."""

    start: int
    end: int
    parts: Sequence[str | Segment]
    always_replaces: bool = False
    """Replace the range even if every translation equals its source."""

    @property
    def segments(self) -> list[Segment]:
        """The segments in order."""
        return [part for part in self.parts if isinstance(part, Segment)]


@dataclass(frozen=True, eq=False)
class Document:
    """The text of a document with its splices in order, none of which overlap."""

    text: str
    splices: Sequence[Splice]
    attribute_splices: Sequence[Splice] = ()
    """Splices of attributes, each inside a markup tag, which may be a protected element of a segment."""
    byte_order_mark: str = ""
    """The byte order mark of the file, if there is one. It is not part of the text."""

    @cached_property
    def segments(self) -> list[Segment]:
        """All segments, those of attributes last."""
        return [segment for splice in (*self.splices, *self.attribute_splices) for segment in splice.segments]

    def line_numbers(self) -> list[int]:
        """Return the line of each segment, from 1."""
        breaks = [i for i, character in enumerate(self.text) if character == "\n"]
        return [1 + bisect_left(breaks, segment.start) for segment in self.segments]

    def fill(self, translations: Sequence[MarkedText]) -> str:
        """Return the document with the translation of each segment. A segment with a blank one stays unchanged."""
        by_segment: dict[Segment, MarkedText] = {}
        for segment, translation in zip(self.segments, translations, strict=True):
            is_changed = translation.surface != segment.source.surface and translation.text_only.strip()
            by_segment[segment] = translation if is_changed else segment.source
        return self.byte_order_mark + _Filler(self, by_segment).fill()


class _Filler:
    """Replaces the splices of a document by translations."""

    def __init__(self, document: Document, translations: dict[Segment, MarkedText]) -> None:
        self.text, self.splices, self.translations = document.text, document.splices, translations
        self.attribute_splices = [splice for splice in document.attribute_splices if self._is_changed(splice)]
        self.attribute_starts = [splice.start for splice in self.attribute_splices]

    def fill(self) -> str:
        parts: list[str] = []
        end = 0
        for splice in self.splices:
            parts.append(self._copy(end, splice.start))
            end = splice.end
            if self._is_changed(splice):
                parts += map(self._render, splice.parts)
            else:
                parts.append(self._copy(splice.start, splice.end))
        return "".join([*parts, self._copy(end, len(self.text))])

    def _is_changed(self, splice: Splice) -> bool:
        segments = splice.segments
        return (
            splice.always_replaces
            or any(self.translations[each] is not each.source for each in segments)
            or not segments
        )

    def _copy(self, start: int, end: int) -> str:
        """Return a range of the document with translated attributes."""
        first, last = bisect_left(self.attribute_starts, start), bisect_right(self.attribute_starts, end - 1)
        inside = self.attribute_splices[first:last]
        if not inside:
            return self.text[start:end]
        parts = [self.text[start : inside[0].start]]
        for splice, following in pairwise([*inside, None]):
            assert splice is not None
            parts += map(self._render, splice.parts)
            parts.append(self.text[splice.end : end if following is None else following.start])
        return "".join(parts)

    def _render(self, part: str | Segment) -> str:
        if isinstance(part, str):
            return part
        translation = self.translations[part]
        pieces: list[Piece] = []
        for each in translation.parts:
            if isinstance(each, str):
                pieces.append(Piece(each))
                continue
            element = translation.elements[each]
            if isinstance(element, DocumentElement):
                markup = element.rewritten or self._copy(element.start, element.end)
                pieces.append(Piece(markup, is_markup=True))
            else:
                pieces.append(Piece(element.surface))  # it was found in the text
        return part.render(pieces)


BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
_DECLARATION = re.compile(
    r"(?:<\?xml[^>]*?\bencoding|<meta[^>]*?\bcharset)\s*=\s*[\"']?(?P<name>[\w.:-]*)", re.ASCII | re.IGNORECASE
)
_DECLARATION_CHARACTERS = 4096  # at the start of a file, in which an encoding may be declared


def decode(content: bytes) -> str:
    """Return the text of a document. Raises `DocumentError` if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise DocumentError(line, _describe_conversion("not UTF-8 text")) from None


def check_declared_encoding(text: str) -> None:
    """Raise `DocumentError` if an XML declaration or a tag `meta` declares another encoding than UTF-8.

    Characters of the translation would be read wrongly, even if all of the source are ASCII.
    """
    for match in _DECLARATION.finditer(text, 0, _DECLARATION_CHARACTERS):
        check_encoding_name(match["name"], 1 + text.count("\n", 0, match.start()))


def check_encoding_name(name: str, line: int) -> None:
    """Raise `DocumentError` unless a declaration in a line names UTF-8, or nothing."""
    try:
        is_utf8 = not name or codecs.lookup(name).name == "utf-8"
    except LookupError:
        is_utf8 = False
    if not is_utf8:
        raise DocumentError(line, _describe_conversion(f"the document declares the encoding {name[:30]}"))


def _describe_conversion(problem: str) -> str:
    """Return a problem with its remedy."""
    return f"{problem}; convert it with iconv -f ENCODING -t UTF-8, and declare UTF-8"
