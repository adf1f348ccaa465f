"""Text with protected elements: markup tags, placeholders, links and others that a translation must keep unchanged.

A `MarkedText` is a sequence of text and elements. Its translation contains each element exactly once, and each element
keeps its parent: the pair of markup tags that encloses it most closely. So pairs of tags are nested as in the source.

A text with elements may be divided into parts, such as its sentences. Elements are numbered in the order of the text,
so those of a part have consecutive numbers. No part ends inside a pair of tags. Pairs that enclose the whole text
would prevent any division, so they are stripped before and restored after.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import accumulate

from transformer_mt.decoding.text_stages import PlainText, Segment

_ALTERNATIVE = re.compile(r"\W+(?:else|elif|elsif|elseif|otherwise|plural)\b", re.IGNORECASE)


class Role(Enum):
    """Role of an element in the nesting of tags."""

    SINGLE = auto()  # a placeholder, a link, an empty tag, or a tag without a partner
    OPENING = auto()
    CLOSING = auto()


@dataclass(frozen=True)
class Element:
    """A protected part of a text."""

    surface: str  # its characters, such as `<b>` or `{name}`
    role: Role = Role.SINGLE
    partner: int | None = None  # index of the other tag of the pair
    parent: int | None = None  # index of the opening tag of the closest enclosing pair


Part = str | int
"""Text, or the index of an element."""


@dataclass(frozen=True)
class MarkedText(Segment):
    """A sequence of texts and elements. No text is empty, and no text follows another one directly."""

    parts: tuple[Part, ...]
    elements: tuple[Element, ...] = ()

    @classmethod
    def make(cls, parts: Sequence[Part], elements: Sequence[Element]) -> MarkedText:
        """Return a text with these parts. Neighbouring texts are joined, and empty ones are left out."""
        joined: list[Part] = []
        for part in parts:
            if isinstance(part, str) and joined and isinstance(joined[-1], str):
                joined[-1] += part
            elif part != "":
                joined.append(part)
        return cls(tuple(joined), tuple(elements))

    @classmethod
    def from_text(cls, text: str) -> MarkedText:
        """Return a text without elements."""
        return cls.make([text], ())

    @property
    def surface(self) -> str:
        """Return the text with the surfaces of its elements."""
        return "".join(part if isinstance(part, str) else self.elements[part].surface for part in self.parts)

    @property
    def text(self) -> str:
        """Return the parts that are text, joined. Offsets of terms and pieces refer to it.

        It may lack a space, or have one too many, where an element was: `remove_elements` returns a normal sentence.
        """
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def order(self) -> list[int]:
        """Return the indices of the elements in the order of the text."""
        return [part for part in self.parts if isinstance(part, int)]

    def strip(self) -> MarkedText:
        """Return this text without the white space around it."""
        parts = list(self.parts)
        for index, strip in ((0, str.lstrip), (-1, str.rstrip)):
            if parts and isinstance(part := parts[index], str):
                parts[index] = strip(part)
        return MarkedText.make(parts, self.elements)

    def pad(self, before: str, after: str) -> MarkedText:
        """Return this text with other text around it."""
        return MarkedText.make([before, *self.parts, after], self.elements)

    def divide(self, pieces: Sequence[str]) -> list[MarkedText]:
        """Divide at the ends of pieces of `text`, except inside a pair of tags."""
        return split_at_pieces(self, pieces)

    def join(self, translations: Sequence[tuple[str, Segment]]) -> Segment:
        """Return the translation of this text from those of its parts, each with the white space before it."""
        parts = [to_marked_text(part).pad(space, "") for space, part in translations]
        return join_parts(self, parts) if self.elements else PlainText("".join(part.surface for part in parts))

    def strip_enclosing(self) -> MarkedText:
        """Return this text without the pairs of tags that enclose all of it."""
        n = count_enclosing_pairs(self)
        return self.extract(self.parts[n : len(self.parts) - n]) if n else self

    def sections(self) -> list[str]:
        """Return the text between controls such as `{% else %}`, which always end a sentence."""
        texts = [""]
        for part in self.parts:
            if isinstance(part, str):
                texts[-1] += part
            elif _ALTERNATIVE.match(self.elements[part].surface):
                texts.append("")
        return [text for text in texts if text]

    def extract(self, parts: Sequence[Part]) -> MarkedText:
        """Return some consecutive parts as a text of their own, with elements numbered from 0.

        A tag whose partner is outside becomes a single element.
        """
        inside = [part for part in parts if isinstance(part, int)]
        new = {old: i for i, old in enumerate(inside)}

        def renumber(element: Element) -> Element:
            is_cut = element.partner is not None and element.partner not in new
            role = Role.SINGLE if is_cut else element.role
            partner, parent = (None if old is None else new.get(old) for old in (element.partner, element.parent))
            return replace(element, role=role, partner=partner, parent=parent)

        return MarkedText.make(
            [part if isinstance(part, str) else new[part] for part in parts],
            [renumber(self.elements[old]) for old in inside],
        )

    def has_elements_of(self, source: MarkedText) -> bool:
        """Return whether each element of a source occurs exactly once, inside the same pair as there."""
        open_tags: list[int | None] = [None]
        for index in self.order:
            element = source.elements[index]
            if element.role is Role.CLOSING and open_tags.pop() != element.partner:
                return False
            if element.parent != open_tags[-1]:
                return False
            if element.role is Role.OPENING:
                open_tags.append(index)
        return sorted(self.order) == [*range(len(source.elements))]


def to_marked_text(segment: Segment) -> MarkedText:
    """Return a segment as text with elements, of which plain text has none."""
    return segment if isinstance(segment, MarkedText) else MarkedText.from_text(segment.surface)


@dataclass(frozen=True)
class Span:
    """A protected element that was found in a text, before tags are paired."""

    start: int
    end: int
    role: Role = Role.SINGLE
    name: str = ""  # of a tag: an opening and a closing tag of one name form a pair
    element: Element | None = None  # that it becomes; None: a new one


def mark(text: str, spans: Sequence[Span]) -> MarkedText:
    """Return a text with elements at the given spans, which are in order and do not overlap.

    A tag without a partner is a single element, and so is a tag that crosses another pair.
    """
    partners = dict(pair_tags((span.role, span.name) for span in spans))
    elements: list[Element] = []
    parts: list[Part] = []
    open_tags: list[int] = []
    end = 0
    for i, span in enumerate(spans):
        parts += [text[end : span.start], i]
        end = span.end
        element, partner = span.element or Element(text[span.start : span.end]), partners.get(i)
        if partner is not None and partner < i:
            open_tags.pop()
        parent = open_tags[-1] if open_tags else None
        role = Role.SINGLE if partner is None else span.role
        elements.append(replace(element, role=role, partner=partner, parent=parent))
        if role is Role.OPENING:
            open_tags.append(i)
    return MarkedText.make([*parts, text[end:]], elements)


def pair_tags(tags: Iterable[tuple[Role, str]]) -> Iterator[tuple[int, int]]:
    """Yield (opening, closing) and (closing, opening) for each pair of tags, which are given by role and name.

    A closing tag belongs to the innermost open tag of its name.
    """
    open_tags: list[tuple[int, str]] = []
    depths: dict[str, list[int]] = {}  # of the open tags of each name
    for i, (role, name) in enumerate(tags):
        of_name = depths.setdefault(name, [])
        if role is Role.OPENING:
            of_name.append(len(open_tags))
            open_tags.append((i, name))
        elif role is Role.CLOSING and of_name:
            depth = of_name[-1]
            opening = open_tags[depth][0]
            yield from ((opening, i), (i, opening))
            for _, inner in open_tags[depth:]:  # tags inside that were not closed have no partner
                depths[inner].pop()
            del open_tags[depth:]


def find_wordless_pairs(partners: Mapping[int, int], n_words_before: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the outermost pairs of tags without words inside. `n_words_before` counts them before each tag."""
    i = 0
    while i < len(n_words_before):
        end = partners.get(i, i)
        if end > i and n_words_before[end] == n_words_before[i]:
            yield i, end
            i = end
        i += 1


