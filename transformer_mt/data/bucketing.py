"""Bucketing: sort sentence pairs by length, cut them into batches, and shuffle the batches of each epoch.

Sorting and cutting happen once. Each epoch shuffles the pairs of equal source and target length among themselves, and
then the batches. The number of batches and their shapes are therefore the same in every epoch.

Shapes: `N` pairs, `M` batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MAX_LENGTH_RATIO = 1.5  # of the longest to the shortest text of a batch to translate

Rows = NDArray[np.int32]  # row numbers of an encoded corpus
Lengths = NDArray[np.int32]  # tokens per sentence


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one epoch: batch `i` holds `rows[bounds[b]:bounds[b + 1]]`, where `b = order[i]`."""

    rows: Rows  # [N]
    bounds: NDArray[np.int64]  # [M + 1]
    order: NDArray[np.int64]  # [M]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, i: int) -> Rows:
        batch = self.order[i]
        return self.rows[self.bounds[batch] : self.bounds[batch + 1]]

    def __iter__(self) -> Iterator[Rows]:
        return (self[i] for i in range(len(self)))


class BucketedBatches:
    """Pairs sorted by length and cut into batches at a token budget.

    A batch of B pairs satisfies B * T <= tokens and B * S <= 2 * tokens. A pair above the budget is a batch of one.
    """

    def __init__(self, src_lengths: Lengths, tgt_lengths: Lengths, tokens: int) -> None:
        """Sort and cut pairs of these lengths, which include control symbols."""
        # 16-bit keys sort fastest.
        key_type = np.uint16 if max(src_lengths.max(), tgt_lengths.max()) < 2**16 else np.int64
        # Source lengths rise and fall in turn, so they stay similar in a batch that spans two target lengths.
        src_key = np.where(tgt_lengths % 2 == 0, src_lengths, src_lengths.max() - src_lengths)
        order = np.lexsort((src_key.astype(key_type), tgt_lengths.astype(key_type)))
        src, tgt = src_lengths[order], tgt_lengths[order]
        changes = (np.diff(src) != 0) | (np.diff(tgt) != 0)
        self.rows: Rows = order.astype(np.int32)
        self.length_bounds = np.flatnonzero(np.r_[True, changes, True])  # bounds of pairs of equal lengths
        self.bounds = _batch_bounds(src, tgt, tokens)
        starts = self.bounds[:-1]
        # [M, 3] number of pairs, source length and target length of each batch
        shapes = np.diff(self.bounds), np.maximum.reduceat(src, starts), tgt[self.bounds[1:] - 1]
        self.shapes: NDArray[np.int64] = np.stack(shapes, axis=1).astype(np.int64)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def shortest_first(self) -> BatchPlan:
        """Return the unshuffled plan, shortest pairs first."""
        return BatchPlan(self.rows, self.bounds, np.arange(len(self)))

    def shuffled(self, *key: int) -> BatchPlan:
        """Return the plan of a training epoch, a pure function of the key, such as (seed, epoch)."""
        random = np.random.default_rng(key)
        rows: Rows = np.array(self.rows)
        for start, end in pairwise(self.length_bounds.tolist()):
            random.shuffle(rows[start:end])
        return BatchPlan(rows, self.bounds, random.permutation(len(self)))


def _batch_bounds(src: Lengths, tgt: Lengths, tokens: int) -> NDArray[np.int64]:
    """Cut sorted pairs into batches greedily. Return the start of each batch, and N: [M + 1]."""
    bounds = [0]
    while (start := bounds[-1]) < len(tgt):
        max_pairs = max(1, tokens // int(tgt[start]))  # an upper bound, because targets only get longer
        window = slice(start, start + max_pairs)
        count = np.arange(1, len(tgt[window]) + 1)
        fits = (count * tgt[window] <= tokens) & (count * np.maximum.accumulate(src[window]) <= 2 * tokens)
        bounds.append(start + max(1, int(fits.sum())))  # both products only grow
    return np.array(bounds)


def batch_by_length(lengths: Mapping[int, int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of keys with similar lengths, the longest first, of at most `max_tokens` padded tokens.

    A batch that is at least half full does not take much shorter ones, which would be mostly padding.
    """
    batch: list[int] = []
    for i in sorted(lengths, key=lambda i: -lengths[i]):
        if batch:
            width = lengths[batch[0]] + 1
            is_full = (len(batch) + 1) * width > max_tokens
            if is_full or (lengths[i] + 1 < width / MAX_LENGTH_RATIO and 2 * len(batch) * width >= max_tokens):
                yield batch
                batch = []
        batch.append(i)
    if batch:
        yield batch
