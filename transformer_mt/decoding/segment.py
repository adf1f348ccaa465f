"""Segments: lines of text, parts of lines, and translations.

A segment is a sequence of text and elements. An element, such as a markup tag or a placeholder, is not translated. The
translation of a segment contains each of its elements once, and pairs of tags are nested as in the source.

A long segment is divided into parts, such as its sentences. A pair of tags stays in one part. A pair around the whole
segment would prevent any division, so it is removed first, and added when the translated parts are joined.
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
    """An element of a segment, which its translation keeps."""

    surface: str  # its characters, such as `<b>` or `{name}`
    role: Role = Role.SINGLE
    partner: int | None = None  # index of the other tag of the pair
    parent: int | None = None  # index of the opening tag of the closest enclosing pair


Item = str | int
"""Text, or the index of an element."""


@dataclass(frozen=True)
class Segment:
    """A sequence of text and elements. Use `make`: it merges adjacent texts, and drops empty ones."""

    items: tuple[Item, ...]
    elements: tuple[Element, ...] = ()

    @classmethod
    def make(cls, items: Sequence[Item], elements: Sequence[Element]) -> Segment:
        """Return a segment with these items. Neighbouring texts are joined, and empty ones are left out."""
        joined: list[Item] = []
        for item in items:
            if isinstance(item, str) and joined and isinstance(joined[-1], str):
                joined[-1] += item
            elif item != "":
                joined.append(item)
        return cls(tuple(joined), tuple(elements))

    @classmethod
    def from_text(cls, text: str) -> Segment:
        """Return plain text as a segment."""
        return cls((text,) if text else ())

    @property
    def surface(self) -> str:
        """The characters of the whole segment: text and elements."""
        return "".join(item if isinstance(item, str) else self.elements[item].surface for item in self.items)

    @property
    def text(self) -> str:
        """The text without the elements, for sentence splitting and fault detection.

        Spaces may be missing or doubled at the place of an element. `surface` includes the elements.
        """
        return "".join(item for item in self.items if isinstance(item, str))

    @property
    def order(self) -> list[int]:
        """The indices of the elements, in their order in the segment."""
        return [item for item in self.items if isinstance(item, int)]

    @property
    def n_enclosing(self) -> int:
        """The number of tag pairs around the whole segment."""
        n = 0
        for first, last in zip(self.items, reversed(self.items), strict=True):
            if isinstance(first, str) or isinstance(last, str):
                break
            if self.elements[first].role is not Role.OPENING or self.elements[first].partner != last:
                break
            n += 1
        return n

    def strip(self) -> Segment:
        """Return this segment without the white space around it."""
        items = list(self.items)
        for index, strip in ((0, str.lstrip), (-1, str.rstrip)):
            if items and isinstance(item := items[index], str):
                items[index] = strip(item)
        return Segment.make(items, self.elements)

    def pad(self, before: str, after: str) -> Segment:
        """Return this segment with other text around it."""
        return Segment.make([before, *self.items, after], self.elements)

    def strip_enclosing(self) -> Segment:
        """Return this segment without the tag pairs around all of it."""
        n = self.n_enclosing
        return self.extract(self.items[n : len(self.items) - n]) if n else self

    def divide(self, pieces: Sequence[str]) -> list[Segment]:
        """Divide at the ends of `pieces`, which are the pieces of `text`, such as its sentences.

        There is no division inside a pair of tags, so a part may contain several pieces. If a pair surrounds whole
        pieces, each of these pieces and each tag of the pair becomes a part. At a boundary, a closing tag belongs to
        the part before it, and any other element to the part after it.
        """
        bounds = [*accumulate(map(len, pieces), initial=0)]
        starts, outer = {*bounds[:-1]}, self._find_outer_tags(bounds)
        parts: list[list[Item]] = [[]]
        depth = 0  # of open pairs
        last_start = 0  # offset of the start of the last part
        for offset, item in self._cut(bounds):
            role = None if isinstance(item, str) else self.elements[item].role
            if item in outer and depth == 0:
                parts.append([item])
                if role is Role.OPENING:
                    parts.append([])
                    last_start = offset
                continue
            if depth == 0 and role is not Role.CLOSING and offset in starts and offset != last_start:
                parts.append([])
                last_start = offset
            parts[-1].append(item)
            depth += (role is Role.OPENING) - (role is Role.CLOSING)
        return [self.extract(part) for part in parts if part]

    def join(self, translations: Sequence[tuple[str, Segment]]) -> Segment:
        """Join the translations of the parts: the inverse of `strip_enclosing` and `divide`.

        `translations` has the white space before each part, and its translation.
        """
        first = self.n_enclosing  # number of the first element of the part
        items: list[Item] = [*range(first)]
        for space, each in translations:
            items += [space, *(item if isinstance(item, str) else first + item for item in each.items)]
            first += len(each.elements)
        return Segment.make([*items, *range(first, len(self.elements))], self.elements)

    def extract(self, items: Sequence[Item]) -> Segment:
        """Return consecutive items as a new segment, whose elements are numbered from 0.

        A tag whose partner is missing there gets the role `SINGLE`.
        """
        inside = [item for item in items if isinstance(item, int)]
        new = {old: i for i, old in enumerate(inside)}

        def renumber(element: Element) -> Element:
            is_cut = element.partner is not None and element.partner not in new
            role = Role.SINGLE if is_cut else element.role
            partner, parent = (None if old is None else new.get(old) for old in (element.partner, element.parent))
            return replace(element, role=role, partner=partner, parent=parent)

        return Segment.make(
            [item if isinstance(item, str) else new[item] for item in items],
            [renumber(self.elements[old]) for old in inside],
        )

    def _cut(self, bounds: Sequence[int]) -> Iterator[tuple[int, Item]]:
        """Yield the items with their offsets in `text`, after cutting texts at `bounds`, which are sorted offsets."""
        offset = 0
        for item in self.items:
            if isinstance(item, int):
                yield offset, item
                continue
            start, offset = offset, offset + len(item)
            inside = bounds[bisect_right(bounds, start) : bisect_left(bounds, offset)]
            for first, last in pairwise([start, *inside, offset]):
                yield first, item[first - start : last - start]

    def _find_outer_tags(self, bounds: Sequence[int]) -> set[int]:
        """Return the tags of pairs around whole pieces. `bounds` are the offsets at which pieces start and end.

        White space is allowed between a closing tag and the end of a piece.
        """
        text = self.text
        found, openings = set[int](), set[int]()
        for offset, item in self._cut(bounds):
            if isinstance(item, str):
                continue
            element = self.elements[item]
            next_bound = bounds[bisect_left(bounds, offset)]
            if element.role is Role.OPENING and offset == next_bound:
                openings.add(item)
            elif element.partner in openings and not text[offset:next_bound].strip():
                found |= {item, element.partner}
        return found
