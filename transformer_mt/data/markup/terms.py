"""Inline annotation of a source with translations of its terms (Dinu et al. 2019), which the model learns to use.

`a dog sleeps` with the term `dog = Hund` becomes `a <term>dog<translation> Hund</term> sleeps`. The symbols are
elements of the annotated text that are not protected: they are not part of a translation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transformer_mt.data.markup.elements import Element, MarkedText, Part, Role
from transformer_mt.data.markup.symbols import SYMBOLS, TERM_END, TERM_START, TERM_SYMBOLS, TERM_TRANSLATION

_ROLES = {TERM_START: Role.OPENING, TERM_TRANSLATION: Role.OPENING, TERM_END: Role.CLOSING}  # how spaces are encoded


class Term(NamedTuple):
    """A span of a source and the translation that a glossary has for it."""

    start: int  # first character of the source without its elements, see `MarkedText.plain`
    end: int
    translation: str


def annotate_terms(
    text: MarkedText, symbols: Sequence[int], terms: Sequence[Term]
) -> tuple[MarkedText, list[int], list[Term]]:
    """Annotate a source with terms, which are in order and do not overlap.

    A term that contains an element of the source is left out.

    Args:
        text: The source.
        symbols: The number of the symbol of each element of the source, see `assign_symbols`.
        terms: The terms.

    Returns:
        Both arguments of `encode_marked`: the annotated source, whose first elements are those of the source, and the
        number of each element's symbol. And the terms that were not left out.
    """
    parts: list[Part] = []
    elements, numbers, annotated = [*text.elements], [*symbols], list[Term]()
    start = 0  # of a part in the text without its elements
    for part in text.parts:
        if isinstance(part, int):
            parts.append(part)
            continue
        end = start + len(part)
        done = start
        for term in terms:
            if start <= term.start < term.end <= end:
                first = len(elements)
                elements += [Element(name, _ROLES[name]) for name in TERM_SYMBOLS]
                numbers += map(SYMBOLS.index, TERM_SYMBOLS)
                parts += [part[done - start : term.start - start], first, part[term.start - start : term.end - start]]
                parts += [first + 1, f" {term.translation.strip()}", first + 2]
                annotated.append(term)
                done = term.end
        parts.append(part[done - start :])
        start = end
    return MarkedText.make(parts, elements), numbers, annotated
