"""Upper case, lower case, sentence case and title case."""

from __future__ import annotations

import pytest

from transformer_mt.data.letter_case import is_title_case, is_upper_case, to_lower_case, to_sentence_case, to_upper_case


@pytest.mark.parametrize(
    ("text", "is_upper", "sentence"),
    [
        ('A MAN. "HE SLEEPS!" 3 KG?', True, 'A man. "He sleeps!" 3 kg?'),
        ("OPEN AT McDONALD'S ... (NOW)", True, "Open at mcdonald's ... (Now)"),
        ("СОБАКА СПИТ. Я ТОЖЕ", True, "Собака спит. Я тоже"),
        ("McDonald's", False, "Mcdonald's"),
        ("12 我来了", False, "12 我来了"),
        ("", False, ""),
    ],
)
def test_capitals_become_sentence_case(text: str, is_upper: bool, sentence: str) -> None:
    assert is_upper_case(text) == is_upper and to_sentence_case(text) == sentence


def test_title_case_needs_several_words() -> None:
    assert is_title_case("The Dog's Big, Red 3 Balls") and is_title_case("Большая Собака Громко Лает")
    assert not any(map(is_title_case, ("Angela Merkel Spricht", "A Man in a Red Shirt", "我来了。他走了。", "1 2 3 4")))


def test_turkish_letters_keep_their_dots() -> None:
    assert to_sentence_case("ISPARTA VE İZMİR", "tr") == "Isparta ve izmir"
    assert (to_upper_case("ısı için", "tr"), to_lower_case("ISI İÇİN", "tr")) == ("ISI İÇİN", "ısı için")
