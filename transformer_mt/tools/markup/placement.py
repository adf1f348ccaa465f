"""Placement of elements in a translation by word alignment.

The model translates the text without its elements. A pair of tags then encloses the target words that are aligned with
the source words inside it. A single element goes before the target word that is aligned with the next source word.
Elements are placed from the outermost pair inwards, so each stays inside its parent. A pair whose words have no
counterpart encloses the word at the same relative position.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import regex

from transformer_mt.decoding.segments import Element, Item, Role, Segment
from transformer_mt.tools.languages.scripts import UNSPACED
from transformer_mt.tools.markup.protection import find_placeholders

_WORD = re.compile(r"\S+")
_WORD_START = re.compile(rf"[^\W{UNSPACED}]")
_LEADING, _TRAILING = re.compile(r"\A[^\w\s]+"), re.compile(r"[^\w\s]+\Z")


_STOPS = re.compile(r"[.,;:!?…。，！？]+")
_LOOSE_SPACE = re.compile(r"\A\s+|\s+(?=[\s.,;:!?)\]]|\Z)")


def remove_elements(text: Segment) -> str:
    """Return readable text without elements, as input of the model and for word alignment.

    A single element between words becomes a space; spaces before punctuation are dropped. So offsets may differ from
    those in `Segment.plain_text`.
    """
    return _remove_elements(text)[0]


def _remove_elements(text: Segment) -> tuple[str, dict[int, int]]:
    """Return `remove_elements(text)`, and the end of its text before each element, without white space."""
    pieces: list[str] = []
    visible_ends: dict[int, int] = {}
    length = visible_end = 0
    for item in text.items:
        if isinstance(item, int):
            visible_ends[item] = visible_end
            if text.elements[item].role is not Role.SINGLE or not pieces or pieces[-1][-1].isspace():
                continue
            item = " "
        pieces.append(item)
        visible_end = length + len(item.rstrip()) if item.strip() else visible_end
        length += len(item)
    joined = "".join(pieces)
    spaces = [match.span() for match in _LOOSE_SPACE.finditer(joined)]
    n_dropped = [0, *accumulate(end - start for start, end in spaces)]
    ends = [end for _, end in spaces]
    return _LOOSE_SPACE.sub("", joined), {
        element: end - n_dropped[bisect_right(ends, end)] for element, end in visible_ends.items()
    }


def place_elements(source: Segment, translation: str, alignment: Sequence[tuple[int, int]]) -> Segment:
    """Return the translation with the elements of its source.

    `alignment` links words of `remove_elements(source)` with words of the translation, both counted from 0.
    """
    placer = _Placer(source, translation, alignment)
    elements_at: dict[int, list[int]] = {}  # elements to insert at each offset of the translation
    for element, offset in placer.place():
        elements_at.setdefault(offset, []).append(element)
    items: list[Item] = []
    start = 0
    for offset in sorted(elements_at):
        items += [translation[start:offset], *elements_at[offset]]
        start = offset
        has_single = any(source.elements[element].role is Role.SINGLE for element in elements_at[offset])
        if has_single and _WORD_START.match(translation, offset):
            last = source.items.index(elements_at[offset][-1]) if offset == 0 else -1
            follows = "".join(item for item in source.items[last + 1 : last + 2] if isinstance(item, str))
            if translation[offset - 1 : offset] == " " or (offset == 0 and not _WORD_START.match(follows)):
                items.append(" ")  # the space before the word is now before the element
    return arrange_spaces(Segment.make([*items, translation[start:]], source.elements).items, source)


@dataclass(frozen=True)
class _Placer:
    source: Segment
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
    def source_text(self) -> tuple[str, dict[int, int]]:
        """The source without its elements, and the end of the text before each."""
        return _remove_elements(self.source)

    @cached_property
    def source_word_starts(self) -> list[int]:
        """Start of each word of the source without its elements."""
        return [match.start() for match in _WORD.finditer(self.source_text[0])]

    @cached_property
    def n_words_before(self) -> dict[int, int]:
        """For each element, the number of source words that start before it.

        The count treats an opening tag inside a word as before the word.
        """
        counts: dict[int, int] = {}
        (text, ends), starts = self.source_text, self.source_word_starts
        for element, end in ends.items():
            n_before = bisect_left(starts, end)
            is_word_start = starts[n_before : n_before + 1] == [end]
            is_inside_word = end > 0 and not text[end : end + 1].isspace() and not is_word_start
            is_opening = self.source.elements[element].role is Role.OPENING
            counts[element] = n_before - (is_opening and is_inside_word)
        return counts

    @cached_property
    def aligned_words(self) -> dict[int, tuple[int, int]]:
        """First and last target word that is aligned with each source word, by source word in order."""
        targets: dict[int, tuple[int, int]] = {}
        for src, tgt in sorted(self.alignment):
            if tgt < len(self.target_words):
                targets[src] = (targets.get(src, (tgt, tgt))[0], tgt)
        return targets

    @cached_property
    def aligned_sources(self) -> list[int]:
        """Source words that have an aligned target word, in order."""
        return [*self.aligned_words]

    @cached_property
    def pair_words(self) -> dict[int, tuple[int, int]]:
        """First and last target word aligned with the words inside a pair of tags, by opening tag, if there are any."""
        found: dict[int, tuple[int, int]] = {}
        open_pairs: list[list[tuple[int, int]]] = [[]]  # ranges of target words inside each open pair
        position = 0  # source words before this one have been added to the innermost pair
        for index in self.source.order:
            element, n_before = self.source.elements[index], self.n_words_before[index]
            words = range(position, n_before)
            open_pairs[-1] += [self.aligned_words[word] for word in words if word in self.aligned_words]
            position = max(position, n_before)
            if element.role is Role.OPENING:
                open_pairs.append([])
                position = n_before  # a word that surrounds the tag is outside and inside
            elif element.partner is not None and (ranges := open_pairs.pop()):
                first, last = min(first for first, _ in ranges), max(last for _, last in ranges)
                found[element.partner] = first, last
                open_pairs[-1].append((first, last))
        return found

    def place(self) -> Iterator[tuple[int, int]]:
        """Yield all elements with their offsets, in the order of the translation."""
        elements = self.source.elements
        children: dict[int | None, list[int]] = {}
        for index in self.source.order:
            if elements[index].role is not Role.CLOSING:
                children.setdefault(elements[index].parent, []).append(index)

        def sort_children(parent: int | None, start: int, end: int) -> Iterator[tuple[int, int, int]]:
            spans = {index: self._span(index, start, end) for index in children.get(parent, ())}
            return iter([(index, *spans[index]) for index in sorted(spans, key=lambda index: spans[index])])

        end = len(self.translation)
        open_pairs: list[tuple[Iterator[tuple[int, int, int]], int | None, int]]
        open_pairs = [(sort_children(None, 0, end), None, end)]
        offsets = [0]  # inside each open pair, the end of its last element
        while open_pairs:
            remaining, partner, end = open_pairs[-1]
            if (child := next(remaining, None)) is None:
                open_pairs.pop()
                offsets.pop()
                if partner is not None:
                    yield partner, end
                continue
            index, first, last = child
            first = max(offsets[-1], first)
            last = max(first, last)
            yield index, first
            offsets[-1] = last
            if (partner := elements[index].partner) is not None:
                open_pairs.append((sort_children(index, first, last), partner, last))
                offsets.append(first)

    def _span(self, index: int, start: int, end: int) -> tuple[int, int]:
        """Return the first and last offset of a single element or a pair, clipped to those of its parent."""
        element = self.source.elements[index]
        first = self.n_words_before[index]
        last = first if element.partner is None else self.n_words_before[element.partner]
        aligned = self.pair_words.get(index)
        if aligned is None and last > first and self.target_words:
            relative = (first + last) / 2 / len(self.source_word_starts)
            word = min(int(relative * len(self.target_words)), len(self.target_words) - 1)
            aligned = word, word
        if aligned is not None:
            low, high = self.target_words[aligned[0]][0], self.target_words[aligned[1]][1]
            text, ends = self.source_text
            closing_end = ends[index if element.partner is None else element.partner]
            if _STOPS.match(text, closing_end - 1) and (stops := _STOPS.match(self.translation, high)):
                high = stops.end()
        else:
            low = high = self._offset(index, first)
        return min(max(low, start), end), min(max(high, start), end)

    def _ends_word(self, index: int) -> bool:
        """Return whether a word directly precedes an element, and none directly follows it."""
        items = ["", *self.source.items, ""]
        position = items.index(index)
        before, after = (item if isinstance(item, str) else "" for item in (items[position - 1], items[position + 1]))
        return bool(_WORD_START.match(before[-1:])) and not _WORD_START.match(after)

    def _offset(self, index: int, word: int) -> int:
        """Return the offset of an element before a source word."""
        text, ends = self.source_text
        is_after_final_punctuation = 0 < ends[index] == len(text) and not text[-1].isalnum()
        if is_after_final_punctuation:
            return len(self.translation)
        preceding, following = self.aligned_words.get(word - 1), self.aligned_words.get(word)
        if preceding and self._ends_word(index):  # such as the mark of a footnote
            return self.target_words[preceding[1]][1]
        if following:
            return self.target_words[following[0]][0]
        n_earlier = bisect_left(self.aligned_sources, word)
        if n_earlier:
            _, last = self.aligned_words[self.aligned_sources[n_earlier - 1]]
            return self.target_words[last][1]
        return 0 if word == 0 else len(self.translation)


_UNNUMBERED = regex.compile(r"%(?![%(]|\d+\$)[^A-Z_]*[A-Za-z@]|\{(?:![rsa])?(?::[^{}]*)?\}")
"""Placeholders without a number or name, such as `%s` and `{}`: a program fills them in their order."""


def keep_placeholder_order(translation: Segment) -> Segment:
    """Return a translation whose placeholders without number or name are in the order of the source.

    Its other elements keep their places. In another order, a program would fill them with the wrong values.
    """

    def is_ordered(element: Element) -> bool:
        """Return whether an element is such a placeholder, or contains one, as `<b>%s</b>` does."""
        texts = (element.surface[span.start : span.end] for span in find_placeholders(element.surface))
        return element.role is Role.SINGLE and any(map(_UNNUMBERED.fullmatch, texts))

    ordered = [i for i, element in enumerate(translation.elements) if is_ordered(element)]
    remaining = iter(ordered)
    items = [next(remaining) if item in ordered else item for item in translation.items]
    return Segment.make(items, translation.elements)


_NO_SPACE_AFTER = regex.compile(rf"[\s\p{{Ps}}\p{{Pi}}\p{{Pd}}„‚'’/{UNSPACED}]\Z")


def arrange_spaces(items: Sequence[Item], source: Segment) -> Segment:
    """Return a translation with normal spaces around its elements.

    `items` are texts, each with the space before it if there is one, and indices of elements of the source.
    """
    elements = source.elements
    index_of = {item: index for index, item in enumerate(source.items) if isinstance(item, int)}

    def last_character(item: Item) -> str:
        return (item if isinstance(item, str) else elements[item].surface)[-1]

    def starts_word_after(text: str, before: Sequence[Item]) -> bool:
        """Return whether text would continue the word of the single element before it, unlike in the source."""
        if not before or isinstance(before[-1], str) or elements[before[-1]].role is not Role.SINGLE:
            return False
        position = index_of[before[-1]] + 1
        following = source.items[position] if position < len(source.items) else " "
        is_continued = isinstance(following, str) and _WORD_START.match(following)
        return bool(_WORD_START.match(text)) and not is_continued

    def needs_space_before(single: int, previous: Item) -> bool:
        """Return whether a space belongs between the last item of the output and a single element.

        There is none if the same character precedes the element in the source, or if a word precedes it in both.
        """
        source_previous = source.items[index_of[single] - 1] if index_of[single] else " "
        last, source_last = last_character(previous), last_character(source_previous)
        is_same = last == source_last or (_WORD_START.match(last) and _WORD_START.match(source_last))
        return not is_same and not _NO_SPACE_AFTER.search(last)

    output: list[Item] = []
    n_openings = 0  # opening tags at the end of the output: a space goes before them
    has_space = False  # text before the last tags ended with a space
    for item in items:
        if isinstance(item, int) and elements[item].role is not Role.SINGLE:
            n_openings = n_openings + 1 if elements[item].role is Role.OPENING else 0
            output.append(item)
            continue
        position = len(output) - n_openings
        if isinstance(item, str):
            needs_space = has_space or item[0].isspace() or starts_word_after(item, output)
            has_space = item[-1].isspace()
            item = item.strip()
            if not item:
                continue
        else:
            needs_space = has_space or (position > 0 and needs_space_before(item, output[position - 1]))
            has_space = False
        if needs_space and position:
            output.insert(position, " ")
        output.append(item)
        n_openings = 0
    return Segment.make(output, elements)
