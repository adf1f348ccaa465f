"""Segments: lines of text, their parts and translations, in which elements may have to stay unchanged.

A `Segment` is a sequence of text and elements, such as markup tags and placeholders; plain text has none. Its
translation contains each element exactly once, and each element keeps its parent: the pair of markup tags that encloses
it most closely. So pairs of tags are nested as in the source.

A segment may be divided into parts, such as its sentences. Elements are numbered in the order of the text, so those of
a part have consecutive numbers. No part ends inside a pair of tags. Pairs that enclose the whole segment would prevent
any division, so they are stripped before and restored after.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import accumulate, pairwise


class Role(Enum):
    """Role of an element in the nesting of tags."""

    SINGLE = auto()  # a placeholder, a link, an empty tag, or a tag without a partner
    OPENING = auto()
    CLOSING = auto()


@dataclass(frozen=True)
class Element:
    """A protected element of a segment."""

    surface: str  # its characters, such as `<b>` or `{name}`
    role: Role = Role.SINGLE
    partner: int | None = None  # index of the other tag of the pair
    parent: int | None = None  # index of the opening tag of the closest enclosing pair


Part = str | int
"""Text, or the index of an element."""


@dataclass(frozen=True)
class Segment:
    """A line, a part of one, or the translation of either. No text part is empty, and no two of them are neighbours."""

    parts: tuple[Part, ...]
    elements: tuple[Element, ...] = ()

    @classmethod
    def make(cls, parts: Sequence[Part], elements: Sequence[Element]) -> Segment:
        """Return a segment with these parts. Neighbouring texts are joined, and empty ones are left out."""
        joined: list[Part] = []
        for part in parts:
            if isinstance(part, str) and joined and isinstance(joined[-1], str):
                joined[-1] += part
            elif part != "":
                joined.append(part)
        return cls(tuple(joined), tuple(elements))

    @classmethod
    def from_text(cls, text: str) -> Segment:
        """Return plain text as a segment."""
        return cls((text,) if text else ())

    @property
    def surface(self) -> str:
        """Return the text with the surfaces of its elements."""
        return "".join(part if isinstance(part, str) else self.elements[part].surface for part in self.parts)

    @property
    def text(self) -> str:
        """Return the parts that are text, joined, for sentence splitting and fault detection.

        It may lack a space, or have one too many, where an element was.
        """
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def order(self) -> list[int]:
        """Return the indices of the elements in the order of the text."""
        return [part for part in self.parts if isinstance(part, int)]

    @property
    def n_enclosing(self) -> int:
        """Return how many pairs of tags enclose the whole segment."""
        n = 0
        for first, last in zip(self.parts, reversed(self.parts), strict=True):
            if isinstance(first, str) or isinstance(last, str):
                break
            if self.elements[first].role is not Role.OPENING or self.elements[first].partner != last:
                break
            n += 1
        return n

    def strip(self) -> Segment:
        """Return this segment without the white space around it."""
        parts = list(self.parts)
        for index, strip in ((0, str.lstrip), (-1, str.rstrip)):
            if parts and isinstance(part := parts[index], str):
                parts[index] = strip(part)
        return Segment.make(parts, self.elements)

    def pad(self, before: str, after: str) -> Segment:
        """Return this segment with other text around it."""
        return Segment.make([before, *self.parts, after], self.elements)

    def strip_enclosing(self) -> Segment:
        """Return this segment without the pairs of tags that enclose all of it."""
        n = self.n_enclosing
        return self.extract(self.parts[n : len(self.parts) - n]) if n else self

    def divide(self, pieces: Sequence[str]) -> list[Segment]:
        """Divide at the ends of pieces, but keep a pair of tags together, unless it encloses whole pieces.

        `pieces` are consecutive pieces of `text`; joined, they are all of it. An element at a boundary belongs to the
        later part, but a closing tag to the earlier one. The tags around whole pieces are parts of their own.
        """
        bounds = [*accumulate(map(len, pieces), initial=0)]
        starts, outer = {*bounds[:-1]}, self._find_outer_tags(bounds)
        parts: list[list[Part]] = [[]]
        depth = 0  # of open pairs
        last_start = 0  # offset of the start of the last part
        for offset, part in self._cut(bounds):
            role = None if isinstance(part, str) else self.elements[part].role
            if part in outer and depth == 0:
                parts.append([part])
                if role is Role.OPENING:
                    parts.append([])
                    last_start = offset
                continue
            if depth == 0 and role is not Role.CLOSING and offset in starts and offset != last_start:
                parts.append([])
                last_start = offset
            parts[-1].append(part)
            depth += (role is Role.OPENING) - (role is Role.CLOSING)
        return [self.extract(part) for part in parts if part]

    def join(self, translations: Sequence[tuple[str, Segment]]) -> Segment:
        """Return the translation of this segment from those of its parts, each with the white space before it.

        Undoes `strip_enclosing` and `divide`.
        """
        first = self.n_enclosing  # number of the first element of the part
        parts: list[Part] = [*range(first)]
        for space, each in translations:
            parts += [space, *(part if isinstance(part, str) else first + part for part in each.parts)]
            first += len(each.elements)
        return Segment.make([*parts, *range(first, len(self.elements))], self.elements)

    def extract(self, parts: Sequence[Part]) -> Segment:
        """Return some consecutive parts as a segment of their own, with elements numbered from 0.

        A tag whose partner is outside becomes a single element.
        """
        inside = [part for part in parts if isinstance(part, int)]
        new = {old: i for i, old in enumerate(inside)}

        def renumber(element: Element) -> Element:
            is_cut = element.partner is not None and element.partner not in new
            role = Role.SINGLE if is_cut else element.role
            partner, parent = (None if old is None else new.get(old) for old in (element.partner, element.parent))
            return replace(element, role=role, partner=partner, parent=parent)

        return Segment.make(
            [part if isinstance(part, str) else new[part] for part in parts],
            [renumber(self.elements[old]) for old in inside],
        )

    def _cut(self, bounds: Sequence[int]) -> Iterator[tuple[int, Part]]:
        """Yield the parts with their offsets in `text`. Text is cut at the sorted offsets `bounds`."""
        offset = 0
        for part in self.parts:
            if isinstance(part, int):
                yield offset, part
                continue
            start, offset = offset, offset + len(part)
            inside = bounds[bisect_right(bounds, start) : bisect_left(bounds, offset)]
            for first, last in pairwise([start, *inside, offset]):
                yield first, part[first - start : last - start]

    def _find_outer_tags(self, bounds: Sequence[int]) -> set[int]:
        """Return the tags of pairs that enclose whole pieces with these bounds.

        White space may be between a closing tag and the end of a piece.
        """
        text = self.text
        found, openings = set[int](), set[int]()
        for offset, part in self._cut(bounds):
            if isinstance(part, str):
                continue
            element = self.elements[part]
            next_bound = bounds[bisect_left(bounds, offset)]
            if element.role is Role.OPENING and offset == next_bound:
                openings.add(part)
            elif element.partner in openings and not text[offset:next_bound].strip():
                found |= {part, element.partner}
        return found
