"""Splitting of long lines, and joining of their translations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from transformer_mt.decoding.line_splitting import LineChunker, iterate_word_offsets, strip_chunks
from transformer_mt.decoding.translation import Translation
from transformer_mt.decoding.word_alignment import WordAlignment
from transformer_mt.tools.markup.elements import MarkedText

LINES = ["One two. Three.", "", "Four. Five six seven. Eight, nine ten eleven.", "Dr. No."]
MARKED_LINES = [MarkedText.make([line], ()) for line in LINES]


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def make(when: Any, limit: int = 3) -> LineChunker:
    return LineChunker("en", "de", words, limit, when)


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
def test_lines_are_split_according_to_option(when: str, pieces: list[list[str]]) -> None:
    assert [[piece.surface for piece in line] for line in make(when).split(MARKED_LINES)] == pieces


def capitals(text: str, score: float = -1.0, links: WordAlignment | None = None) -> Translation:
    words = text.upper().split()
    return Translation(text.upper(), score * len(words), words, [score] * len(words), finished=True, alignment=links)


@pytest.mark.parametrize("when", ["never", "long", "always"])
def test_joined_pieces_give_the_translation_of_the_line(when: str) -> None:
    chunker = make(when)
    for line, pieces in zip(LINES, chunker.split(MARKED_LINES), strict=True):
        texts = [text.surface for text in strip_chunks([pieces])]
        (whole,) = chunker.join([piece.surface for piece in pieces], [[capitals(text)] for text in texts])
        assert whole == capitals(line)


def test_second_best_line_joins_second_best_pieces() -> None:
    """A piece with fewer translations repeats its last one."""
    first, second = make("always").join(["One. ", "Two."], [[capitals("a"), capitals("b", -2)], [capitals("c")]])
    assert (first.text, first.score, first.token_scores) == ("A C", -2, [-1, -1])
    assert (second.text, second.score, second.token_scores) == ("B C", -3, [-2, -1])
    unfinished = dataclasses.replace(capitals("d"), finished=False)
    (whole,) = make("always").join(["One. ", "Two."], [[capitals("a")], [unfinished]])
    assert not whole.finished


def test_alignments_of_pieces_are_shifted() -> None:
    pieces = ["One two. ", "Three. ", "Four five."]
    parts = [capitals("a b", links=[(1, 0), (0, 1)]), capitals("c d", links=[(0, 1)]), capitals("e", links=[(1, 0)])]
    (whole,) = make("always").join(pieces, [[part] for part in parts])
    assert whole.alignment == [(1, 0), (0, 1), (2, 3), (4, 4)]


def test_word_offsets_equal_counts_in_the_joined_text() -> None:
    """Compare with counting words in the joined text, for all combinations of texts."""
    for texts in itertools.product(["", " ", "a", " a", "b ", " b c ", "d e"], repeat=4):
        wanted = [len("".join(texts[: n + 1]).split()) - len(text.split()) for n, text in enumerate(texts)]
        assert list(iterate_word_offsets(texts)) == wanted, texts


def test_stripped_chunks_have_no_space_around_them() -> None:
    lines = [[" One. ", "Two.  "], [" a line as it is "]]
    sources = strip_chunks([[MarkedText.from_text(chunk) for chunk in line] for line in lines])
    assert [source.surface for source in sources] == ["One.", "Two.", " a line as it is "]


def test_alignment_of_pieces_that_share_a_word() -> None:
    """Chinese has no white space between sentences, so a line is one word."""
    parts = [capitals("a b", links=[(0, 0), (0, 1)]), capitals("c", links=[(0, 0)])]
    (whole,) = LineChunker("zh", "en", words, 3, "always").join(["你好。", "再见。"], [[part] for part in parts])
    assert whole.alignment == [(0, 0), (0, 1), (0, 2)]
