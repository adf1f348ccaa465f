"""Spaces around the elements of a translation.

A text starts with its own space. Three rules remain: a space goes outside a pair of tags; a single element after text
gets a space; text after a single element gets one if it would continue a word. The last two do not apply where the
source has no space, and in scripts without spaces.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

from transformer_mt.data.markup.elements import MarkedText, Part, Role
from transformer_mt.data.quality.scripts import UNSPACED

_NO_SPACE_AFTER = regex.compile(rf"[\s\p{{Ps}}\p{{Pi}}\p{{Pd}}„‚'’/{UNSPACED}]\Z")
_WORD_START = regex.compile(rf"[^\W{UNSPACED}]")
_LETTER_WITHOUT_SPACES = regex.compile(rf"[{UNSPACED}]")


def arrange_spaces(parts: Sequence[Part], source: MarkedText) -> MarkedText:
    """Return a translation with normal spaces around its elements.

    `parts` are texts, each with the space before it if there is one, and indices of elements of the source.
    """
    elements = source.elements
    output: list[Part] = []
    n_openings = 0  # opening tags at the end of the output: a space goes before them
    has_space = False  # text before the last tags ended with a space
    for part in parts:
        if isinstance(part, int) and elements[part].role is not Role.SINGLE:
            n_openings = n_openings + 1 if elements[part].role is Role.OPENING else 0
            output.append(part)
            continue
        position = len(output) - n_openings
        if isinstance(part, str):
            needs_space = has_space or part[0].isspace() or _starts_word_after(part, output, source)
            has_space = part[-1].isspace()
            part = part.strip()
            if not part:
                has_space = True
                continue
        else:
            needs_space = has_space or _needs_space(part, output[:position], source)
            has_space = False
        if needs_space and position:
            output.insert(position, " ")
        output.append(part)
        n_openings = 0
    return MarkedText.make(output, elements)


def _starts_word_after(text: str, before: Sequence[Part], source: MarkedText) -> bool:
    """Return whether text would continue the word of the single element before it, unlike in the source."""
    if not before or isinstance(before[-1], str) or source.elements[before[-1]].role is not Role.SINGLE:
        return False
    following = source.parts[source.parts.index(before[-1]) + 1 :][:1]
    is_continued = bool(following) and isinstance(following[0], str) and bool(_WORD_START.match(following[0]))
    return bool(_WORD_START.match(text)) and not is_continued


def _needs_space(single: int, before: Sequence[Part], source: MarkedText) -> bool:
    """Return whether a space belongs between the output so far and a single element."""
    if not before:
        return False
    position = source.parts.index(single)
    previous_part = source.parts[position - 1] if position else " "
    if isinstance(previous_part, int) and previous_part == before[-1]:
        return False  # two elements that follow each other without a space
    text = MarkedText(tuple(before), source.elements).surface
    source_text = MarkedText(source.parts[:position], source.elements).surface
    is_attached = bool(source_text) and not source_text[-1].isspace()
    if is_attached and source_text[-1] == text[-1] and not _LETTER_WITHOUT_SPACES.match(text[-1]):
        return False  # the same character precedes the element in the source, without a space
    return not _NO_SPACE_AFTER.search(text)
