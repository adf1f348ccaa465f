"""Likely reasons of bad translations, in constructed explanations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import load_plain

from transformer_mt import Translator
from transformer_mt.tools.analysis.explanation import (
    Alternative,
    Explanation,
    LeftOutWord,
    TargetWord,
    TokenPrediction,
    explain,
)
from transformer_mt.tools.analysis.explanation_page import find_likely_reasons

SOURCE = "one two three"


@pytest.fixture(scope="module")
def translator(tiny_run: Path) -> Translator:
    return load_plain(tiny_run, max_length_offset=4)


@pytest.fixture(scope="module")
def good(translator: Translator) -> Explanation:
    """An explanation without anything unusual, which the tests change."""
    return replace(
        explain(translator, SOURCE),
        finished=True,
        predictions=[make_prediction(piece, 0.99) for piece in ("eins", " zwei", " drei", "</s>")],
        words=[TargetWord(*pair, 0.99, 0.1) for pair in (("eins", ["one"]), ("zwei", ["two"]), ("drei", ["three"]))],
        left_out=[LeftOutWord(word, -9.0) for word in SOURCE.split()],
    )


def make_prediction(piece: str, probability: float, *others: tuple[str, float]) -> TokenPrediction:
    alternatives = [Alternative(*pair) for pair in ((piece, probability), *others)]
    return TokenPrediction(piece, -0.01, probability, 1, 0.1, alternatives)


def test_a_certain_translation_of_known_words_has_no_reason(translator: Translator, good: Explanation) -> None:
    assert find_likely_reasons(translator, good) == []


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"predictions": [make_prediction(" Rad", 0.3, (" Auto", 0.2))]},
            ["▁Rad (0.300)", "alternatives: ▁Auto 0.200"],
        ),
        (
            {
                "words": [TargetWord("eins", ["one"], 0.9, 0.1)],
                "left_out": [LeftOutWord("one", -9.0), LeftOutWord("bicycle,", 0.1), LeftOutWord("a", 0.5)],
            },
            ['hardly depends on "bicycle,": possibly left out'],
        ),
        ({"translation": "der alte Hund, " * 3}, ["repeats itself"]),
        ({"finished": False}, ["cut at the maximum length"]),
        ({"source": "one \x1b[31mⱷ three"}, ['lacks "\\x1b[31mⱷ"']),
    ],
)
def test_the_only_unusual_thing_is_the_only_reason(
    translator: Translator, good: Explanation, changes: dict[str, Any], parts: list[str]
) -> None:
    (reason,) = find_likely_reasons(translator, replace(good, **changes))
    for part in parts:
        assert part in reason


def test_repetitions_of_the_source_are_no_reason(translator: Translator, good: Explanation) -> None:
    repeated = replace(good, source="one " * 9, translation="eins " * 9, left_out=[LeftOutWord("one", -9.0)] * 9)
    assert find_likely_reasons(translator, repeated) == []


def test_a_source_longer_than_the_training_pairs_is_a_reason(translator: Translator, good: Explanation) -> None:
    longest = translator.runs[0].data.max_length
    text = " ".join(["one", "two"] * longest)
    reasons = find_likely_reasons(translator, replace(good, source=text))
    assert any(f"training pairs have at most {longest:,}" in reason for reason in reasons)


def test_another_language_is_a_reason(translator: Translator, good: Explanation) -> None:
    text = "Der Ausschuss hat gestern beschlossen, dass die Vorschriften überarbeitet werden müssen."
    reasons = find_likely_reasons(translator, replace(good, source=text))
    assert "in German, not in English" in reasons[0]
