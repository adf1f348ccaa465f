"""Text with protected elements: markup tags, placeholders, links and others that a translation must keep unchanged.

A `MarkedText` is a sequence of text and elements. Its translation contains each element exactly once, and each element
keeps its parent: the pair of markup tags that encloses it most closely. So pairs of tags are nested as in the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, get_args

ElementKind = Literal["tags", "placeholders", "urls", "emails", "files", "numbers"]
ELEMENT_KINDS: tuple[ElementKind, ...] = get_args(ElementKind)


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
class MarkedText:
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
    def text_only(self) -> str:
        """Return the parts that are text, joined. Offsets of terms and chunks refer to it.

        It may lack a space, or have one too many, where an element was: `remove_elements` returns a normal sentence.
        """
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def order(self) -> list[int]:
        """Return the indices of the elements in the order of the text."""
        return [part for part in self.parts if isinstance(part, int)]

    def prepend(self, space: str) -> MarkedText:
        """Return this text with white space before it."""
        return MarkedText.make([space, *self.parts], self.elements)

    def strip(self) -> MarkedText:
        """Return this text without the white space around it."""
        parts = list(self.parts)
        for index, strip in ((0, str.lstrip), (-1, str.rstrip)):
            if parts and isinstance(part := parts[index], str):
                parts[index] = strip(part)
        return MarkedText.make(parts, self.elements)

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
            return Element(element.surface, role, partner, parent)

        return MarkedText.make(
            [part if isinstance(part, str) else new[part] for part in parts],
            [renumber(self.elements[old]) for old in inside],
        )

    def find_violation(self, source: MarkedText) -> str | None:
        """Return what is wrong with the elements of this translation of a source, or None."""
        if sorted(self.order) != [*range(len(source.elements))]:
            return "an element is missing, or occurs twice"
        return None if allows_order(source.elements, self.order) else "markup tags are not nested as in the source"


def match_elements(text: MarkedText, source: MarkedText) -> MarkedText:
    """Replace each element of `text` by an unused element of `source` with the same surface.

    Elements without a counterpart become text.
    """
    unused = [*range(len(source.elements))]
    parts: list[Part] = []
    for part in text.parts:
        if isinstance(part, int):
            surface = text.elements[part].surface
            same = next((index for index in unused if source.elements[index].surface == surface), None)
            if same is None:
                parts.append(surface)
                continue
            unused.remove(same)
            part = same
        parts.append(part)
    return MarkedText.make(parts, source.elements)


def allows_order(elements: Sequence[Element], order: Sequence[int]) -> bool:
    """Return whether a valid translation can begin with elements in this order: each is inside its parent."""
    open_tags: list[int] = []
    seen: set[int] = set()
    for index in order:
        element = elements[index]
        if element.role is Role.CLOSING:
            inside = {i for i, each in enumerate(elements) if each.parent == element.partner and i != index}
            if not open_tags or open_tags.pop() != element.partner or not inside <= seen:
                return False
        if element.parent != (open_tags[-1] if open_tags else None):
            return False
        if element.role is Role.OPENING:
            open_tags.append(index)
        seen.add(index)
    return True


@dataclass(frozen=True)
class Span:
    """A protected element that was found in a text, before tags are paired."""

    start: int
    end: int
    role: Role = Role.SINGLE
    name: str = ""  # of a tag: an opening and a closing tag of one name form a pair


def mark(text: str, spans: Sequence[Span]) -> MarkedText:
    """Return a text with elements at the given spans, which are in order and do not overlap.

    A tag without a partner is a single element, and so is a tag that crosses another pair.
    """
    partners = dict(_pair_tags(spans))
    elements: list[Element] = []
    parts: list[Part] = []
    open_tags: list[int] = []
    end = 0
    for i, span in enumerate(spans):
        parts += [text[end : span.start], i]
        end = span.end
        surface, partner = text[span.start : span.end], partners.get(i)
        if partner is not None and partner < i:
            open_tags.pop()
        parent = open_tags[-1] if open_tags else None
        role = Role.SINGLE if partner is None else span.role
        elements.append(Element(surface, role, partner, parent))
        if role is Role.OPENING:
            open_tags.append(i)
    return MarkedText.make([*parts, text[end:]], elements)


def _pair_tags(spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Yield (opening, closing) and (closing, opening) for each pair of tags.

    A closing tag belongs to the innermost open tag of its name.
    """
    open_tags: list[int] = []
    depths: dict[str, list[int]] = {}  # of the open tags of each name
    for i, span in enumerate(spans):
        of_name = depths.setdefault(span.name, [])
        if span.role is Role.OPENING:
            of_name.append(len(open_tags))
            open_tags.append(i)
        elif span.role is Role.CLOSING and of_name:
            depth = of_name[-1]
            yield from ((open_tags[depth], i), (i, open_tags[depth]))
            for inner in open_tags[depth:]:  # tags inside that were not closed have no partner
                depths[spans[inner].name].pop()
            del open_tags[depth:]
