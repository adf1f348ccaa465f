"""Near duplicates against a comparison of all texts with each other."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_mt.tools.quality.duplicates import NearIndex, find_near_duplicates, make_compared_text
from transformer_mt.tools.quality.signals import make_comparison_key

WORDS = (
    "a the man woman two dogs children run sits beside yellow boat across river reading newspaper mountain 山 собака"
)
random_texts = st.lists(st.text(alphabet="abcäö山", max_size=12), max_size=12)


def jaccard(a: str, b: str) -> float:
    """Return the share of common runs of four bytes."""
    first, second = (
        {padded[i : i + 4] for i in range(len(padded) - 3)}
        for padded in (bytes(3) + text.encode() + bytes(3) for text in (a, b))
    )
    return len(first & second) / len(first | second)


def make_texts(count: int, seed: int) -> list[str]:
    """Return sentences, of which every second one differs from an earlier one by few letters."""
    rng = random.Random(seed)
    texts: list[str] = []
    for i in range(count):
        text = " ".join(rng.choices(WORDS.split(), k=rng.randint(5, 15)))
        if i % 2:
            text = rng.choice(texts)
            for _ in range(rng.randint(0, 3)):
                position = rng.randrange(len(text))
                text = text[:position] + rng.choice(["", "x", "the"]) + text[position + 1 :]
        texts.append(text)
    return [*map(make_comparison_key, texts)]


def test_similarities_are_exact_and_nearly_all_are_found() -> None:
    texts = make_texts(400, seed=1)
    found = find_near_duplicates(texts, len(texts))
    assert len(found) > 40
    assert (found.others < found.rows).all() and (np.diff(found.rows) > 0).all()
    for row, other, similarity in zip(found.rows, found.others, found.similarities, strict=True):
        assert texts[row] != texts[other] and similarity >= 0.8
        assert similarity == pytest.approx(jaccard(texts[row], texts[other]))
    removed = {texts[row] for row in found.rows}
    left = [text for text in dict.fromkeys(texts) if text not in removed]
    missed = [b for i, b in enumerate(left) if any(jaccard(a, b) >= 0.8 for a in left[:i] if a != b)]
    assert len(missed) <= 0.02 * len(found)


def test_index_finds_the_texts_that_are_similar_to_one_of_it() -> None:
    texts = make_texts(400, seed=2)
    known, others = texts[::2], texts[1::2]
    found = NearIndex(known).find(others)
    expected = {
        i for i, text in enumerate(others) if text not in known and max(jaccard(text, other) for other in known) >= 0.8
    }
    assert {*found.rows.tolist()} <= expected and len(found) >= 0.98 * len(expected) > 30
    for row, other, similarity in zip(found.rows, found.others, found.similarities, strict=True):
        assert similarity == pytest.approx(jaccard(others[row], known[other]))


def test_the_search_logs_its_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("transformer_mt.system.log.FIRST_WAIT", 0)
    texts = make_texts(50, seed=3)
    found = find_near_duplicates(texts, len(texts))
    lines = capsys.readouterr().err.splitlines()
    title = "data: searched for near duplicates in 50 texts:"
    assert len(found) > 0
    assert (lines[0], lines[-1]) == (f"{title} 0 of 12 passes", f"{title} 11 of 12 passes")


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(random_texts, random_texts)
def test_any_texts_are_accepted(texts: list[str], others: list[str]) -> None:
    for found, known in ((find_near_duplicates(texts, len(texts)), texts), (NearIndex(others).find(texts), others)):
        for row, other, similarity in zip(found.rows, found.others, found.similarities, strict=True):
            assert texts[row] != known[other] and jaccard(texts[row], known[other]) == pytest.approx(similarity)


@pytest.mark.parametrize(
    ("first", "second", "is_near"),
    [
        (("A man in a red shirt.", "Ein Mann in rotem Hemd."),
         ("A man in a blue shirt.", "Ein Mann in blauem Hemd."), 0),
        (("Two dogs run.", "Zwei Hunde rennen."), ("Three dogs run.", "Drei Hunde rennen."), 0),
        (("一个男人站在街上看报纸。", "Ein Mann liest."), ("一个女人站在街上看书。", "Eine Frau liest."), 0),
        (("The white dog is running in the snow.", "Der weiße Hund rennt im Schnee."),
         ("A white dog is running in the snow.", "Der weiße Hund rennt im Schnee."), 1),
        (("Мужчина в синей рубашке чинит велосипед.", "Ein Mann repariert ein Fahrrad."),
         ("Мужчина в синей рубашке чинит велосипет.", "Ein Mann repariert ein Fahrrad."), 1),
        (("一个穿着蓝色衬衫的男人正在街上修理他的自行车。", "Ein Mann repariert sein Fahrrad auf der Straße."),
         ("一个穿着蓝色衬衫的男人正在街上修理自行车。", "Ein Mann repariert sein Fahrrad auf der Straße."), 1),
    ],
)  # fmt: skip
def test_other_captions_are_not_near_duplicates(first: tuple[str, str], second: tuple[str, str], is_near: int) -> None:
    assert len(find_near_duplicates([make_compared_text(*first), make_compared_text(*second)], 2)) == is_near
