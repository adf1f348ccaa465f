"""Hashes, and repeated rows against a dictionary."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.stages import IN_PROCESS_RUNNER
from transformer_mt.tools.quality import duplicates
from transformer_mt.tools.quality.duplicates import ComparedSide, DuplicateRows, find_duplicates, hash_side, hash_texts

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


def find_expected_duplicates(pairs: Pairs, of: ComparedSide, normalized: bool) -> dict[int, int]:
    """Return the first row of each row that repeats one."""
    firsts, repeats = dict[object, int](), dict[int, int]()
    for row, (src, tgt) in enumerate(pairs):
        if normalized:
            src, tgt = ("".join(filter(str.isalpha, text.lower())) for text in (src, tgt))
        value = {"pair": (src, tgt), "src": src, "tgt": tgt}[of]
        if value and firsts.setdefault(value, row) != row:
            repeats[row] = firsts[value]
    return repeats


def read_all(found: DuplicateRows) -> dict[int, int]:
    """Return the repeated rows of all shards, in order, and the row that each repeats."""
    shards = [found.read_shard(number) for number in range(len(found.bounds) - 1)]
    assert all((shard.similarities == 1).all() for shard in shards)
    rows = [row for shard in shards for row in shard.rows.tolist()]
    assert rows == sorted(rows) and len(rows) == found.n_rows
    return dict(zip(rows, [row for shard in shards for row in shard.others.tolist()], strict=True))


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
