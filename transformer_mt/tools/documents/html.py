"""HTML pages: text between block tags is translated, with its inline tags as protected elements."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from transformer_mt.decoding.segments import Role
from transformer_mt.tools.documents.document import (
    Document,
    DocumentOptions,
    InlineToken,
    Replacement,
    Tag,
    make_segments,
    read_tag,
    render_text,
    set_language,
)
from transformer_mt.tools.markup.protection import VOID_TAGS

_INLINE_TAGS = (
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark math nobr output q "
    "rb rp rt ruby s samp small span strike strong sub sup svg time tt u var wbr"
)
INLINE = frozenset(_INLINE_TAGS.split())
"""Tags inside of a sentence. All others end a segment, also line breaks."""
_UNTRANSLATED_TAGS = (
    "code iframe kbd math noembed noframes pre rp rt samp script style svg template textarea tt var xmp"
)
UNTRANSLATED = frozenset(_UNTRANSLATED_TAGS.split())
"""Tags whose content is not translated."""
_ENDED_BY: Mapping[str, Sequence[str]] = {
    "p": ("p",),
    "li": ("li",),
    "dt": ("dt", "dd"),
    "dd": ("dt", "dd"),
    "tr": ("tr",),
    **dict.fromkeys(("td", "th"), ("td", "th", "tr")),
    **dict.fromkeys(("rt", "rp"), ("rb", "rt", "rp", "/ruby")),
}
"""Tags that end an HTML element whose closing tag is left out."""


class OpenHtmlElement:
    """Finds the end of an HTML element by the tags inside it."""

    def __init__(self, tag: str, start: int) -> None:
        """`start` is the offset of its opening tag."""
        self.tag, self.start = tag, start
        self._open = [tag]
        self._n_open = Counter(self._open)

    def locate_end(self, kind: str, tag: str, is_self_closing: bool = False) -> Literal["later", "before", "after"]:
        """Return whether the element ends before or after this tag, or later.

        `kind` is `opening` or `closing`; any other kind is no tag. `is_self_closing`: an opening tag ends with a slash.
        """
        name = f"/{tag}" if kind == "closing" else tag
        if len(self._open) == 1 and name in _ENDED_BY.get(self.tag, ()):
            return "before"
        if kind == "opening" and not is_self_closing and tag not in VOID_TAGS:
            self._open.append(tag)
            self._n_open[tag] += 1
        elif kind == "closing":
            if not self._n_open[tag]:  # that of an enclosing block ends the HTML element, too
                return "later" if tag in INLINE or tag in VOID_TAGS else "before"
            while (last := self._open.pop()) != tag:
                self._n_open[last] -= 1
            self._n_open[tag] -= 1
            return "later" if self._open else "after"
        return "later"


_ATTRIBUTE = r"\s+[\w:-]+=(?:&quot;(?:(?!&quot;)[^<>])*&quot;|\"[^\"<>]*\"|'[^'<>]*'|[^\s<>&]+)"
_REFERENCE = re.compile(rf"&lt;/?[A-Za-z][\w:.-]*(?:{_ATTRIBUTE})*\s*/?&gt;|&#?[0-9A-Za-z]+;?")
_SPACE = re.compile(r"[ \t\r\n\f]+")


def split_references(document: str, start: int, end: int) -> Iterator[InlineToken]:
    """Yield the tokens of text at a range.

    A reference to a letter or to punctuation is text, any other an element, and so is an escaped tag.
    """
    position = start
    for match in _REFERENCE.finditer(document, start, end):
        text = html.unescape(match[0])
        is_known = text != match[0]
        if not is_known and not match[0].endswith(";"):
            continue  # a plain ampersand
        if position < match.start():
            yield _text(document, position, match.start())
        position = match.end()
        is_tag = match[0].endswith("&gt;") and match[0] != "&gt;"
        is_text = is_known and text and not is_tag and all(map(_is_text, text))
        yield InlineToken(match.start(), position, text if is_text else None, is_content=is_tag)
    if position < end:
        yield _text(document, position, end)


def _escape_text(text: str) -> str:
    """Escape text for the content of a tag, also of XHTML, which defines no `&nbsp;`."""
    return html.escape(text, quote=False).replace("\N{NO-BREAK SPACE}", "&#160;")


def _text(document: str, start: int, end: int) -> InlineToken:
    return InlineToken(start, end, _SPACE.sub(" ", document[start:end]))


def _is_text(character: str) -> bool:
    return (character.isascii() and character.isprintable()) or unicodedata.category(character)[0] in "LMNPZ"


def parse_html(text: str, options: DocumentOptions) -> Document:
    """Return the document of a page. Any text is a page."""
    return _PageReader(text, options).read()


class _Part(NamedTuple):
    """A part of a page, with its range."""

    start: int
    end: int
    kind: Literal["opening", "closing", "text", "code", "other"]
    tag: Tag | None = None

    @property
    def name(self) -> str:
        return "" if self.tag is None else self.tag.name

    @property
    def is_self_closing(self) -> bool:
        return self.tag is not None and self.tag.is_self_closing


_RAW_TEXT = frozenset(["iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"])
"""Tags whose content has no tags."""
_SCRIPT_PART = re.compile(r"<!(?=--)|-->|(</?)script(?=[ \t\n\f\r/>])", re.IGNORECASE | re.ASCII)
_COMMENT = re.compile(r"<!--(?:-?>|.*?--!?>)", re.DOTALL)
_MARKUP = re.compile(r"<(?:(?P<tag>/?[A-Za-z])|[!?]|/(?!\Z))")
_CODE = {"<%": "%>", "<?php": "?>", "<?=": "?>"}
"""Code of templates, which may contain tags."""
_XML_CODE = {"<![CDATA[": "]]>", "<?": "?>"}
"""Other parts of XHTML that may contain tags."""
_XHTML_START = re.compile(
    r"\s*<\?xml\b|.{0,4096}?<html\b[^<>]*\bxmlns\s*=\s*[\"']http://www\.w3\.org/1999/xhtml", re.DOTALL
)
_DOCUMENT_TYPE = re.compile(
    r"\s*(?:<\?xml\b[^>]*>\s*)?(?:<!--(?:(?!-->).)*+-->\s*)*+<!DOCTYPE[^<>\[]*\[[^\]]*\]\s*>", re.DOTALL
)
"""Start of XHTML with a document type that declares entities."""


class HtmlTokenizer:
    """Divides a page into tags, text, comments and code, as the HTML standard does, in linear time.

    XHTML also has CDATA sections, processing instructions and declarations of entities, which are kept.

    There are three exceptions, because the standard would lose text of such pages. Code of templates ends where the
    template ends it. An opening tag that ends with a slash is self-closing, as in XML. If a quote in a tag is never
    closed, this tag and later ones end at the next `>`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._ends_at_first_bracket = False
        self._code = _CODE | _XML_CODE if _XHTML_START.match(text) else _CODE
        self._last_ends = {closing: text.rfind(closing) for closing in self._code.values()}

    def __iter__(self) -> Iterator[_Part]:
        """Yield the parts. Joined, they are the page; no text follows another one directly."""
        text, position, text_start = self.text, 0, 0
        if document_type := _DOCUMENT_TYPE.match(text):
            position = text_start = document_type.end()
            yield _Part(0, position, "other")
        while (start := text.find("<", position)) >= 0:
            part = self._read_markup(start)
            if part is None:
                position = start + 1
                continue
            if text_start < start:
                yield _Part(text_start, start, "text")
            yield part
            position = text_start = part.end
            if part.kind == "opening" and part.name in _RAW_TEXT and not part.is_self_closing:
                position = self._end_of_raw_text(part.name, position)
        if text_start < len(text):
            yield _Part(text_start, len(text), "text")

    def _read_markup(self, start: int) -> _Part | None:
        """Return the part that starts at a `<`; None if it is text."""
        text = self.text
        for opening, closing in self._code.items():
            if text.startswith(opening, start) and start < self._last_ends[closing]:
                return _Part(start, text.index(closing, start) + len(closing), "code")
        match = _MARKUP.match(text, start)
        if match is None:
            return None
        if match["tag"]:
            return self._read_tag(start, "closing" if match["tag"].startswith("/") else "opening")
        match = _COMMENT.match(text, start)
        end = match.end() if match else 0 if text.startswith("<!--", start) else text.find(">", start) + 1
        return _Part(start, end or len(text), "other")

    def _read_tag(self, start: int, kind: Literal["opening", "closing"]) -> _Part:
        if not self._ends_at_first_bracket:
            tag = read_tag(self.text, start, len(self.text))
            if tag is not None:
                return _Part(start, tag.end, kind, tag)
            self._ends_at_first_bracket = True
        end = self.text.find(">", start) + 1
        if not end:
            return _Part(start, len(self.text), "other")
        tag = read_tag(self.text, start, end)
        return _Part(start, end, "other") if tag is None else _Part(start, end, kind, tag)

    def _end_of_raw_text(self, name: str, start: int) -> int:
        if name != "script":
            match = re.compile(rf"</{name}(?=[ \t\n\f\r/>])", re.IGNORECASE | re.ASCII).search(self.text, start)
            return len(self.text) if match is None else match.start()
        depth = 0  # 1: in a comment; 2: in a script in it
        for match in _SCRIPT_PART.finditer(self.text, start):
            if match[1] is None:
                depth = 0 if match[0] == "-->" else max(depth, 1)
            elif match[1] == "<":
                depth = 2 if depth else 0
            elif depth < 2:
                return match.start()
            else:
                depth = 1
        return len(self.text)


