"""The encoding of documents: UTF-8, with or without a byte order mark."""

from __future__ import annotations

import codecs
import re

from transformer_mt.documents.document import DocumentError

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
