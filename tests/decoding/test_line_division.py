"""Division of long lines, and joining of the translations of their parts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from transformer_mt.decoding.segments import (
    LineDivider,
    Segment,
    Translation,
    WordAlignment,
    iterate_word_offsets,
    join_n_best,
)

LINES = ["One two. Three.", "", "Four. Five six seven. Eight, nine ten eleven.", "Dr. No."]


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def divide(lines: Sequence[str], when: Any, limit: int = 3, max_sentences: int = 1) -> list[list[str]]:
    divider = LineDivider("en", words, limit, when, max_sentences)
    return [[part.surface for part in parts] for parts in divider.divide([*map(Segment.from_text, lines)])]


def join(
    source: str, parts: Sequence[str], n_best_lists: Sequence[Sequence[Translation]], language: str = "de"
) -> list[Translation]:
    line = Segment.from_text(source)
    segments = [Segment.from_text(part) for part in parts] if len(parts) > 1 else [line]
    return join_n_best(line, segments, n_best_lists, language)


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
    assert divide(LINES, when) == pieces


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
    assert divide(["Up on. So do. Eat. For he is."], "auto", limit, max_sentences) == [pieces]


def test_cells_of_a_table_are_not_joined() -> None:
    assert divide(["Up on.\tSo do. Eat.\tIt is."], "auto", 9, 3) == [["Up on.\t", "So do. Eat.\t", "It is."]]


@pytest.mark.parametrize("line", ["12. 34! 5 6 7 8 9 10", "-" * 999, "1. 2. 3."])
def test_a_line_without_letters_stays_whole(line: str) -> None:
    assert [divide([line], when) for when in ("auto", "long", "always")] == [[[line]]] * 3


def capitals(text: str, score: float = -1.0, links: WordAlignment | None = None) -> Translation:
    words = text.upper().split()
    return Translation(
        Segment.from_text(text.upper()), score * len(words), words, [score] * len(words), finished=True, alignment=links
    )


@pytest.mark.parametrize("when", ["never", "long", "always"])
def test_joined_parts_give_the_translation_of_the_line(when: str) -> None:
    for line, parts in zip(LINES, divide(LINES, when), strict=True):
        texts = [part.strip() for part in parts] if len(parts) > 1 else parts
        (whole,) = join(line, parts, [[capitals(text)] for text in texts])
        assert whole == capitals(line)


def test_second_best_line_joins_second_best_parts() -> None:
    """A part with fewer translations repeats its last one."""
    first, second = join("One. Two.", ["One. ", "Two."], [[capitals("a"), capitals("b", -2)], [capitals("c")]])
    assert (first.text, first.score, first.token_scores) == ("A C", -2, [-1, -1])
    assert (second.text, second.score, second.token_scores) == ("B C", -3, [-2, -1])
    unfinished = dataclasses.replace(capitals("d"), finished=False)
    (whole,) = join("One. Two.", ["One. ", "Two."], [[capitals("a")], [unfinished]])
    assert not whole.finished


def test_alignments_of_parts_are_shifted() -> None:
    pieces = ["One two. ", "Three. ", "Four five."]
    parts = [capitals("a b", links=[(1, 0), (0, 1)]), capitals("c d", links=[(0, 1)]), capitals("e", links=[(1, 0)])]
    (whole,) = join("".join(pieces), pieces, [[part] for part in parts])
    assert whole.alignment == [(1, 0), (0, 1), (2, 3), (4, 4)]


def test_word_offsets_equal_counts_in_the_joined_text() -> None:
    """Compare with counting words in the joined text, for all combinations of texts."""
    for texts in itertools.product(["", " ", "a", " a", "b ", " b c ", "d e"], repeat=4):
        wanted = [len("".join(texts[: n + 1]).split()) - len(text.split()) for n, text in enumerate(texts)]
        assert list(iterate_word_offsets(texts)) == wanted, texts


def test_alignment_of_parts_that_share_a_word() -> None:
    """Chinese has no white space between sentences, so a line is one word."""
    parts = [capitals("a b", links=[(0, 0), (0, 1)]), capitals("c", links=[(0, 0)])]
    (whole,) = join("你好。再见。", ["你好。", "再见。"], [[part] for part in parts], "en")
    assert whole.alignment == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("source", "joined"),
    [("\t\tA b.\t", "\t\tA B.\t"), (" \tA b.  ", "\tA B."), ("\t", "\t"), ("\t-", "\t-"), (" -", "-")],
)
def test_tabs_around_a_line_are_kept(source: str, joined: str) -> None:
    translation = capitals(source.strip())
    (line,) = join(source, [source], [[translation]])
    assert line.text == joined