class _PageReader:
    """Groups the parts of a page into segments."""

    def __init__(self, text: str, options: DocumentOptions) -> None:
        self.text, self.language = text, options.language
        self.tokens: list[InlineToken] = []  # of the current segment
        self.untranslated: OpenHtmlElement | None = None  # an HTML element whose content is not translated
        self.replacements: list[Replacement] = []

    def read(self) -> Document:
        for part in HtmlTokenizer(self.text):
            where = "before"
            if self.untranslated is not None:
                where = self.untranslated.locate_end(part.kind, part.name, part.is_self_closing)
                if where != "later":
                    self._end_untranslated(part.end if where == "after" else part.start)
            if where == "before":
                self._read_part(part)
        self._end_untranslated(len(self.text))
        self._flush()
        return Document(self.text, self.replacements)

    def _end_untranslated(self, end: int) -> None:
        if self.untranslated is not None and self.untranslated.tag in INLINE:
            self.tokens.append(InlineToken(self.untranslated.start, end, is_content=True))
        self.untranslated = None

    def _read_part(self, part: _Part) -> None:
        if part.kind == "text":
            self.tokens += split_references(self.text, part.start, part.end)
        elif part.tag is None:
            self.tokens.append(InlineToken(part.start, part.end, is_content=part.kind == "code"))
        else:
            if part.name not in INLINE:
                self._flush()
            if part.kind == "opening":
                self._read_opening(part.tag)
            elif part.name in INLINE:
                self.tokens.append(InlineToken(part.start, part.end, role=Role.CLOSING, name=part.name))

    def _read_opening(self, tag: Tag) -> None:
        is_empty = tag.name in VOID_TAGS or tag.is_self_closing
        if tag.name == "html":
            names = ["lang", *(["xml:lang"] if any(each.name == "xml:lang" for each in tag.attributes) else [])]
            self.replacements += set_language(self.text, tag, names, self.language)
        if self._is_untranslated(tag) and not is_empty:
            self.untranslated = OpenHtmlElement(tag.name, tag.start)
        elif tag.name in INLINE:
            role = Role.SINGLE if is_empty else Role.OPENING
            self.tokens.append(InlineToken(tag.start, tag.end, role=role, name=tag.name))

    def _is_untranslated(self, tag: Tag) -> bool:
        values = {each.name: html.unescape(self.text[each.start : each.end]) for each in reversed(tag.attributes)}
        is_marked = "notranslate" in values.get("class", "").split()
        return tag.name in UNTRANSLATED or is_marked or values.get("translate", "").strip().lower() == "no"

    def _flush(self) -> None:
        for segment in make_segments(self.text, self.tokens, render_text(_escape_text)):
            self.replacements.append(Replacement(segment.start, segment.end, [segment]))
        self.tokens = []
