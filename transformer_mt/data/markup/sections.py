"""Division of a text with elements into sections, such as its sentences, and the way back.

Elements are numbered in the order of the text, so a section has consecutive elements. No section ends inside a pair of
tags; pairs around the whole text are taken off before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from transformer_mt.data.markup.elements import MarkedText, Part, Role


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


def split_off_enclosing_pairs(text: MarkedText) -> MarkedText:
    """Return a text without the pairs of tags that enclose all of it."""
    n = count_enclosing_pairs(text)
    return text.extract(text.parts[n : len(text.parts) - n]) if n else text


def cut(text: MarkedText, chunks: Sequence[str]) -> list[MarkedText]:
    """Split a text where its chunks end. Chunks stay together if the boundary is inside a pair of tags.

    `chunks` are consecutive pieces of `text.plain`. An element between two sections belongs to the second, unless it is
    a closing tag.
    """
    ends = [*accumulate(map(len, chunks))][:-1]
    sections: list[list[Part]] = [[]]
    depth = offset = 0
    for part in text.parts:
        if isinstance(part, int):
            role = text.elements[part].role
            if role is not Role.CLOSING and ends and offset == ends[0] and depth == 0:
                sections.append([])
                ends = [end for end in ends if end > offset]
            depth += {Role.OPENING: 1, Role.CLOSING: -1, Role.SINGLE: 0}[role]
            sections[-1].append(part)
            continue
        start = 0
        for end in ends:
            if depth == 0 and offset <= end < offset + len(part) and (end > offset or sections[-1]):
                sections[-1].append(part[start : end - offset])
                sections.append([])
                start = end - offset
        offset += len(part)
        ends = [end for end in ends if end >= offset]
        sections[-1].append(part[start:])
    return [text.extract(section) for section in sections]


def join_sections(source: MarkedText, sections: Sequence[MarkedText]) -> MarkedText:
    """Undo `split_off_enclosing_pairs` and `cut` for the translations of the sections of a source."""
    n_outside = count_enclosing_pairs(source)
    parts: list[Part] = [*range(n_outside)]
    first = n_outside
    for section in sections:
        parts += [part if isinstance(part, str) else first + part for part in section.parts]
        first += len(section.elements)
    return MarkedText.make([*parts, *range(first, len(source.elements))], source.elements)