# --- parts -----------------------------------------------------------------------------------------------------------


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


def split_at_pieces(text: MarkedText, pieces: Sequence[str]) -> list[MarkedText]:
    """Split a text at the ends of pieces, but keep a pair of tags together, unless it encloses whole pieces.

    `pieces` are consecutive pieces of `text.text`; joined, they are all of it. An element at a boundary belongs to the
    later part, but a closing tag to the earlier one. The tags around whole pieces are parts of their own.
    """
    ends = [*accumulate(map(len, pieces))][:-1]
    parts: list[list[Part]] = [[]]
    depth = offset = 0
    n_passed = 0  # ends before the offset
    outside = _find_pairs_around(text, [0, *ends, len(text.text)])
    for part in text.parts:
        if isinstance(part, int):
            role = text.elements[part].role
            if part in outside and depth == 0:
                parts.append([part])
                if role is Role.OPENING:
                    parts.append([])
                    n_passed = bisect_right(ends, offset)
                continue
            if role is not Role.CLOSING and ends[n_passed : n_passed + 1] == [offset] and depth == 0:
                parts.append([])
                n_passed = bisect_right(ends, offset)
            depth += {Role.OPENING: 1, Role.CLOSING: -1, Role.SINGLE: 0}[role]
            parts[-1].append(part)
            continue
        start = 0
        n_before, n_passed = n_passed, bisect_left(ends, offset + len(part))
        for end in ends[n_before:n_passed]:
            if depth == 0 and (end > offset or parts[-1]):
                parts[-1].append(part[start : end - offset])
                parts.append([])
                start = end - offset
        offset += len(part)
        parts[-1].append(part[start:])
    return [text.extract(part) for part in parts if part]


def _find_pairs_around(text: MarkedText, ends: Sequence[int]) -> set[int]:
    """Return the tags of pairs that enclose whole pieces of a text. A closing tag may have white space after it."""
    whole = text.text
    starts, offset = set[int](), 0
    found = set[int]()
    for part in text.parts:
        if isinstance(part, str):
            offset += len(part)
            continue
        element = text.elements[part]
        if element.role is Role.OPENING and ends[bisect_left(ends, offset)] == offset:
            starts.add(part)
        elif element.partner in starts and not whole[offset : ends[bisect_left(ends, offset)]].strip():
            found |= {part, element.partner}
    return found


def join_parts(source: MarkedText, translations: Sequence[MarkedText]) -> MarkedText:
    """Join the translations of the parts of a source. Undoes `split_at_pieces` and `strip_enclosing`."""
    n_enclosing = count_enclosing_pairs(source)
    parts: list[Part] = [*range(n_enclosing)]
    first = n_enclosing  # number of the first element of the part
    for each in translations:
        parts += [part if isinstance(part, str) else first + part for part in each.parts]
        first += len(each.elements)
    return MarkedText.make([*parts, *range(first, len(source.elements))], source.elements)
