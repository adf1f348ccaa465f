"""Division of a text with elements into chunks, such as its sentences, and joining of their translations.

Elements are numbered in the order of the text, so those of a chunk have consecutive numbers. No chunk ends inside a
pair of tags. Pairs that enclose the whole text would prevent any division, so they are stripped before and restored
after.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from transformer_mt.tools.markup.elements import MarkedText, Part, Role


def count_enclosing_pairs(text: MarkedText) -> int:
    """Return how many pairs of tags enclose the whole text."""
    n = 0
    for first, last in zip(text.parts, reversed(text.parts), strict=True):
        if isinstance(first, str) or isinstance(last, str):
            break
        if text.elements[first].role is not Role.OPENING or text.elements[first].partner != last:
            break
        n += 1
    return n


def strip_enclosing_pairs(text: MarkedText) -> MarkedText:
    """Return a text without the pairs of tags that enclose all of it."""
    n = count_enclosing_pairs(text)
    return text.extract(text.parts[n : len(text.parts) - n]) if n else text


def split_into_chunks(text: MarkedText, text_chunks: Sequence[str]) -> list[MarkedText]:
    """Split a text at the ends of `text_chunks`, except inside a pair of tags.

    `text_chunks` are consecutive pieces of `text.text_only`; joined, they are all of it. An element at a boundary
    belongs to the later chunk, but a closing tag to the earlier one.
    """
    ends = [*accumulate(map(len, text_chunks))][:-1]
    chunks: list[list[Part]] = [[]]
    depth = offset = 0
    for part in text.parts:
        if isinstance(part, int):
            role = text.elements[part].role
            if role is not Role.CLOSING and ends and offset == ends[0] and depth == 0:
                chunks.append([])
                ends = [end for end in ends if end > offset]
            depth += {Role.OPENING: 1, Role.CLOSING: -1, Role.SINGLE: 0}[role]
            chunks[-1].append(part)
            continue
        start = 0
        for end in ends:
            if depth == 0 and offset <= end < offset + len(part) and (end > offset or chunks[-1]):
                chunks[-1].append(part[start : end - offset])
                chunks.append([])
                start = end - offset
        offset += len(part)
        ends = [end for end in ends if end >= offset]
        chunks[-1].append(part[start:])
    return [text.extract(chunk) for chunk in chunks]


def join_chunks(source: MarkedText, chunks: Sequence[MarkedText]) -> MarkedText:
    """Join the translations of the chunks of a source. Undoes `split_into_chunks` and `strip_enclosing_pairs`."""
    n_enclosing = count_enclosing_pairs(source)
    parts: list[Part] = [*range(n_enclosing)]
    first = n_enclosing  # number of the first element of the chunk
    for chunk in chunks:
        parts += [part if isinstance(part, str) else first + part for part in chunk.parts]
        first += len(chunk.elements)
    return MarkedText.make([*parts, *range(first, len(source.elements))], source.elements)
