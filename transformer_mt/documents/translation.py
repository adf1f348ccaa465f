"""Translation of documents: each segment is a line with protected elements, and all are translated together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from transformer_mt.data.markup.elements import Element, MarkedText
from transformer_mt.decoding.chunked_translator import ChunkedTranslator, TranslatedLine
from transformer_mt.documents.document import Document, Segment


def adapt_translator(chunked: ChunkedTranslator) -> ChunkedTranslator:
    """Return a translator that protects elements, and translates each sentence of a segment separately.

    Sentences are not split if `chunked` never splits them.
    """
    translator, chunker = chunked.text_translator, chunked.chunker
    if translator.config.markup == "none":
        translator = translator.with_options({"markup": "auto"})
    if chunker.when == "long":
        chunker = replace(chunker, when="always")
    return replace(chunked, text_translator=translator, chunker=chunker)


def make_lines(document: Document) -> list[str | MarkedText]:
    """Return the text of each segment, for `ChunkedTranslator`.

    Markup tags are searched only in segments that say so. Those of a page are elements already, and others are text.
    """
    return [segment.source.surface if segment.protects_tags else segment.source for segment in document.segments]


def fill_document(document: Document, lines: Sequence[TranslatedLine], rank: int = 0) -> str:
    """Return a document with its translated segments. `rank` counts the translations of each from the best one."""
    translations: list[MarkedText] = []
    for segment, line in zip(document.segments, lines, strict=True):
        n_best = line.join()
        translation = n_best[min(rank, len(n_best) - 1)]
        if translation.marked is None:
            translations.append(translation.marked_text)
        else:
            elements = _find_document_elements(segment, line.source)
            translations.append(MarkedText(translation.marked.parts, elements))
    return document.fill(translations)


def _find_document_elements(segment: Segment, source: MarkedText) -> tuple[Element, ...]:
    """Return the elements of a source, which has more than its segment: also those that were found in its text.

    Elements of the document replace those at the same offset.
    """
    own = {offset: segment.source.elements[index] for offset, index in _offsets(segment.source)}
    elements = [*source.elements]
    for offset, index in _offsets(source):
        elements[index] = own.get(offset, elements[index])
    return tuple(elements)


def _offsets(text: MarkedText) -> Iterator[tuple[int, int]]:
    """Yield the offset of each element in the text with elements, and its index."""
    offset = 0
    for part in text.parts:
        if isinstance(part, int):
            yield offset, part
        offset += len(part if isinstance(part, str) else text.elements[part].surface)
