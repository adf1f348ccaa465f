"""Hashes, repeated rows against a dictionary, and near duplicates against a comparison of all texts."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.stages import IN_PROCESS_RUNNER
from transformer_mt.tools.quality import duplicates
from transformer_mt.tools.quality.duplicates import (
    ComparedSide,
    DuplicateRows,
    MinHashIndex,
    find_duplicates,
    find_near_duplicates,
    hash_side,
    hash_texts,
    make_compared_texts,
)
from transformer_mt.tools.quality.signals import make_comparison_key

Pairs = list[tuple[str, str]]
WriteShards = Callable[..., ParallelCorpus]
any_text = st.text(st.characters(), max_size=5)  # with surrogates


@given(st.lists(any_text, max_size=20))
def test_equal_texts_have_equal_hashes(texts: list[str]) -> None:
    hashes = hash_texts(texts)
    assert len(set(hashes.tolist())) == len(set(texts))
    pairs = [*zip(texts, texts[::-1], strict=True)]
    hashes = hash_side(texts, texts[::-1], "pair")
    assert len(set(hashes.tolist())) == len(set(pairs))


def make_pairs(count: int, seed: int) -> Pairs:
    """Return pairs of few words, many of which repeat others or have an empty side."""
    rng = random.Random(seed)
    words = ["a", "A", "a!", "ä", "Ä b", "b", "山", "c d"]
    sides = [" ".join(rng.choices(words, k=rng.choice([0, 1, 2, 3, 4]))) for _ in range(2 * count)]
    return [*zip(sides[::2], sides[1::2], strict=True)]


def find_expected_duplicates(pairs: Pairs, of: ComparedSide, normalized: bool) -> list[tuple[int, int, float]]:
    """Return each row that repeats one, the first such row, and a similarity of 1."""
    firsts, repeats = dict[object, int](), list[tuple[int, int, float]]()
    for row, (src, tgt) in enumerate(pairs):
        if normalized:
            src, tgt = ("".join(filter(str.isalpha, text.lower())) for text in (src, tgt))
        value = {"pair": (src, tgt), "src": src, "tgt": tgt}[of]
        if value and firsts.setdefault(value, row) != row:
            repeats.append((row, firsts[value], 1.0))
    return repeats


def read_all(found: DuplicateRows) -> list[tuple[int, int, float]]:
    """Return the rows of all shards, in order, with the row to which each is similar."""
    shards = [found.read_shard(number) for number in range(len(found.bounds) - 1)]
    columns = ([each.rows for each in shards], [each.others for each in shards], [each.similarities for each in shards])
    matches = [*zip(*(np.concatenate(parts).tolist() for parts in columns), strict=True)]
    assert len(matches) == found.n_rows and matches == sorted(matches)
    return matches


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("shard_size", "range_rows"), [(1000, 1000), (100, 300), (20, 90)])
def test_repeated_rows_are_those_of_a_dictionary(
    normalized: bool, shard_size: int, range_rows: int, write_shards: WriteShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "RANGE_ROWS", range_rows)
    pairs = make_pairs(300, seed=shard_size)
    corpus = write_shards(pairs, shard_size)
    for of in get_args(ComparedSide):
        found = find_duplicates(corpus, IN_PROCESS_RUNNER, Path("cache"), of, normalized=normalized)
        assert read_all(found) == find_expected_duplicates(pairs, of, normalized)


def test_rows_of_a_selection_are_compared(write_shards: WriteShards) -> None:
    pairs = make_pairs(300, seed=1)
    rows = np.concatenate([np.arange(3, 30, 2), np.arange(150, 300, 3)])  # and none of some shards
    corpus = write_shards(pairs, 20).select(rows, "part")
    found = find_duplicates(corpus, IN_PROCESS_RUNNER, Path("cache"))
    assert read_all(found) == find_expected_duplicates([pairs[row] for row in rows.tolist()], "pair", normalized=False)


# --- Near duplicates against a comparison of all texts with each other ------------------------------------------------

WORDS = (
    "a the man woman two dogs children run sits beside yellow boat across river reading newspaper mountain 山 собака"
)
random_texts = st.lists(st.text(alphabet="abcäö山\ud800", max_size=12), max_size=12)


@cache
def shingle(text: str) -> set[bytes]:
    """Return runs of four bytes: one byte of each letter, two of each character of East Asia."""
    used = [
        (ord(character) & 0xFFFF, 2) if ord(character) >= 0x2E80 else (ord(character) & 0xFF, 1) for character in text
    ]
    padded = bytes(3) + b"".join(code.to_bytes(n_bytes, "little") for code, n_bytes in used) + bytes(3)
    return {padded[i : i + 4] for i in range(len(padded) - 3)}


def jaccard(a: str, b: str) -> float:
    """Return the share of common runs of four bytes."""
    return len(shingle(a) & shingle(b)) / len(shingle(a) | shingle(b))


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


def find_near_duplicate_rows(texts: list[str]) -> set[int]:
    """Return the rows that are similar to an earlier one that is kept. Equal texts are compared once."""
    removed, kept = set[int](), list[str]()
    for row, text in enumerate(texts):
        if text not in texts[:row]:
            if any(jaccard(text, other) >= 0.8 for other in kept):
                removed.add(row)
            else:
                kept.append(text)
    return removed


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return make_texts(500, seed=1)


@pytest.fixture(scope="module")
def expected(texts: list[str]) -> set[int]:
    """Return the rows that a comparison of all texts removes."""
    return find_near_duplicate_rows(texts)


@pytest.mark.parametrize(("of", "shard_size", "range_rows"), [("src", 1000, 1000), ("tgt", 100, 300), ("src", 40, 170)])
def test_nearly_all_similar_rows_are_removed(
    of: ComparedSide,
    shard_size: int,
    range_rows: int,
    texts: list[str],
    expected: set[int],
    write_shards: WriteShards,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicates, "RANGE_ROWS", range_rows)
    if shard_size == 100:
        monkeypatch.setattr(duplicates, "MAX_ROWS_OF_FEW_BANDS", 100)
    if shard_size == 40:
        monkeypatch.setattr(duplicates, "MAX_CANDIDATES", 20)
        monkeypatch.setattr(duplicates, "COMPARED_BLOCK", 5)
    pairs = [*zip(texts, texts[::-1], strict=True)]
    if of == "tgt":
        pairs = [(src, tgt) for tgt, src in pairs]
    found = read_all(find_near_duplicates(write_shards(pairs, shard_size), IN_PROCESS_RUNNER, Path("cache"), of))
    removed = {row for row, _, _ in found}
    for row, other, similarity in found:
        assert other < row and other not in removed
        assert similarity >= 0.8 and similarity == pytest.approx(jaccard(texts[row], texts[other]))
    assert len(expected) > 50 and len(removed ^ expected) <= 0.02 * len(expected)


def test_near_duplicates_are_the_same_for_any_shards(
    texts: list[str], write_shards: WriteShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [*zip(texts, texts[::-1], strict=True)] * 2
    results: list[list[tuple[int, int, float]]] = []
    for shard_size, range_rows in ((1000, 1000), (130, 90)):
        monkeypatch.setattr(duplicates, "RANGE_ROWS", range_rows)
        corpus = write_shards(pairs, shard_size)
        results.append(read_all(find_near_duplicates(corpus, IN_PROCESS_RUNNER, Path("cache"), "src", 0.7)))
    assert results[0] == results[1] and len(results[0]) > 60


@pytest.mark.parametrize("pairs", [[("a dog runs", "ein Hund")] * 50, [("", "")] * 50, [("", "a"), ("", "b")]])
def test_equal_and_empty_texts_are_no_near_duplicates(pairs: list[tuple[str, str]], write_shards: WriteShards) -> None:
    for of in get_args(ComparedSide):
        assert read_all(find_near_duplicates(write_shards(pairs, 20), IN_PROCESS_RUNNER, Path("cache"), of)) == []


def test_the_work_is_linear_in_the_texts_with_equal_keys(write_shards: WriteShards) -> None:
    """All texts are similar, so that comparing each of them with all others takes 4.5 million comparisons."""
    text = "the shop sells all kinds of fresh fruit and vegetables every day from nine to five in the old town, number "
    pairs = [(f"{text}{i:x}", "") for i in range(3000)]
    found = find_near_duplicates(write_shards(pairs, 1000), IN_PROCESS_RUNNER, Path("cache"), "src")
    assert [other for _, other, _ in read_all(found)] == [0] * 2999
    (candidates,) = Path("cache").glob("candidates-*/*/candidates.bin")
    assert candidates.stat().st_size < 8 * 10 * len(pairs)


def test_index_finds_similar_texts() -> None:
    texts = make_texts(400, seed=2)
    known, others = texts[::2], texts[1::2]
    found = MinHashIndex(known).find(others)
    expected = {
        i for i, text in enumerate(others) if text not in known and max(jaccard(text, other) for other in known) >= 0.8
    }
    assert {*found.rows.tolist()} <= expected and len(found) >= 0.98 * len(expected) > 30
    for row, other, similarity in zip(found.rows, found.others, found.similarities, strict=True):
        assert similarity == pytest.approx(jaccard(others[row], known[other]))


@pytest.fixture(scope="module")
def similar_rows(texts: list[str]) -> set[int]:
    """Return the odd texts that are similar to an even one."""
    pairs = [
        (row, max(jaccard(text, known) for known in texts[::2] if known != text))
        for row, text in enumerate(texts[1::2])
    ]
    return {row for row, similarity in pairs if similarity >= 0.8}


@pytest.mark.parametrize("first_letter", ["α", "а", "ա", "א", "ا", "क", "ก", "ა", "ກ", "ሀ"])
def test_similarity_does_not_depend_on_the_alphabet(
    first_letter: str, texts: list[str], similar_rows: set[int]
) -> None:
    """The letters a to z are replaced by those from `first_letter` on, whose low byte is 0 in one alphabet."""
    letters = {ord("a") + i: chr(ord(first_letter) + i) for i in range(26)}
    known, others = texts[::2], texts[1::2]
    found = MinHashIndex([text.translate(letters) for text in known]).find([text.translate(letters) for text in others])
    assert len(similar_rows) > 30 and len(similar_rows.symmetric_difference(found.rows.tolist())) <= 2
    for row, other, similarity in zip(found.rows, found.others, found.similarities, strict=True):
        assert similarity == pytest.approx(jaccard(others[row], known[other]), abs=0.03)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(random_texts, random_texts)
def test_any_texts_are_accepted(texts: list[str], others: list[str]) -> None:
    found = MinHashIndex(others).find(texts)
    for row, other, similarity in zip(found.rows, found.others, found.similarities, strict=True):
        assert texts[row] != others[other] and jaccard(texts[row], others[other]) == pytest.approx(similarity)


@pytest.mark.parametrize(
    ("first", "second", "is_near"),
    [
        (("A man in a red shirt.", "Ein Mann in rotem Hemd."),
         ("A man in a blue shirt.", "Ein Mann in blauem Hemd."), 0),
        (("一个男人站在街上看报纸。", "Ein Mann liest."), ("一个女人站在街上看书。", "Eine Frau liest."), 0),
        (("Мужчина в синей рубашке чинит велосипед.", "Ein Mann repariert ein Fahrrad."),
         ("Мужчина в синей рубашке чинит велосипет.", "Ein Mann repariert ein Fahrrad."), 1),
        (("一个穿着蓝色衬衫的男人正在街上修理他的自行车。", "Ein Mann repariert sein Fahrrad auf der Straße."),
         ("一个穿着蓝色衬衫的男人正在街上修理自行车。", "Ein Mann repariert sein Fahrrad auf der Straße."), 1),
    ],
)  # fmt: skip
def test_only_small_edits_are_near_duplicates(first: tuple[str, str], second: tuple[str, str], is_near: int) -> None:
    (known,), (text,) = (make_compared_texts([src], [tgt], "pair") for src, tgt in (first, second))
    assert len(MinHashIndex([known]).find([text])) == is_near
