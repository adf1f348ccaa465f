"""Stand-ins for a model, and parsing of documents, for the tests of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformer_mt.choices import DocumentFormat
from transformer_mt.decoding.segments import Item, Role, Segment
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
    items = [item.upper() if isinstance(item, str) else item for item in source.items]
    return Segment.make(items, source.elements)


def rotate(source: Segment) -> Segment:
    """Translate to capital letters, and move the last word or pair of tags to the front."""
    units: list[list[Item]] = []
    until: int | None = None
    for item in upper(source).items:
        if isinstance(item, str) and until is None:
            units += [list[Item]([f"{word} "]) for word in item.split()]
            continue
        if until is None:
            units.append([])
        units[-1].append(item)
        if isinstance(item, int):
            element = source.elements[item]
            if until is None and element.role is Role.OPENING:
                until = element.partner
            elif until == item:
                until = None
            if until is None:
                units[-1].append(" ")
    items = [item for unit in [*units[-1:], *units[:-1]] for item in unit]
    if items and items[-1] == " ":
        items.pop()
    rotated = Segment.make(items, source.elements)
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
