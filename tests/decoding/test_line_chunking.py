"""Splitting of long lines, and joining of their translations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from transformer_mt.decoding.line_splitting import LineChunker, TranslatedLine, iterate_word_offsets

from transformer_mt.decoding.interface import WordAlignment
from transformer_mt.decoding.translator import Translation

LINES = ["One two. Three.", "", "Four. Five six seven. Eight, nine ten eleven.", "Dr. No."]


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def make(when: Any, limit: int = 3, max_sentences: int = 1) -> LineChunker:
    return LineChunker("en", "de", words, limit, when, max_sentences)


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
    assert make(when).split(LINES) == pieces


@pytest.mark.parametrize(
    ("max_sentences", "limit", "pieces"),
    [
        (1, 9, ["Up on. ", "So do. ", "Eat. ", "For he is."]),
        (2, 9, ["Up on. So do. ", "Eat. For he is."]),
        (3, 4, ["Up on. So do. ", "Eat. For he is."]),
        (9, 9, ["Up on. So do. Eat. For he is."]),
    ],
)
def test_auto_keeps_as_many_sentences_together_as_the_training_had(
    max_sentences: int, limit: int, pieces: list[str]
) -> None:
    assert make("auto", limit, max_sentences).split(["Up on. So do. Eat. For he is."]) == [pieces]


def test_cells_of_a_table_are_not_joined() -> None:
    assert make("auto", 9, 3).split(["Up on.\tSo do. Eat.\tIt is."]) == [["Up on.\t", "So do. Eat.\t", "It is."]]


@pytest.mark.parametrize("line", ["12. 34! 5 6 7 8 9 10", "-" * 999, "1. 2. 3."])
def test_a_line_without_letters_stays_whole(line: str) -> None:
    assert [make(when).split([line]) for when in ("auto", "long", "always")] == [[[line]]] * 3


def capitals(text: str, score: float = -1.0, links: WordAlignment | None = None) -> Translation:
    words = text.upper().split()
    return Translation(text.upper(), score * len(words), words, [score] * len(words), finished=True, alignment=links)


@pytest.mark.parametrize("when", ["never", "long", "always"])
def test_joined_pieces_give_the_translation_of_the_line(when: str) -> None:
    chunker = make(when)
    for line, pieces in zip(LINES, chunker.split(LINES), strict=True):
        texts = [piece.strip() for piece in pieces] if len(pieces) > 1 else pieces
        (whole,) = chunker.join(line, pieces, [[capitals(text)] for text in texts])
        assert whole == capitals(line)


def test_second_best_line_joins_second_best_pieces() -> None:
    """A piece with fewer translations repeats its last one."""
    first, second = make("always").join(
        "One. Two.", ["One. ", "Two."], [[capitals("a"), capitals("b", -2)], [capitals("c")]]
    )
    assert (first.text, first.score, first.token_scores) == ("A C", -2, [-1, -1])
    assert (second.text, second.score, second.token_scores) == ("B C", -3, [-2, -1])
    unfinished = dataclasses.replace(capitals("d"), finished=False)
    (whole,) = make("always").join("One. Two.", ["One. ", "Two."], [[capitals("a")], [unfinished]])
    assert not whole.finished


def test_alignments_of_pieces_are_shifted() -> None:
    pieces = ["One two. ", "Three. ", "Four five."]
    parts = [capitals("a b", links=[(1, 0), (0, 1)]), capitals("c d", links=[(0, 1)]), capitals("e", links=[(1, 0)])]
    (whole,) = make("always").join("".join(pieces), pieces, [[part] for part in parts])
    assert whole.alignment == [(1, 0), (0, 1), (2, 3), (4, 4)]


def test_word_offsets_equal_counts_in_the_joined_text() -> None:
    """Compare with counting words in the joined text, for all combinations of texts."""
    for texts in itertools.product(["", " ", "a", " a", "b ", " b c ", "d e"], repeat=4):
        wanted = [len("".join(texts[: n + 1]).split()) - len(text.split()) for n, text in enumerate(texts)]
        assert list(iterate_word_offsets(texts)) == wanted, texts


def test_alignment_of_pieces_that_share_a_word() -> None:
    """Chinese has no white space between sentences, so a line is one word."""
    parts = [capitals("a b", links=[(0, 0), (0, 1)]), capitals("c", links=[(0, 0)])]
    (whole,) = LineChunker("zh", "en", words, 3, "always").join(
        "你好。再见。", ["你好。", "再见。"], [[part] for part in parts]
    )
    assert whole.alignment == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("source", "joined"),
    [("\t\tA b.\t", "\t\tA B.\t"), (" \tA b.  ", "\tA B."), ("\t", "\t"), ("\t-", "\t-"), (" -", "-")],
)
def test_tabs_around_a_line_are_kept(source: str, joined: str) -> None:
    translation = capitals(source.strip())
    (line,) = TranslatedLine(make("auto"), source, [source], [[translation]]).join()
    assert line.text == joined
