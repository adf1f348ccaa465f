"""Formats of documents, by the suffix of a file or by name, and the translation of a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt.choices import DocumentFormat
from transformer_mt.data.text_files import find_structure, remove_compressed_suffix
from transformer_mt.decoding.segments import Segment, Translation
from transformer_mt.errors import UserError
from transformer_mt.tools.documents.document import BOM, Document, DocumentError, DocumentOptions, decode

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator

FORMATS: Mapping[DocumentFormat, Sequence[str]] = {
    "html": (".html", ".htm", ".xhtml"),
    "json": (".json", ".arb"),
    "markdown": (".md", ".markdown"),
    "po": (".po", ".pot"),
    "srt": (".srt",),
    "tmx": (".tmx",),
    "vtt": (".vtt",),
    "xliff": (".xlf", ".xliff", ".sdlxliff", ".mqxliff"),
}
"""Suffixes of each format."""


def find_format(path: Path) -> DocumentFormat | None:
    """Return the format of a file by its suffix; None if it has lines of text."""
    return next((name for name, suffixes in FORMATS.items() if path.suffix.lower() in suffixes), None)


def check_is_plain(path: Path) -> None:
    """Raise `UserError` if the suffix or the content of a file shows that it is not plain text."""
    found = find_structure(path)
    suffixes_found = {f".{found}", remove_compressed_suffix(path).suffix.lower()}
    name = next((name for name, suffixes in FORMATS.items() if suffixes_found.intersection(suffixes)), None)
    insist = "--document-format text translates it line by line"
    if name:
        is_packed = remove_compressed_suffix(path) != path
        remedy = "unpack it" if is_packed else f"pass --document-format {name}"
        raise UserError(f"{path}: looks like a document ({name}); {remedy}, or {insist}")
    if found:
        remedy = "convert it with ffmpeg -i a.ass a.srt" if found in ("ass", "ssa") else "extract them"
        raise UserError(f"{path}: looks like {found.upper()}, which has more than lines of text; {remedy}, or {insist}")


def read_document(path: Path, document_format: DocumentFormat, options: DocumentOptions) -> Document:
    """Read a document. Raises `UserError` if it does not follow its format, or is not UTF-8."""
    try:
        text = decode(path.read_bytes(), may_declare=document_format in ("html", "tmx", "xliff"))
        return parse_document(text, document_format, options)
    except DocumentError as error:
        raise UserError(f"{path}, line {error.line}: {error.message}") from None


def parse_document(text: str, document_format: DocumentFormat, options: DocumentOptions) -> Document:
    """Return the document of a text, which may start with a byte order mark. Only its own libraries are imported.

    Raises `DocumentError` if it does not follow its format.
    """
    body = text.removeprefix(BOM)
    match document_format:
        case "html":
            from transformer_mt.tools.documents.html import parse_html as parse
        case "json":
            from transformer_mt.tools.documents.messages import parse_json as parse
        case "markdown":
            from transformer_mt.tools.documents.markdown import parse_markdown as parse
        case "po":
            from transformer_mt.tools.documents.messages import parse_po as parse
        case "srt":
            from transformer_mt.tools.documents.subtitles import parse_srt as parse
        case "tmx":
            from transformer_mt.tools.documents.bilingual import parse_tmx as parse
        case "vtt":
            from transformer_mt.tools.documents.subtitles import parse_vtt as parse
        case "xliff":
            from transformer_mt.tools.documents.bilingual import parse_xliff as parse
    document = parse(body, options)
    return replace(document, byte_order_mark=text[: len(text) - len(body)])


def protect_elements(translator: Translator) -> Translator:
    """Return a translator that protects elements."""
    return translator.with_options({"markup": "auto"}) if translator.config.markup == "none" else translator


def list_sources(document: Document) -> list[str | Segment]:
    """Return the text of each segment of a document, for the translator.

    Markup tags are searched only in segments that say so. In others, they are elements already.
    """
    return [segment.source.surface if segment.protects_tags else segment.source for segment in document.segments]


def fill_document(document: Document, n_best_lists: Sequence[Sequence[Translation]], rank: int = 0) -> str:
    """Return a document with its translated segments. `rank` counts the translations of each from the best one."""
    best = (n_best[min(rank, len(n_best) - 1)] for n_best in n_best_lists)
    return document.fill([each.content for each in best])
