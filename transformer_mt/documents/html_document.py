"""HTML pages: text between block tags is translated, with its inline tags as protected elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise

from transformer_mt.data.markup.elements import Role
from transformer_mt.data.markup.protection import VOID_TAGS
from transformer_mt.documents.document import Document, Segment, Splice
from transformer_mt.documents.html_tags import INLINE, End, OpenHtmlElement, is_untranslated
from transformer_mt.documents.inline import (
    InlineToken,
    find_attributes,
    make_segment,
    make_segments,
    render_text,
    set_language,
)
from transformer_mt.documents.references import escape_text, split_references

_BROKEN_TAG = re.compile(r"<[A-Za-z/][^>]*>?")  # its quote is not closed, or no letter follows the slash
_CUT_TAG = re.compile(r"<[A-Za-z/!?][^>]*\Z")  # at the end of a page


def parse_html(text: str, language: str, attributes: Sequence[str] = ()) -> Document:
    """Return the document of a page. Any text is a page.

    Args:
        text: The page.
        language: Language code of the translation, for the attribute `lang` of the tag `html`.
        attributes: Names of attributes that are translated, such as `alt`.
    """
    return _PageReader(text, language, attributes).read()


@dataclass(frozen=True)
class _Event:
    """A part of a page. It ends where the next one starts."""

    start: int
    kind: str  # opening, closing, text or other
    tag: str = ""
    attributes: Mapping[str, str | None] | None = None
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

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("opening", tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("closing", tag)

    def handle_data(self, data: str) -> None:
        if not self.events or self.events[-1].kind != "text":  # a broken tag may be in two parts
            self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("other")

    def handle_decl(self, decl: str) -> None:
        self._add("other")

    def handle_pi(self, data: str) -> None:
        self._add("other")

    def unknown_decl(self, data: str) -> None:
        self._add("other")


class _PageReader:
    """Groups the parts of a page into segments."""

    def __init__(self, text: str, language: str, attributes: Sequence[str]) -> None:
        self.text, self.language = text, language
        self.attributes = {name.lower() for name in attributes}
        self.tokens: list[InlineToken] = []  # of the current segment
        self.untranslated: OpenHtmlElement | None = None  # an HTML element whose content is not translated
        self.splices: list[Splice] = []
        self.attribute_splices: list[Splice] = []

    def read(self) -> Document:
        for event, end in _with_ends(_EventParser(self.text).events, len(self.text)):
            if self.untranslated is None or self._advance_untranslated(self.untranslated, event, end):
                self._read_event(event, end)
        if self.untranslated is not None:
            self._end_untranslated(self.untranslated, len(self.text))
        self._flush()
        return Document(self.text, self.splices, self.attribute_splices)

    def _advance_untranslated(self, html_element: OpenHtmlElement, event: _Event, end: int) -> bool:
        """Pass an event to the HTML element whose content is not translated, and end it if the event does.

        Returns whether the event is after the HTML element, so that it must be read.
        """
        where = End.LATER
        if event.kind == "opening":
            where = html_element.read_opening(event.tag, event.is_closed)
        elif event.kind == "closing":
            where = html_element.read_closing(event.tag)
        if where is not End.LATER:
            self._end_untranslated(html_element, end if where is End.AFTER else event.start)
        return where is End.BEFORE

    def _end_untranslated(self, html_element: OpenHtmlElement, end: int) -> None:
        if html_element.tag in INLINE:
            self.tokens.append(InlineToken(html_element.start, end, is_content=True))
        self.untranslated = None

    def _read_event(self, event: _Event, end: int) -> None:
        tag = event.tag
        if event.kind == "text":
            self._read_text(event.start, end)
            return
        if event.kind == "other":
            self.tokens.append(InlineToken(event.start, end))
            return
        if tag not in INLINE:
            self._flush()
        if event.kind == "opening":
            self._read_opening(event, end)
        elif tag in INLINE:
            self.tokens.append(InlineToken(event.start, end, role=Role.CLOSING, name=tag))

    def _read_text(self, start: int, end: int) -> None:
        for match in _BROKEN_TAG.finditer(self.text, start, end):
            self.tokens += split_references(self.text, start, match.start())
            start = match.end()
            self.tokens.append(InlineToken(match.start(), start))
        self.tokens += split_references(self.text, start, end)

    def _read_opening(self, event: _Event, end: int) -> None:
        tag, attributes = event.tag, event.attributes or {}
        is_empty = tag in VOID_TAGS or event.is_closed
        if tag == "html":
            names = ["lang", *(["xml:lang"] if "xml:lang" in attributes else [])]
            self.attribute_splices += set_language(self.text, event.start, end, names, self.language)
        if is_untranslated(tag, attributes) and not is_empty:
            self.untranslated = OpenHtmlElement(tag, event.start)
            return
        if self.attributes and not is_untranslated(tag, attributes):
            self.attribute_splices += self._find_attribute_splices(event.start, end)
        if tag in INLINE:
            self.tokens.append(InlineToken(event.start, end, role=Role.SINGLE if is_empty else Role.OPENING, name=tag))

    def _flush(self) -> None:
        """End the segment."""
        for segment in make_segments(self.text, self.tokens, render_text(escape_text)):
            self.splices.append(Splice(segment.start, segment.end, [segment]))
        self.tokens = []

    def _find_attribute_splices(self, start: int, end: int) -> Iterator[Splice]:
        for attribute in find_attributes(self.text, start, end):
            if attribute.name in self.attributes and attribute.start < attribute.end:
                tokens = [*split_references(self.text, attribute.start, attribute.end)]
                segment = make_segment(self.text, tokens, render_text(_attribute_escape(attribute.quote)))
                if segment is not None:
                    yield _make_attribute_splice(segment, attribute.quote)


def _make_attribute_splice(segment: Segment, quote: str) -> Splice:
    quotes = [] if quote else ['"']  # a translation may have spaces
    return Splice(segment.start, segment.end, [*quotes, segment, *quotes])


def _attribute_escape(quote: str) -> Callable[[str], str]:
    """Return a function that escapes text for a value in quotes."""
    reference = "&#39;" if quote == "'" else "&quot;"
    return lambda text: escape_text(text).replace(quote or '"', reference)


def _with_ends(events: Sequence[_Event], end: int) -> Iterator[tuple[_Event, int]]:
    """Yield each event with the start of the next one."""
    for event, following in pairwise([*events, None]):
        assert event is not None
        yield event, end if following is None else following.start
