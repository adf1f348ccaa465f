"""Which pairs stand in a batch together and in what order batches come: a few flat arrays, whatever the corpus' size.

Pairs are sorted once, by target and source length, and cut once, at the budget. In each epoch, pairs of the same two
lengths change places and the batches come in another order: so the number of batches and their shapes are the same in
every epoch, and an epoch costs no sorting. `N` pairs, `M` batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int32]  # of an encoded corpus
Lengths = NDArray[np.int32]  # with control symbols


@dataclass(frozen=True)
class Plan:
    """The batches of one epoch: number `i` holds `rows[bounds[b]:bounds[b + 1]]`, where b is `order[i]`."""

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
    """The pairs sorted by length, ties in the corpus' order, and cut at the budget.

    A batch of B pairs has B * T <= tokens and B * S <= 2 * tokens; a pair that alone is longer is a batch of its own.
    """

    def __init__(self, src_lengths: Lengths, tgt_lengths: Lengths, tokens: int) -> None:
        narrow = np.uint16 if max(src_lengths.max(), tgt_lengths.max()) < 2**16 else np.int64  # 16 bits sort fastest
        # sources grow and shrink in turn: where a batch holds two lengths of targets, it holds like sources still
        src = np.where(tgt_lengths % 2 == 0, src_lengths, src_lengths.max() - src_lengths)
        order = np.lexsort((src.astype(narrow), tgt_lengths.astype(narrow)))
        src, tgt = src_lengths[order], tgt_lengths[order]
        changes = (np.diff(src) != 0) | (np.diff(tgt) != 0)
        self.rows: Rows = order.astype(np.int32)
        self.runs = np.flatnonzero(np.r_[True, changes, True])  # where pairs of other lengths begin, and the end
        self.bounds = _cut(src, tgt, tokens)
        starts = self.bounds[:-1]
        # pairs, source length and target length of each batch. [M, 3]
        shapes = np.diff(self.bounds), np.maximum.reduceat(src, starts), tgt[self.bounds[1:] - 1]
        self.shapes: NDArray[np.int64] = np.stack(shapes, axis=1).astype(np.int64)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def shortest_first(self) -> Plan:
        """The shortest first."""
        return Plan(self.rows, self.bounds, np.arange(len(self)))

    def shuffled(self, seed: int, epoch: int) -> Plan:
        """An epoch of training: a pure function of (seed, epoch)."""
        random = np.random.default_rng([seed, epoch])
        rows: Rows = np.array(self.rows)
        for start, end in pairwise(self.runs.tolist()):
            random.shuffle(rows[start:end])
        return Plan(rows, self.bounds, random.permutation(len(self)))


def _cut(src: Lengths, tgt: Lengths, tokens: int) -> NDArray[np.int64]:
    """Where batches begin among sorted pairs, and the end of the last one. [M + 1]"""
    bounds = [0]
    while (start := bounds[-1]) < len(tgt):
        most = max(1, tokens // int(tgt[start]))  # targets only get longer from here on
        window = slice(start, start + most)
        count = np.arange(1, len(tgt[window]) + 1)
        fits = (count * tgt[window] <= tokens) & (count * np.maximum.accumulate(src[window]) <= 2 * tokens)
        bounds.append(start + max(1, int(fits.sum())))  # both products only grow, so what fits is a beginning
    return np.array(bounds)
