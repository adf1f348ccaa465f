"""The encoding of documents: UTF-8, with or without a byte order mark."""

from __future__ import annotations

import codecs
import re

from transformer_mt.documents.document import DocumentError

BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
_DECLARATION = re.compile(r"<\?xml[^>]*?\bencoding\s*=\s*[\"']?|<meta[^>]*?\bcharset\s*=\s*[\"']?", re.IGNORECASE)
_NAME = re.compile(r"[\w.:-]*", re.ASCII)


def decode(content: bytes) -> str:
    """Return the text of a document. Raises `DocumentError` if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise DocumentError(line, f"{describe_conversion('not UTF-8 text')}") from None


def check_declared_encoding(tag: str, document: str, place: int) -> None:
    """Raise `DocumentError` if an XML declaration or a tag `meta` declares another encoding than UTF-8.

    Characters of the translation would be read wrongly, even if all of the source are ASCII.
    """
    match = _DECLARATION.match(tag)
    if match is None:
        return
    check_encoding_name(_NAME.match(tag, match.end()), 1 + document.count("\n", 0, place))


def check_encoding_name(name: re.Match[str] | None, line: int) -> None:
    """Raise `DocumentError` unless a declaration names UTF-8, or nothing."""
    encoding = "" if name is None else name[0]
    try:
        is_utf8 = not encoding or codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        is_utf8 = False
    if not is_utf8:
        raise DocumentError(line, describe_conversion(f"the document declares the encoding {encoding[:30]}"))


def describe_conversion(problem: str) -> str:
    """Return a problem with its remedy."""
    return f"{problem}; convert it with iconv -f ENCODING -t UTF-8, and declare UTF-8"
