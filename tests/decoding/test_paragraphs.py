"""Which lines come apart, and that their translations come back as lines."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from transformer_mt.decoding.alignment import WordAlignment
from transformer_mt.decoding.paragraphs import ParagraphSplitter, word_offsets
from transformer_mt.decoding.text_translator import Translation

LINES = ["One two. Three.", "", "Four. Five six seven. Eight, nine ten eleven.", "Dr. No."]


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def make(when: Any, limit: int = 3) -> ParagraphSplitter:
    return ParagraphSplitter("en", "de", words, limit, when)


@pytest.mark.parametrize(
    ("when", "pieces"),
    [
        ("never", [[line] for line in LINES]),
        (
            "long",
            [
                ["One two. Three."],
                [""],
                ["Four. ", "Five six seven. ", "Eight, ", "nine ten eleven."],
                ["Dr. No."],
            ],
        ),
        (
            "always",
            [
                ["One two. ", "Three."],
                [""],
                ["Four. ", "Five six seven. ", "Eight, ", "nine ten eleven."],
                ["Dr. No."],
            ],
        ),
    ],
)
def test_what_is_cut(when: str, pieces: list[list[str]]) -> None:
    assert make(when).split(LINES) == pieces


def capitals(text: str, score: float = -1.0, links: WordAlignment | None = None) -> Translation:
    words = text.upper().split()
    return Translation(text.upper(), score * len(words), words, [score] * len(words), finished=True, alignment=links)


@pytest.mark.parametrize("when", ["never", "long", "always"])
def test_each_line_gets_its_own_back(when: str) -> None:
    paragraphs = make(when)
    for line, pieces in zip(LINES, paragraphs.split(LINES), strict=True):
        (whole,) = paragraphs.join(pieces, [[capitals(text)] for text in paragraphs.source_texts([pieces])])
        assert whole == capitals(line)


def test_the_second_best_of_a_line_is_made_of_the_second_best_of_its_pieces() -> None:
    """Where a piece has fewer, its last one serves again."""
    first, second = make("always").join(["One. ", "Two."], [[capitals("a"), capitals("b", -2)], [capitals("c")]])
    assert (first.text, first.score, first.token_scores) == ("A C", -2, [-1, -1])
    assert (second.text, second.score, second.token_scores) == ("B C", -3, [-2, -1])
    unfinished = dataclasses.replace(capitals("d"), finished=False)
    (whole,) = make("always").join(["One. ", "Two."], [[capitals("a")], [unfinished]])
    assert not whole.finished


def test_words_are_linked_within_their_pieces() -> None:
    pieces = ["One two. ", "Three. ", "Four five."]
    parts = [capitals("a b", links=[(1, 0), (0, 1)]), capitals("c d", links=[(0, 1)]), capitals("e", links=[(1, 0)])]
    (whole,) = make("always").join(pieces, [[part] for part in parts])
    assert whole.alignment == [(1, 0), (0, 1), (2, 3), (4, 4)]


def test_word_offsets_a_text_are_those_of_all_before_it() -> None:
    """Against counting in the whole, with pieces of every kind side by side."""
    for texts in itertools.product(["", " ", "a", " a", "b ", " b c ", "d e"], repeat=4):
        wanted = [len("".join(texts[: n + 1]).split()) - len(text.split()) for n, text in enumerate(texts)]
        assert list(word_offsets(texts)) == wanted, texts


def test_pieces_are_translated_without_the_space_between() -> None:
    sources = make("long").source_texts([[" One. ", "Two.  "], [" a line as it is "]])
    assert sources == ["One.", "Two.", " a line as it is "]


def test_words_are_linked_where_pieces_meet_within_one() -> None:
    """Chinese has no white space between sentences: to the links, a line is one word."""
    parts = [capitals("a b", links=[(0, 0), (0, 1)]), capitals("c", links=[(0, 0)])]
    (whole,) = ParagraphSplitter("zh", "en", words, 3, "always").join(["你好。", "再见。"], [[part] for part in parts])
    assert whole.alignment == [(0, 0), (0, 1), (0, 2)]
