"""Statistics of a parallel corpus, from which `tmt init` chooses settings."""

from __future__ import annotations

from itertools import pairwise

import pytest

from transformer_mt.data.text_files import SentencePair
from transformer_mt.flows import init
from transformer_mt.flows.init import CorpusStatistics, inspect_pairs


def inspect(src: list[str], tgt: list[str]) -> CorpusStatistics:
    return inspect_pairs(SentencePair(*pair, "f", i) for i, pair in enumerate(zip(src, tgt, strict=True), 1))


@pytest.mark.parametrize(
    ("text", "script", "is_spaced"),
    [
        ("The old dog is sleeping in the garden.", "LATIN", True),
        ("古い犬が庭で寝ています。", "HIRAGANA", False),
        ("那只老狗在花园里睡觉。", "HAN", False),
        ("늙은 개가 정원에서 자고 있다.", "HANGUL", True),
    ],
)
def test_script_and_spaces_are_found(text: str, script: str, is_spaced: bool) -> None:
    side = inspect([text], ["The old dog is sleeping."]).src
    assert (side.script, side.is_spaced) == (script, is_spaced)


@pytest.mark.parametrize(
    ("text", "is_spaced"),
    [
        ("Hund", True),
        ("狗", False),
        ("那 只 老 狗", True),
        ("eintextohneleerzeichenzwischendenwörtern", False),
        ("", True),
    ],
)
def test_one_word_lines_segmented_text_and_text_without_spaces_are_told_apart(text: str, is_spaced: bool) -> None:
    assert inspect([text] * 3, ["a"] * 3).src.is_spaced == is_spaced


def test_empty_pairs_and_copies_are_counted() -> None:
    found = inspect(["a", "", "c d", " "], ["a", "b", "e", "f"])
    assert (found.n_pairs, found.n_empty, found.n_copies) == (2, 2, 1)


def test_the_sample_is_spread_over_a_large_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "SAMPLE_SIZE", 4)
    sample = inspect([f"line {i}" for i in range(1000)], ["x"] * 1000).src.sample
    numbers = [int(line.split()[1]) for line in sample]
    assert 4 <= len(numbers) < 8
    assert len({b - a for a, b in pairwise(numbers)}) == 1
    assert numbers[0] == 0 and numbers[-1] >= 500
