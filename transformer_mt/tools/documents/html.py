"""HTML pages: text between block tags is translated, with its inline tags as protected elements."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html.parser import HTMLParser
from typing import Literal, NamedTuple

from transformer_mt.tools.documents.document import (
    Document,
    DocumentOptions,
    InlineToken,
    Replacement,
    find_attributes,
    make_segment,
    make_segments,
    render_text,
    set_language,
)
from transformer_mt.tools.markup.elements import Role
from transformer_mt.tools.markup.protection import VOID_TAGS

_INLINE_TAGS = (
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark math nobr output q "
    "rp rt ruby s samp small span strike strong sub sup svg time tt u var wbr"
)
INLINE = frozenset(_INLINE_TAGS.split())
"""Tags inside of a sentence. All others end a segment, also line breaks."""
_UNTRANSLATED_TAGS = "code iframe kbd math noembed noframes pre samp script style svg template textarea tt var xmp"
UNTRANSLATED = frozenset(_UNTRANSLATED_TAGS.split())
"""Tags whose content is not translated."""
_ENDED_BY: Mapping[str, Sequence[str]] = {
    "p": ("p",),
    "li": ("li",),
    "dt": ("dt", "dd"),
    "dd": ("dt", "dd"),
    "tr": ("tr",),
    **dict.fromkeys(("td", "th"), ("td", "th", "tr")),
}
"""Opening tags that end an HTML element whose closing tag is left out."""


def _is_untranslated(tag: str, attributes: Mapping[str, str | None]) -> bool:
    if tag in UNTRANSLATED or "notranslate" in (attributes.get("class") or "").split():
        return True
    return (attributes.get("translate") or "").strip().lower() == "no"


class OpenHtmlElement:
    """Finds the end of an HTML element by the tags inside it."""

    def __init__(self, tag: str, start: int) -> None:
        """`start` is the offset of its opening tag."""
        self.tag, self.start = tag, start
        self._open = [tag]

    def read(self, kind: str, tag: str, is_closed: bool = False) -> Literal["later", "before", "after"]:
        """Return whether the element ends before or after this tag, or later.

        The tag is `opening`, `closing`, or other content. `is_closed`: an opening tag has no content.
        """
        if kind == "opening":
            if len(self._open) == 1 and tag in _ENDED_BY.get(self.tag, ()):
                return "before"
            if not is_closed and tag not in VOID_TAGS:
                self._open.append(tag)
        elif kind == "closing":
            if tag not in self._open:  # that of an enclosing block ends the HTML element, too
                return "later" if tag in INLINE or tag in VOID_TAGS else "before"
            while self._open.pop() != tag:
                pass
            return "later" if self._open else "after"
        return "later"


_REFERENCE = re.compile(r"&#?[0-9A-Za-z]+;?")
_SPACE = re.compile(r"[ \t\r\n\f]+")


def split_references(document: str, start: int, end: int) -> Iterator[InlineToken]:
    """Yield the tokens of text at a range. A reference to a letter or to punctuation is text, any other an element."""
    position = start
    for match in _REFERENCE.finditer(document, start, end):
        text = html.unescape(match[0])
        is_known = text != match[0]
        if not is_known and not match[0].endswith(";"):
            continue  # a plain ampersand
        if position < match.start():
            yield _text(document, position, match.start())
        position = match.end()
        is_text = is_known and text and all(map(_is_text, text))
        yield InlineToken(match.start(), position, text if is_text else None)
    if position < end:
        yield _text(document, position, end)


def escape_text(text: str) -> str:
    """Escape text for the content of a tag."""
    return html.escape(text, quote=False).replace("\N{NO-BREAK SPACE}", "&nbsp;")


def _text(document: str, start: int, end: int) -> InlineToken:
    return InlineToken(start, end, _SPACE.sub(" ", document[start:end]))


def _is_text(character: str) -> bool:
    return (character.isascii() and character.isprintable()) or unicodedata.category(character)[0] in "LMNPZ"


_BROKEN_TAG = re.compile(r"<[A-Za-z/][^>]*>?")  # its quote is not closed, or no letter follows the slash
_CUT_TAG = re.compile(r"<[A-Za-z/!?][^>]*\Z")  # at the end of a page


def parse_html(text: str, options: DocumentOptions) -> Document:
    """Return the document of a page. Any text is a page."""
    return _PageReader(text, options).read()


class _Event(NamedTuple):
    """A part of a page. It ends where the next one starts."""

    start: int
    kind: str  # opening, closing, text or other
    tag: str = ""
    attributes: Mapping[str, str | None] = {}
    is_closed: bool = False  # `<tag/>`


class _EventParser(HTMLParser):
    """Lists the parts of a page with their offsets."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.events: list[_Event] = []
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        cut_tag = _CUT_TAG.search(text, max(0, text.rfind("<")))
        end = len(text) if cut_tag is None else cut_tag.start()
        self.feed(text[:end])
        self.close()
        if end < len(text):
            self.events.append(_Event(end, "other"))

    def _add(self, kind: str, tag: str = "", attributes: Sequence[tuple[str, str | None]] = ()) -> None:
        line, column = self.getpos()
        is_closed = kind == "opening" and (self.get_starttag_text() or "").endswith("/>")
        first_values = dict(reversed(attributes))
        self.events.append(_Event(self._line_starts[line - 1] + column, kind, tag, first_values, is_closed))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("opening", tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("closing", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("opening", tag, attrs)

    def handle_data(self, data: str) -> None:
        if not self.events or self.events[-1].kind != "text":  # a broken tag may be in two parts
            self._add("text")

    def _handle_other(self, _: str, /) -> None:
        self._add("other")

    handle_comment = handle_decl = handle_pi = unknown_decl = _handle_other  # pyright: ignore[reportAssignmentType]


class _PageReader:
    """Groups the parts of a page into segments."""

    def __init__(self, text: str, options: DocumentOptions) -> None:
        self.text, self.language = text, options.language
        self.attributes = {name.lower() for name in options.attributes}
        self.tokens: list[InlineToken] = []  # of the current segment
        self.untranslated: OpenHtmlElement | None = None  # an HTML element whose content is not translated
        self.replacements: list[Replacement] = []
        self.attribute_replacements: list[Replacement] = []

    def read(self) -> Document:
        events = _EventParser(self.text).events
        ends = [*(event.start for event in events[1:]), len(self.text)]
        for event, end in zip(events, ends, strict=False):  # a page may be empty
            where = "before"
            if self.untranslated is not None:
                where = self.untranslated.read(event.kind, event.tag, event.is_closed)
                if where != "later":
                    self._end_untranslated(end if where == "after" else event.start)
            if where == "before":
                self._read_event(event, end)
        self._end_untranslated(len(self.text))
        self._flush()
        return Document(self.text, self.replacements, self.attribute_replacements)

    def _end_untranslated(self, end: int) -> None:
        if self.untranslated is not None and self.untranslated.tag in INLINE:
            self.tokens.append(InlineToken(self.untranslated.start, end, is_content=True))
        self.untranslated = None

    def _read_event(self, event: _Event, end: int) -> None:
        if event.kind == "text":
            self._read_text(event.start, end)
        elif event.kind == "other":
            self.tokens.append(InlineToken(event.start, end))
        else:
            if event.tag not in INLINE:
                self._flush()
            if event.kind == "opening":
                self._read_opening(event, end)
            elif event.tag in INLINE:
                self.tokens.append(InlineToken(event.start, end, role=Role.CLOSING, name=event.tag))

    def _read_text(self, start: int, end: int) -> None:
        for match in _BROKEN_TAG.finditer(self.text, start, end):
            self.tokens += split_references(self.text, start, match.start())
            start = match.end()
            self.tokens.append(InlineToken(match.start(), start))
        self.tokens += split_references(self.text, start, end)

    def _read_opening(self, event: _Event, end: int) -> None:
        tag, attributes = event.tag, event.attributes
        is_empty = tag in VOID_TAGS or event.is_closed
        if tag == "html":
            names = ["lang", *(["xml:lang"] if "xml:lang" in attributes else [])]
            self.attribute_replacements += set_language(self.text, event.start, end, names, self.language)
        is_untranslated = _is_untranslated(tag, attributes)
        if is_untranslated and not is_empty:
            self.untranslated = OpenHtmlElement(tag, event.start)
            return
        if self.attributes and not is_untranslated:
            self.attribute_replacements += self._find_attribute_replacements(event.start, end)
        if tag in INLINE:
            self.tokens.append(InlineToken(event.start, end, role=Role.SINGLE if is_empty else Role.OPENING, name=tag))

    def _flush(self) -> None:
        """End the segment."""
        for segment in make_segments(self.text, self.tokens, render_text(escape_text)):
            self.replacements.append(Replacement(segment.start, segment.end, [segment]))
        self.tokens = []

    def _find_attribute_replacements(self, start: int, end: int) -> Iterator[Replacement]:
        for attribute in find_attributes(self.text, start, end):
            if attribute.name in self.attributes and attribute.start < attribute.end:
                tokens = [*split_references(self.text, attribute.start, attribute.end)]
                segment = make_segment(self.text, tokens, render_text(partial(_escape_value, attribute.quote or '"')))
                if segment is not None:
                    quotes = [] if attribute.quote else ['"']  # a translation may have spaces
                    yield Replacement(segment.start, segment.end, [*quotes, segment, *quotes])


def _escape_value(quote: str, text: str) -> str:
    return escape_text(text).replace(quote, "&#39;" if quote == "'" else "&quot;")
