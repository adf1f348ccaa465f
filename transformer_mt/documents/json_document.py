"""JSON files: string values are translated, names of members are not."""

from __future__ import annotations

import json
import re
from functools import partial

from transformer_mt.documents.document import Document, DocumentError, Splice
from transformer_mt.documents.inline import make_text_parts

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"(?P<is_name>[ \t\r\n]*:)?')
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, written as an escape. Its string is not text, and stays unchanged."""


def parse_json(text: str) -> Document:
    """Return the document of a JSON file. Raises `DocumentError` if it is not JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise DocumentError(error.lineno, f"not JSON: {error.msg} (column {error.colno}); correct it") from None
    except RecursionError:
        raise DocumentError(1, "values are nested too deeply; use a flatter file") from None
    # A file that is ASCII by escapes stays ASCII.
    escape = partial(_escape, ascii=text.isascii() and re.search(r"\\u0*[0-9a-fA-F]{3}", text) is not None)
    splices: list[Splice] = []
    for match in _STRING.finditer(text):
        if match["is_name"] is None:
            start, end = match.start() + 1, match.end() - 1
            value = json.loads(match[0])
            splice = Splice(start, end, make_text_parts(value, start, escape))
            if splice.segments and not _SURROGATE.search(value):
                splices.append(splice)
    return Document(text, splices)


def _escape(text: str, *, ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii)[1:-1]
