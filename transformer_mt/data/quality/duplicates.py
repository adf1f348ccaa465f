"""Exact duplicates by 64-bit hashes: 9 bytes of memory per text, in numpy arrays instead of Python sets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

SLOTS_PER_HASH = 1.125  # a fuller table needs longer searches
_EMPTY = np.uint64(0)


def hash_texts(texts: Iterable[str]) -> Hashes:
    """Return a 64-bit hash of each text. It is the same in every process, and never 0."""
    import xxhash

    digest = xxhash.xxh3_64_intdigest
    hashes = np.fromiter((digest(text.encode("utf-8", "surrogatepass")) for text in texts), np.uint64)
    hashes[hashes == _EMPTY] = 1
    return hashes


def join_pair(src: str, tgt: str) -> str:
    """Join both sides to one text, so that different pairs give different texts."""
    return f"{src}\0{tgt}"


class HashSet:
    """Set of hashes with a fixed capacity: an open-addressing table with linear probing, 9 bytes per hash."""

    def __init__(self, capacity: int) -> None:
        self._table: Hashes = np.zeros(int(max(1, capacity) * SLOTS_PER_HASH) + 1, np.uint64)
        self._n_left = capacity

    def add(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Add hashes, and return for each whether it is new: neither in the set before nor earlier in the array.

        Raises:
            OverflowError: The set would exceed its capacity.
        """
        is_new = np.zeros(len(hashes), np.bool_)
        distinct, pending = np.unique(hashes, return_index=True)
        slots = distinct % np.uint64(len(self._table))
        while len(pending):
            found = self._table[slots]
            free = found == _EMPTY
            self._table[slots[free]] = distinct[free]  # of hashes that compete for a slot, the last one gets it
            inserted = free & (self._table[slots] == distinct)
            is_new[pending[inserted]] = True
            self._n_left -= int(inserted.sum())
            if self._n_left < 0:
                raise OverflowError("the set is full")
            left = ~inserted & (found != distinct)
            pending, distinct = pending[left], distinct[left]
            slots = (slots[left] + np.uint64(1)) % np.uint64(len(self._table))
        return is_new
