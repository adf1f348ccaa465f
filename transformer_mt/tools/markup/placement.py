"""Placement of elements in a translation by word alignment.

The model translates the text without its elements. A pair of tags then encloses the target words that are aligned with
the source words inside it. A single element goes before the target word that is aligned with the next source word.
Elements are placed from the outermost pair inwards, so each stays inside its parent. A pair whose words have no
counterpart encloses the word at the same relative position.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import regex

from transformer_mt.tools.languages.scripts import UNSPACED
from transformer_mt.tools.markup.elements import MarkedText, Part, Role

_WORD = re.compile(r"\S+")
_WORD_START = re.compile(rf"[^\W{UNSPACED}]")
_LEADING, _TRAILING = re.compile(r"\A[^\w\s]+"), re.compile(r"[^\w\s]+\Z")


def remove_elements(text: MarkedText) -> str:
    """Return readable text without elements, as input of the model and for word alignment.

    A single element between words becomes a space; spaces before punctuation are dropped. So offsets may differ from
    those in `MarkedText.text_only`.
    """
    joined = ""
    for part in text.parts:
        if isinstance(part, str):
            joined += part
        elif text.elements[part].role is Role.SINGLE and joined and not joined[-1].isspace():
            joined += " "
    return re.sub(r"\s+(?=[\s.,;:!?)\]]|\Z)", "", joined).lstrip()


def place_elements(source: MarkedText, translation: str, alignment: Sequence[tuple[int, int]]) -> MarkedText:
    """Return the translation with the elements of its source.

    `alignment` links words of `remove_elements(source)` with words of the translation, both counted from 0.
    """
    placer = _Placer(source, translation, alignment)
    elements_at: dict[int, list[int]] = {}  # elements to insert at each offset of the translation
    for element, offset in placer.place_inside(None, 0, len(translation)):
        elements_at.setdefault(offset, []).append(element)
    parts: list[Part] = []
    start = 0
    for offset in sorted(elements_at):
        parts += [translation[start:offset], *elements_at[offset]]
        start = offset
        has_single = any(source.elements[element].role is Role.SINGLE for element in elements_at[offset])
        if has_single and _WORD_START.match(translation, offset) and translation[:offset][-1:] in ("", " "):
            parts.append(" ")  # the space before the word is now before the element
    return arrange_spaces(MarkedText.make([*parts, translation[start:]], source.elements).parts, source)


@dataclass(frozen=True)
class _Placer:
    source: MarkedText
    translation: str
    alignment: Sequence[tuple[int, int]]

    @cached_property
    def target_words(self) -> list[tuple[int, int]]:
        """Start and end of each word of the translation, without outer punctuation unless it has nothing else."""
        spans: list[tuple[int, int]] = []
        for match in _WORD.finditer(self.translation):
            start, end = match.span()
            leading, trailing = _LEADING.search(match[0]), _TRAILING.search(match[0])
            if leading and leading.end() < len(match[0]):
                start += leading.end()
            if trailing and trailing.start() > 0:
                end -= len(trailing[0])
            spans.append((start, end))
        return spans

    @cached_property
    def source_word_starts(self) -> list[int]:
        """Start of each word of the source without its elements."""
        return [match.start() for match in _WORD.finditer(remove_elements(self.source))]

    @cached_property
    def n_words_before(self) -> dict[int, int]:
        """For each element, the number of source words that start before it.

        The count treats an opening tag inside a word as before the word.
        """
        counts: dict[int, int] = {}
        text, starts = remove_elements(self.source), self.source_word_starts
        for index, part in enumerate(self.source.parts):
            if isinstance(part, int):
                before = remove_elements(MarkedText(self.source.parts[:index], self.source.elements))
                is_inside_word = bool(before) and not text[len(before) :][:1].isspace() and len(before) not in starts
                is_opening = self.source.elements[part].role is Role.OPENING
                counts[part] = bisect_left(starts, len(before)) - (is_opening and is_inside_word)
        return counts

    @cached_property
    def aligned_words(self) -> dict[int, list[int]]:
        """Target words that are aligned with each source word."""
        targets: dict[int, list[int]] = {}
        for src, tgt in self.alignment:
            if tgt < len(self.target_words):
                targets.setdefault(src, []).append(tgt)
        return targets

    def place_inside(self, parent: int | None, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield all elements inside a pair with their offsets, in the order of the translation.

        `parent` is the opening tag of the pair; None: the whole text. `start` and `end` are the offsets of its tags.
        """
        elements = self.source.elements
        is_child = [each.parent == parent and each.role is not Role.CLOSING for each in elements]
        children = [index for index in self.source.order if is_child[index]]
        spans = {index: self._span(index, start, end) for index in children}
        offset = start
        for index in sorted(children, key=lambda index: spans[index]):
            first = max(offset, spans[index][0])
            last = max(first, spans[index][1])
            yield index, first
            partner = elements[index].partner
            if partner is not None:
                yield from self.place_inside(index, first, last)
                yield partner, last
            offset = last

    def _span(self, index: int, start: int, end: int) -> tuple[int, int]:
        """Return the first and last offset of a single element or a pair, clipped to those of its parent."""
        element = self.source.elements[index]
        first = self.n_words_before[index]
        last = first if element.partner is None else self.n_words_before[element.partner]
        aligned = sorted(tgt for src in range(first, last) for tgt in self.aligned_words.get(src, ()))
        if not aligned and last > first and self.target_words:
            relative = (first + last) / 2 / len(self.source_word_starts)
            aligned = [min(int(relative * len(self.target_words)), len(self.target_words) - 1)]
        if aligned:
            low, high = self.target_words[aligned[0]][0], self.target_words[aligned[-1]][1]
        else:
            low = high = self._offset(first)
        return min(max(low, start), end), min(max(high, start), end)

    def _offset(self, word: int) -> int:
        """Return the offset of an element before a source word.

        If target words are aligned with this word, it is the start of the first of them. Otherwise it is the end of the
        last target word aligned with the nearest earlier source word that has one. If there is none, it is the start of
        the translation for the first source word, and the end for others.
        """
        if following := self.aligned_words.get(word):
            return self.target_words[min(following)][0]
        before = max((aligned for aligned in self.aligned_words if aligned < word), default=None)
        if before is not None:
            return self.target_words[max(self.aligned_words[before])][1]
        return 0 if word == 0 else len(self.translation)


_NO_SPACE_AFTER = regex.compile(rf"[\s\p{{Ps}}\p{{Pi}}\p{{Pd}}„‚'’/{UNSPACED}]\Z")
_UNSPACED_LETTER = re.compile(rf"[{UNSPACED}]")


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
    following = [*source.parts, " "][source.parts.index(before[-1]) + 1]
    is_continued = isinstance(following, str) and _WORD_START.match(following)
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
    if is_attached and source_text[-1] == text[-1] and not _UNSPACED_LETTER.match(text[-1]):
        return False  # the same character precedes the element in the source, without a space
    return not _NO_SPACE_AFTER.search(text)
