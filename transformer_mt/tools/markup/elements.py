"""Marking of elements in a text: found spans become a segment, and its tags are paired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from transformer_mt.decoding.segments import Element, Item, Role, Segment


@dataclass(frozen=True)
class Span:
    """A protected element that was found in a text, before tags are paired."""

    start: int
    end: int
    role: Role = Role.SINGLE
    name: str = ""  # of a tag: an opening and a closing tag of one name form a pair
    element: Element | None = None  # that it becomes; None: a new one


def mark(text: str, spans: Sequence[Span]) -> Segment:
    """Return a text with elements at the given spans, which are in order and do not overlap.

    A tag without a partner is a single element, and so is a tag that crosses another pair.
    """
    partners = dict(pair_tags((span.role, span.name) for span in spans))
    elements: list[Element] = []
    items: list[Item] = []
    open_tags: list[int] = []
    end = 0
    for i, span in enumerate(spans):
        items += [text[end : span.start], i]
        end = span.end
        element, partner = span.element or Element(text[span.start : span.end]), partners.get(i)
        if partner is not None and partner < i:
            open_tags.pop()
        parent = open_tags[-1] if open_tags else None
        role = Role.SINGLE if partner is None else span.role
        elements.append(replace(element, role=role, partner=partner, parent=parent))
        if role is Role.OPENING:
            open_tags.append(i)
    return Segment.make([*items, text[end:]], elements)


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
