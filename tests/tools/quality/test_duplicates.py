"""Hashes and the set of hashes, against Python's sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.tools.quality.duplicates import HashSet, hash_texts, join_pair


@given(st.lists(st.lists(st.integers(1, 40), max_size=30), max_size=10), st.integers(0, 2**64 - 41))
def test_hash_set_agrees_with_a_set(blocks: list[list[int]], offset: int) -> None:
    hashes, seen = HashSet(40), set[int]()
    for block in blocks:
        expected = [value not in seen and value not in block[:i] for i, value in enumerate(block)]
        seen.update(block)
        assert hashes.add(np.array(block, np.uint64) + np.uint64(offset)).tolist() == expected


def test_hash_set_is_exact_when_it_is_full() -> None:
    values = np.random.default_rng(1).integers(1, 2**63, 20_000, dtype=np.uint64)
    hashes = HashSet(len(values))
    assert sum(hashes.add(block).sum() for block in np.split(values, 20)) == len(values)
    assert not hashes.add(values).any()
    with pytest.raises(OverflowError):
        hashes.add(values + np.uint64(2**63))


def test_hash_set_takes_nine_bytes_per_hash() -> None:
    assert HashSet(100_000)._table.nbytes <= 9 * 100_000 + 16


@given(st.lists(st.text(max_size=5), max_size=20))
def test_equal_texts_have_equal_hashes(texts: list[str]) -> None:
    hashes = hash_texts(texts)
    assert len(set(hashes.tolist())) == len(set(texts)) and 0 not in hashes


def test_a_pair_is_not_mistaken_for_another_one_with_the_same_letters() -> None:
    assert join_pair("a b", "c") != join_pair("a", "b c")
