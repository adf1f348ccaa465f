"""Stand-ins for a model, and parsing of documents, for the tests of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformer_mt.choices import DocumentFormat
from transformer_mt.decoding.segment import Part, Role, Segment
from transformer_mt.tools.documents.document import Document
from transformer_mt.tools.documents.formats import DocumentOptions, parse_document

Translate = Callable[[Segment], Segment]


def parse(
    text: str,
    document_format: DocumentFormat,
    *,
    retranslate: bool = False,
    exclude_keys: Sequence[str] = (),
) -> Document:
    """Return a document that is translated to German."""
    return parse_document(text, document_format, DocumentOptions("de", "en", retranslate, frozenset(exclude_keys)))


def sources(document: Document) -> list[str]:
    """Return the text of all segments, with their elements."""
    return [segment.source.surface for segment in document.segments]


def fill(document: Document, translate: Translate) -> str:
    """Return a document with the translations of a stand-in."""
    return document.fill([translate(segment.source) for segment in document.segments])


def identity(source: Segment) -> Segment:
    """Translate nothing."""
    return source


def upper(source: Segment) -> Segment:
    """Translate to capital letters."""
    parts = [part.upper() if isinstance(part, str) else part for part in source.parts]
    return Segment.make(parts, source.elements)


def rotate(source: Segment) -> Segment:
    """Translate to capital letters, and move the last word or pair of tags to the front."""
    units: list[list[Part]] = []
    until: int | None = None
    for part in upper(source).parts:
        if isinstance(part, str) and until is None:
            units += [list[Part]([f"{word} "]) for word in part.split()]
            continue
        if until is None:
            units.append([])
        units[-1].append(part)
        if isinstance(part, int):
            element = source.elements[part]
            if until is None and element.role is Role.OPENING:
                until = element.partner
            elif until == part:
                until = None
            if until is None:
                units[-1].append(" ")
    parts = [part for unit in [*units[-1:], *units[:-1]] for part in unit]
    if parts and parts[-1] == " ":
        parts.pop()
    rotated = Segment.make(parts, source.elements)
    assert has_elements_of(rotated, source)
    return rotated


def has_elements_of(translation: Segment, source: Segment) -> bool:
    """Return whether each element of a source occurs exactly once in a translation, inside the same pair of tags."""
    open_tags: list[int | None] = [None]
    for index in translation.order:
        element = source.elements[index]
        if element.role is Role.CLOSING and open_tags.pop() != element.partner:
            return False
        if element.parent != open_tags[-1]:
            return False
        if element.role is Role.OPENING:
            open_tags.append(index)
    return sorted(translation.order) == [*range(len(source.elements))]
