"""Batches of a corpus of any size, with the memory of one shard.

A corpus above `SHARD_PAIRS` is divided into shards. A shard has blocks of consecutive pairs from all over the corpus,
which the seed draws once, so it is a random sample that is read almost sequentially. Pairs are bucketed within their
shard. An epoch visits the shards in a new order, and shuffles the batches of each. A smaller corpus is a single shard.

Memory per process: about 26 bytes for each pair of one shard while it is bucketed, and 13 bytes for each pair of two
shards and their epoch plans. Only `shapes` grows with the corpus, by 24 bytes per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.bucketing import BatchPlan, BucketedBatches, Lengths, Rows

SHARD_PAIRS = 2**22
"""Maximum pairs of a shard. Another value changes the order of batches of a larger corpus."""
BLOCK_PAIRS = 10_000
"""Consecutive pairs that are in one shard."""

ReadLengths = Callable[[int, int], tuple[Lengths, Lengths]]
"""Returns the source and target lengths of the rows from a first one to an end."""


class ShardedBatches:
    """The batches of all shards, numbered shard by shard. Shards are bucketed when they are needed."""

    def __init__(self, n_pairs: int, read_lengths: ReadLengths, tokens: int, seed: int, first_row: int = 0) -> None:
        """Divide `n_pairs` rows from `first_row` on into shards, and bucket each once to count its batches."""
        self._n_pairs, self._read_lengths, self._tokens, self._seed = n_pairs, read_lengths, tokens, seed
        self._first_row = first_row
        n_shards = -(-n_pairs // SHARD_PAIRS)
        blocks = np.arange(-(-n_pairs // BLOCK_PAIRS))
        if n_shards > 1:
            np.random.default_rng([seed, n_pairs]).shuffle(blocks)
        self._blocks = [np.sort(part) for part in np.array_split(blocks, n_shards)] if n_pairs else []
        self.shard = lru_cache(maxsize=2)(self._bucket)  # 2: a step may span two shards
        shapes = [self.shard(number).shapes for number in range(n_shards)]
        # [M, 3] number of pairs, source length and target length of each batch
        self.shapes: NDArray[np.int64] = np.concatenate([np.empty((0, 3), np.int64), *shapes])
        self.bounds = np.cumsum([0, *map(len, shapes)])  # [shards + 1] number of the first batch of each

    def __len__(self) -> int:
        return len(self.shapes)

    def shortest_first(self) -> ShardedPlan:
        """Return the unshuffled plan, shortest pairs first within each shard."""
        return ShardedPlan(
            np.arange(len(self._blocks)), self.bounds, lambda number: self.shard(number).shortest_first()
        )

    def shuffled(self, seed: int, epoch: int) -> ShardedPlan:
        """Return the plan of a training epoch, a pure function of (seed, epoch)."""
        n_shards = len(self._blocks)
        if n_shards == 1:
            return ShardedPlan(np.arange(1), self.bounds, lambda _: self.shard(0).shuffled(seed, epoch))
        order = np.random.default_rng([seed, epoch]).permutation(n_shards)
        sizes = np.diff(self.bounds)[order]
        return ShardedPlan(
            order, np.cumsum([0, *sizes]), lambda number: self.shard(number).shuffled(seed, epoch, number)
        )

    def _bucket(self, number: int) -> BucketedBatches:
        starts = BLOCK_PAIRS * self._blocks[number]
        ranges = [(int(start), min(int(start) + BLOCK_PAIRS, self._n_pairs)) for start in starts]
        if len(self._blocks) == 1:
            ranges = [(0, self._n_pairs)]
        first = self._first_row
        lengths = [self._read_lengths(first + start, first + end) for start, end in ranges]
        src, tgt = (np.concatenate([pair[side] for pair in lengths]) for side in (0, 1))
        bucketed = BucketedBatches(src, tgt, self._tokens)
        if len(self._blocks) > 1:
            rows: Rows = np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in ranges])
            bucketed.rows = rows[bucketed.rows]
        bucketed.rows += np.int32(first)
        return bucketed


class ShardedPlan:
    """The batches of one epoch: those of the shard `order[0]`, then those of `order[1]`, and so on."""

    def __init__(self, order: NDArray[np.int64], bounds: NDArray[np.int64], make: Callable[[int], BatchPlan]) -> None:
        """Make plans of shards when they are needed. `bounds` are the numbers of their first batches."""
        self.order, self.bounds = order, bounds
        self._plan = lru_cache(maxsize=2)(partial(make))

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __getitem__(self, i: int) -> Rows:
        at = int(np.searchsorted(self.bounds, i, "right")) - 1
        return self._plan(int(self.order[at]))[i - int(self.bounds[at])]

    def __iter__(self) -> Iterator[Rows]:
        return (self[i] for i in range(len(self)))
