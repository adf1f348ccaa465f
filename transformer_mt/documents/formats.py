"""Formats of documents, by the suffix of a file or by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from transformer_mt.documents.document import Document, DocumentError
from transformer_mt.documents.encoding import BOM, check_declared_encoding, decode
from transformer_mt.errors import UserError

DocumentFormat = Literal["html", "json", "markdown", "po", "srt", "xliff"]
SUFFIXES: Mapping[str, DocumentFormat] = {
    ".htm": "html",
    ".html": "html",
    ".xhtml": "html",
    ".json": "json",
    ".markdown": "markdown",
    ".md": "markdown",
    ".po": "po",
    ".pot": "po",
    ".srt": "srt",
    ".xlf": "xliff",
    ".xliff": "xliff",
}
ATTRIBUTES = ("alt", "aria-label", "placeholder", "title")
"""Attributes of HTML that may be translated."""


@dataclass(frozen=True)
class DocumentOptions:
    """Options of the translation of documents."""

    language: str
    """Language code of the translation."""
    attributes: tuple[str, ...] = ()
    """Attributes of HTML that are translated."""
    retranslate: bool = False
    """Whether messages of PO and XLIFF that have a translation are translated again."""


def find_format(path: Path) -> DocumentFormat | None:
    """Return the format of a file by its suffix; None if it has lines of text."""
    return SUFFIXES.get(path.suffix.lower())


def read_document(path: Path, document_format: DocumentFormat, options: DocumentOptions) -> Document:
    """Read a document. Raises `UserError` if it does not follow its format, or is not UTF-8."""
    try:
        text = decode(path.read_bytes())
        if document_format in ("html", "xliff"):
            check_declared_encoding(text)
        return parse_document(text, document_format, options)
    except DocumentError as error:
        raise UserError(f"{path}, line {error.line}: {error.message}") from None


def parse_document(text: str, document_format: DocumentFormat, options: DocumentOptions) -> Document:
    """Return the document of a text, which may start with a byte order mark.

    Raises `DocumentError` if it does not follow its format.
    """
    document = _parser(document_format)(text.removeprefix(BOM), options)
    return replace(document, byte_order_mark=BOM) if text.startswith(BOM) else document


def _parser(document_format: DocumentFormat) -> Callable[[str, DocumentOptions], Document]:
    """Return the parser of a format. Only its own libraries are imported."""
    match document_format:
        case "html":
            from transformer_mt.documents.html_document import parse_html

            return lambda text, options: parse_html(text, options.language, options.attributes)
        case "json":
            from transformer_mt.documents.json_document import parse_json

            return lambda text, _: parse_json(text)
        case "markdown":
            from transformer_mt.documents.markdown_document import parse_markdown

            return lambda text, _: parse_markdown(text)
        case "po":
            from transformer_mt.documents.po_document import parse_po

            return lambda text, options: parse_po(text, options.language, retranslate=options.retranslate)
        case "srt":
            from transformer_mt.documents.srt_document import parse_srt

            return lambda text, _: parse_srt(text)
        case "xliff":
            from transformer_mt.documents.xliff_document import parse_xliff

            return lambda text, options: parse_xliff(text, options.language, retranslate=options.retranslate)
