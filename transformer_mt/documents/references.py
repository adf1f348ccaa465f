"""Character references of HTML, such as `&amp;` and `&#8212;`."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator

from transformer_mt.documents.inline import InlineToken

_REFERENCE = re.compile(r"&#?[0-9A-Za-z]+;?")
_SPACE = re.compile(r"[ \t\r\n\f]+")


def split_references(document: str, start: int, end: int) -> Iterator[InlineToken]:
    """Yield the tokens of text at a range. A reference to a letter or to punctuation is text, any other an element."""
    position = start
    for match in _REFERENCE.finditer(document, start, end):
        character = html.unescape(match[0])
        is_unknown = character == match[0]
        if is_unknown and not match[0].endswith(";"):
            continue  # a plain ampersand
        if position < match.start():
            yield _text(document, position, match.start())
        position = match.end()
        if not is_unknown and all(map(_is_text, character)) and character:
            yield InlineToken(match.start(), position, character)
        else:
            yield InlineToken(match.start(), position)
    if position < end:
        yield _text(document, position, end)


def escape_text(text: str) -> str:
    """Escape text for the content of a tag."""
    return html.escape(text, quote=False).replace("\N{NO-BREAK SPACE}", "&nbsp;")


def _text(document: str, start: int, end: int) -> InlineToken:
    return InlineToken(start, end, _SPACE.sub(" ", document[start:end]))


def _is_text(character: str) -> bool:
    return (character.isascii() and character.isprintable()) or unicodedata.category(character)[0] in "LMNPZ"
