"""Which lines come apart, and that their translations come back as lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from transformer_mt.decoding.paragraphs import Paragraphs

LINES = ["One two. Three.", "", "Four. Five six seven. Eight, nine ten eleven.", "Dr. No."]


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def make(when: Any, limit: int = 3) -> Paragraphs:
    return Paragraphs("en", "de", words, limit, when)


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
    assert make(when).cut(LINES) == pieces


@pytest.mark.parametrize("when", ["never", "long", "always"])
def test_each_line_gets_its_own_back(when: str) -> None:
    paragraphs = make(when)
    cut = paragraphs.cut(LINES)
    translations = [text.upper() for text in paragraphs.sources(cut)]
    assert paragraphs.join(cut, translations) == [line.upper() for line in LINES]


def test_pieces_are_translated_without_the_space_between() -> None:
    sources = make("long").sources([[" One. ", "Two.  "], [" a line as it is "]])
    assert sources == ["One.", "Two.", " a line as it is "]


def test_nothing_to_cut() -> None:
    assert make("long").join(make("long").cut([]), []) == []
