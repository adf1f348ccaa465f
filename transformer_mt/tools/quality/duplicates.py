"""Near duplicates: texts that share most of their shingles, the runs of four bytes of their comparison keys.

MinHash signatures (Broder 1997) with locality-sensitive hashing find candidates: texts that agree in every value of a
band of their signatures. The shingles of the candidates are then compared exactly. All is vectorised and takes one
band after the other.

Bytes rather than characters make scripts comparable: four bytes are four Latin letters, but between one and two Chinese
characters. In a sentence of ten words, one other word costs more than a fifth of the shingles; so captions that differ
in a colour or a person are no near duplicates, unlike those that differ in an article or a typing error.

`N` texts, `P` values of a signature, `K` shingles of all texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from transformer_mt.system.log import ProgressReport
from transformer_mt.tools.quality.signals import make_comparison_key

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


ComparedSide = Literal["pair", "src", "tgt"]
Rows = NDArray[np.int64]

MIN_SIMILARITY = 0.7
"""Lowest allowed similarity. About 10 % of such pairs are missed, and 1 % at 0.8."""
SIMILARITY = 0.8
"""Default share of the shingles that near duplicates have in common (Jaccard index)."""
MAX_PAIRS = 2_000_000  # that one call may compare with each other; each takes about 400 bytes of memory

SHINGLE = 4  # bytes, so that a shingle is an integer of 32 bits
PADDING = "\0" * (SHINGLE - 1)  # between texts, so that a byte at an end is part of `SHINGLE` shingles like any other
BANDS, BAND_ROWS = 12, 5  # similar texts (0.8) agree in a band with a probability of 99 %, others (0.4) of 12 %
SIGNATURE_SIZE = BANDS * BAND_ROWS
TOLERANCE = 0.15  # of the similarity that signatures estimate: three standard deviations
MAX_ROUNDS = 8  # comparisons of a text with others of the same band key
CHUNK_SIZE = 1000  # texts whose shingles fit in the cache of a core

_random = np.random.default_rng(20)
_MULTIPLIERS = _random.integers(0, 2**32, SIGNATURE_SIZE, np.uint32) | np.uint32(1)
_BAND_MULTIPLIERS = _random.integers(0, 2**63, BAND_ROWS, np.uint64) | np.uint64(1)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio


@dataclass(frozen=True)
class NearMatches:
    """Texts that are similar to another one, in ascending order."""

    rows: Rows
    others: Rows  # the earlier text, or the one in the index
    similarities: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)


def make_compared_texts(src: Sequence[str], tgt: Sequence[str], of: ComparedSide) -> Iterator[str]:
    """Return the texts by which pairs, sources or targets are compared."""
    if of == "pair":
        return (make_compared_text(*pair) for pair in zip(src, tgt, strict=True))
    return map(make_comparison_key, src if of == "src" else tgt)


def make_compared_text(src: str, tgt: str) -> str:
    """Return the text by which a pair is compared with others."""
    return f"{make_comparison_key(src)}{PADDING}{make_comparison_key(tgt)}"


def find_near_duplicates(texts: Iterable[str], n_texts: int, similarity: float = SIMILARITY) -> NearMatches:
    """Return the texts that are similar to an earlier one. Equal texts count once.

    Each group of similar texts is represented by one of them, which is not returned.
    """
    compared = _TextSet(texts, n_texts, unique=True)
    matches = _MatchTable(len(compared))
    progress = ProgressReport(f"data: searched for near duplicates in {n_texts:,} texts:", BANDS, "passes")
    with progress.show(bar=False):
        for band in range(BANDS):
            members = matches.unmatched()
            keys_of_band = compared.band_keys(band, members)
            order = np.argsort(keys_of_band, kind="stable")  # by key, then by row
            hashes, members = keys_of_band[order], members[order]
            for _ in range(MAX_ROUNDS):  # compare the members of each group with its first one, then with the next
                is_other = np.zeros(len(hashes), np.bool_)
                is_other[1:] = hashes[1:] == hashes[:-1]
                progress.update(band)
                if not is_other.any():
                    break
                firsts = members[np.maximum.accumulate(np.where(is_other, 0, np.arange(len(members))))]
                is_near = matches.compare(compared, members[is_other], compared, firsts[is_other], similarity)
                hashes, members = hashes[is_other][~is_near], members[is_other][~is_near]
    return matches.result(compared.rows, compared.rows)


class NearIndex:
    """Index of texts, such as the sources of a test set, that finds other texts which are similar to one of them."""

    def __init__(self, texts: Sequence[str], similarity: float = SIMILARITY) -> None:
        self._texts = _TextSet(texts, len(texts), unique=True)
        self._similarity = similarity
        self._bands: list[tuple[Hashes, Rows]] = []
        for band in range(BANDS):
            hashes = self._texts.band_keys(band, np.arange(len(self._texts)))
            order = np.argsort(hashes, kind="stable")
            self._bands.append((hashes[order], order))

    def find(self, texts: Sequence[str]) -> NearMatches:
        """Return the texts that are similar to one of the index, but equal to none."""
        compared = _TextSet(texts, len(texts), unique=False)
        matches = _MatchTable(len(compared))
        is_new = ~np.isin(compared.hashes, self._texts.hashes)
        for band, (known, order) in enumerate(self._bands):
            rows = matches.unmatched()
            rows = rows[is_new[rows]]
            hashes = compared.band_keys(band, rows)
            positions, ends = np.searchsorted(known, hashes), np.searchsorted(known, hashes, side="right")
            for _ in range(MAX_ROUNDS):
                is_open = positions < ends
                rows, positions, ends = rows[is_open], positions[is_open], ends[is_open]
                if not len(rows):
                    break
                is_near = matches.compare(compared, rows, self._texts, order[positions], self._similarity)
                rows, positions, ends = rows[~is_near], positions[~is_near] + 1, ends[~is_near]
        return matches.result(compared.rows, self._texts.rows)


# --- comparison -------------------------------------------------------------------------------------------------------


class _MatchTable:
    """The near duplicate of each text for which one was found."""

    def __init__(self, n_texts: int) -> None:
        self._others: Rows = np.full(n_texts, -1)
        self._similarities = np.zeros(n_texts, np.float32)

    def unmatched(self) -> Rows:
        """Return the texts that have no near duplicate so far."""
        return np.flatnonzero(self._others < 0)

    def compare(
        self, texts: _TextSet, rows: Rows, other_texts: _TextSet, others: Rows, limit: float
    ) -> NDArray[np.bool_]:
        """Compare texts with others, record those that are similar, and return which of them are."""
        is_near = np.zeros(len(rows), np.bool_)
        for first in range(0, len(rows), 50_000):  # bounds the memory
            part = slice(first, first + 50_000)
            agreement = (texts.signatures[rows[part]] == other_texts.signatures[others[part]]).mean(axis=1)
            for i in (first + np.flatnonzero(agreement >= limit - TOLERANCE)).tolist():
                row, other = int(rows[i]), int(others[i])
                similarity = _jaccard(texts.shingles(row), other_texts.shingles(other))
                if similarity >= limit:
                    is_near[i] = True
                    self._others[row], self._similarities[row] = other, similarity
        return is_near

    def result(self, rows: Rows, other_rows: Rows) -> NearMatches:
        """Return the matches, with the rows of the texts in their corpora."""
        near = np.flatnonzero(self._others >= 0)
        return NearMatches(rows[near], other_rows[self._others[near]], self._similarities[near])


def _jaccard(a: set[int], b: set[int]) -> float:
    """Return the share of the members of either set that both have."""
    n_common = len(a & b)
    return n_common / (len(a) + len(b) - n_common)


class _TextSet:
    """Texts as bytes, with their MinHash signatures."""

    def __init__(self, texts: Iterable[str], capacity: int, *, unique: bool) -> None:
        seen = HashSet(capacity) if unique else None
        n_seen = n_kept = 0
        rows: Rows = np.empty(capacity, np.int64)
        hashes: Hashes = np.empty(capacity, np.uint64)
        signatures: NDArray[np.uint16] = np.empty((capacity, SIGNATURE_SIZE), np.uint16)
        starts: Rows = np.zeros(capacity + 1, np.int64)
        padding = PADDING.encode()
        data = bytearray(padding)
        iterator = iter(texts)
        while chunk := [*islice(iterator, CHUNK_SIZE)]:
            chunk_hashes = hash_texts(chunk)
            kept = np.arange(len(chunk)) if seen is None else np.flatnonzero(seen.add(chunk_hashes))
            encoded = [chunk[i].encode("utf-8", "surrogatepass") for i in kept.tolist()]
            counts = np.fromiter(map(len, encoded), np.int64, len(encoded)) + len(padding)
            part = slice(n_kept, n_kept + len(kept))
            rows[part], hashes[part] = kept + n_seen, chunk_hashes[kept]
            starts[part.start + 1 : part.stop + 1] = starts[part.start] + np.cumsum(counts)
            signatures[part] = _minhash(_shingles(padding.join([b"", *encoded, b""])), counts)
            data += padding.join([*encoded, b""])
            n_seen, n_kept = n_seen + len(chunk), part.stop
        self.rows, self.hashes, self.signatures = rows[:n_kept], hashes[:n_kept], signatures[:n_kept]
        self._starts, self._shingles = starts, _shingles(data)

    def __len__(self) -> int:
        return len(self.rows)

    def shingles(self, i: int) -> set[int]:
        """Return the shingles of a text."""
        return set(self._shingles[self._starts[i] : self._starts[i + 1]].tolist())

    def band_keys(self, band: int, rows: Rows) -> Hashes:
        """Return a 64-bit hash of a band of the signatures."""
        values = self.signatures[rows, band * BAND_ROWS : (band + 1) * BAND_ROWS]
        return (values.astype(np.uint64) * _BAND_MULTIPLIERS).sum(axis=1)


def _shingles(padded: bytes | bytearray) -> NDArray[np.uint32]:
    """Return the shingles of texts with padding around each, without a copy: each byte and the next three. [K]."""
    return np.ndarray(len(padded) - len(PADDING), "<u4", padded, strides=(1,))


def _minhash(shingles: NDArray[np.uint32], counts: Rows) -> NDArray[np.uint16]:
    """Return the signatures of texts, [N, P]. shingles: [K]; counts: shingles of each text, [N]."""
    if not len(counts):
        return np.empty((0, SIGNATURE_SIZE), np.uint16)
    mixed = shingles * _MIX
    mixed = ((mixed ^ (mixed >> np.uint64(32))) * _MIX >> np.uint64(32)).astype(np.uint32)
    signatures = np.empty((SIGNATURE_SIZE, len(counts)), np.uint16)
    starts, hashes = np.cumsum(counts) - counts, np.empty_like(mixed)
    for i, multiplier in enumerate(_MULTIPLIERS):
        np.multiply(mixed, multiplier, out=hashes)  # [K], a permutation of the integers of 32 bits
        signatures[i] = np.minimum.reduceat(hashes, starts)  # the low half, which is as random as the whole
    return signatures.T
