"""Reading of glossaries, and matching of terms, compared with a regular expression."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.tools.markup.glossary import Glossary


def read(tmp_path: Path, *lines: str) -> Glossary:
    path = tmp_path / "terms.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Glossary.read(path)


def found(glossary: Glossary, text: str) -> list[str]:
    return [text[match.start : match.end] for match in glossary.find(text)]


def test_a_glossary_has_variants_and_options(tmp_path: Path) -> None:
    glossary = read(tmp_path, "dog\tHund | Hunde", "", "Apple\tApple\tcase", "Windows  XP\t\tkeep,case")
    dog, apple, windows = glossary.entries
    assert dog.variants == ("Hund", "Hunde") and not dog.is_case_sensitive
    assert apple.is_case_sensitive and not apple.is_keep
    assert (windows.source, windows.variants, windows.is_keep) == ("Windows XP", ("Windows XP",), True)


@pytest.mark.parametrize(
    ("lines", "place", "problem"),
    [
        (["dog"], 1, "has no tab"),
        (["dog\tHund", "\tKatze"], 2, "source is empty"),
        (["dog\tHund", "\u200b\tKatze"], 2, "source is empty"),
        (["don't\tx", "don’t\tx"], 2, "on line 1 already"),
        (['"dog"\t"Hund"'], 1, "in quotes"),
        (['say "yes"\t"ja"', '"the ""old"" dog"\t"Hund"\tcase'], 2, "in quotes"),
        (["dog\tHund\tfast"], 1, "unknown option 'fast'"),
        (["dog\t" + 201 * "x"], 1, "at most 200 characters"),
        (["dog\x1b[1m\tHund", "dog\x1b[1m\tx"], 2, r"'dog\\x1b"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: list[str], place: int, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        read(tmp_path, *lines)
    assert str(caught.value).startswith(f"{tmp_path / 'terms.tsv'}:{place}: ")
    assert "\x1b" not in str(caught.value)


def test_a_glossary_without_terms_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no terms"):
        read(tmp_path, "", " ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The dog and the hot dog.", ["dog", "hot dog"]),
        ("DOG, dogs and hot   dog", ["DOG", "hot   dog"]),
        ("hot-dog hotdog", ["dog"]),
        ("C++ and C", ["C++"]),
        ("我的狗跑了", ["狗"]),
        ("An Apple, an apple", ["Apple"]),
        ("May I? I may, or May.", ["May", "may"]),
        ("«May I» she said. May be", ["May", "May"]),
        ("cafe\u0301 and café", ["cafe\u0301", "café"]),
        ("", []),
    ],
)
def test_terms_match_whole_words(tmp_path: Path, text: str, expected: list[str]) -> None:
    terms = ("dog", "hot dog", "C++", "狗", "café")
    glossary = read(tmp_path, *(f"{term}\tx" for term in terms), "Apple\tx\tcase", "may\tx\tcase")
    assert found(glossary, text) == expected


@pytest.mark.parametrize(
    ("term", "text", "expected"),
    [
        ("hot dog", "a hot\u00a0dog, hot\u2009dogs", ["hot\u00a0dog"]),
        ("hot\u202fdog", "\ufeffhot dog", ["hot dog"]),
        ("hot dog", "hot \u200bd\u00adog\u200b.", ["hot \u200bd\u00adog\u200b"]),
        ("\ufeffd\u00adog", "dog", ["dog"]),
        ("l'eau", "de l’eau", ["l’eau"]),
        ("ภาษาไทย", "ภาษา\u200bไทย", ["ภาษา\u200bไทย"]),
        ("fish", "\ufb01sh", ["\ufb01sh"]),
    ],
    ids=ascii,
)
def test_terms_match_with_unusual_characters(tmp_path: Path, term: str, text: str, expected: list[str]) -> None:
    for option in ("", "case"):
        assert found(read(tmp_path, f"{term}\tx\t{option}"), text) == expected


def test_a_case_sensitive_term_goes_before_another_one(tmp_path: Path) -> None:
    glossary = read(tmp_path, "apple\tApfel", "Apple\tApple\tcase")
    assert [match.entry.variants[0] for match in glossary.find("Apple apple APPLE")] == ["Apple", "Apfel", "Apfel"]


def test_matching_equals_a_regular_expression(tmp_path: Path) -> None:
    rng = random.Random(1)
    words = ["a", "b", "Ab", "ba", "c"]
    for _ in range(100):
        terms = {" ".join(rng.choices(words, k=rng.randint(1, 3))).lower() for _ in range(6)}
        glossary = read(tmp_path, *(f"{term}\tx" for term in terms))
        longest_first = sorted(terms, key=lambda term: -len(term.split()))
        pattern = re.compile(rf"\b(?:{'|'.join(longest_first)})\b", re.IGNORECASE)
        text = " ".join(rng.choices([*words, "a,", "(b)"], k=20))
        assert found(glossary, text) == pattern.findall(text)
