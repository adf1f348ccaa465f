"""Inline annotation of a source with translations of its terms (Dinu et al. 2019). The model learns to use them.

`a dog sleeps` with the term `dog = Hund` becomes `a <term>dog<translation> Hund</term> sleeps`. The three symbols are
elements of the annotated source, but they are not protected: a translation does not contain them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transformer_mt.tools.markup.elements import (
    Element,
    MarkedText,
    Part,
    Role,
)
from transformer_mt.tools.markup.symbols import (
    SYMBOL_NAMES,
    TERM_END,
    TERM_START,
    TERM_SYMBOL_NAMES,
    TERM_TRANSLATION,
)

_ROLES = {TERM_START: Role.OPENING, TERM_TRANSLATION: Role.OPENING, TERM_END: Role.CLOSING}  # for their spaces


class TermAnnotation(NamedTuple):
    """A span of a source and the translation that a glossary has for it."""

    start: int  # first character of the source without its elements, see `MarkedText.text_only`
    end: int
    translation: str


def annotate_terms(
    text: MarkedText, symbol_numbers: Sequence[int], terms: Sequence[TermAnnotation]
) -> tuple[MarkedText, list[int]]:
    """Annotate a source with terms. A term that contains an element of the source is left out.

    Args:
        text: The source.
        symbol_numbers: The number of the symbol of each element of the source, see `assign_symbol_numbers`.
        terms: The terms in their order in the source. They do not overlap.

    Returns:
        The annotated source, whose first elements are those of the source; the number of the symbol of each of its
        elements.
    """
    parts: list[Part] = []
    elements, numbers = [*text.elements], [*symbol_numbers]
    start = 0  # of the part in the text without elements
    for part in text.parts:
        if isinstance(part, int):
            parts.append(part)
            continue
        end = start + len(part)
        done = start  # end of the last term in the part
        for term in terms:
            if start <= term.start < term.end <= end:
                first = len(elements)
                elements += [Element(name, _ROLES[name]) for name in TERM_SYMBOL_NAMES]
                numbers += map(SYMBOL_NAMES.index, TERM_SYMBOL_NAMES)
                parts += [part[done - start : term.start - start], first, part[term.start - start : term.end - start]]
                parts += [first + 1, f" {term.translation.strip()}", first + 2]
                done = term.end
        parts.append(part[done - start :])
        start = end
    return MarkedText.make(parts, elements), numbers
