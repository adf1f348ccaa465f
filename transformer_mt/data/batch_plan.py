"""Planning of batches: from the lengths of sentence pairs to buckets, and to the order of the batches of an epoch.

A planned batch is the corpus rows of its pairs. Only lengths are read here. The plan is a pure function of
(seed, epoch), and a position in it is a few integers, `StreamPosition`. A resumed run therefore sees the same batches,
with any number of processes.

Shapes: `N` pairs, `M` batches, `K` sources of pairs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.encoding import Lengths, Rows
from transformer_mt.runs.records import Count

Shapes = NDArray[np.int64]
"""Number of pairs, source length and target length of each batch. [M, 3]."""

# --- buckets ----------------------------------------------------------------------------------------------------------
# Sorting by length and cutting into batches happen once. Each epoch shuffles the pairs of equal source and target
# length among themselves, and then the batches. So the number of batches and their shapes are the same in every epoch.


class BucketedBatches:
    """Pairs sorted by length and cut into batches at a token budget.

    A batch of B pairs satisfies B * T <= tokens and B * S <= 2 * tokens. A pair above the budget is a batch of one.
    """

    def __init__(self, src_lengths: Lengths, tgt_lengths: Lengths, tokens: int, first_row: int = 0) -> None:
        """Sort and cut pairs of these lengths, which include control symbols. The first pair is row `first_row`."""
        # 16-bit keys sort fastest.
        key_type = np.uint16 if max(src_lengths.max(), tgt_lengths.max()) < 2**16 else np.int64
        # Source lengths rise and fall in turn, so they stay similar in a batch that spans two target lengths.
        src_key = np.where(tgt_lengths % 2 == 0, src_lengths, src_lengths.max() - src_lengths)
        order = np.lexsort((src_key.astype(key_type), tgt_lengths.astype(key_type)))
        src, tgt = src_lengths[order], tgt_lengths[order]
        changes = (np.diff(src) != 0) | (np.diff(tgt) != 0)
        self.rows: Rows = (order + first_row).astype(np.int32)
        self.length_bounds = np.flatnonzero(np.r_[True, changes, True])  # bounds of pairs of equal lengths
        self.bounds = _batch_bounds(src, tgt, tokens)
        starts = self.bounds[:-1]
        shapes = np.diff(self.bounds), np.maximum.reduceat(src, starts), tgt[self.bounds[1:] - 1]
        self.shapes: Shapes = np.stack(shapes, axis=1).astype(np.int64)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def shortest_first(self) -> list[Rows]:
        """Return the rows of each batch, shortest pairs first."""
        return self._cut(self.rows)

    def shuffled(self, seed: int, epoch: int) -> list[Rows]:
        """Return the rows of each batch of a training epoch, a pure function of the arguments."""
        random = np.random.default_rng((seed, epoch))
        rows: Rows = np.array(self.rows)
        for start, end in pairwise(self.length_bounds.tolist()):
            random.shuffle(rows[start:end])
        batches = self._cut(rows)
        return [batches[i] for i in random.permutation(len(self)).tolist()]

    def _cut(self, rows: Rows) -> list[Rows]:
        return [rows[start:end] for start, end in pairwise(self.bounds.tolist())]


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


ReadLengths = Callable[[int, int], tuple[Lengths, Lengths]]
"""Returns the source and target lengths of the rows from a first one to an end, with control symbols."""

# --- mixtures of several sources --------------------------------------------------------------------------------------

MIXTURE_STREAM = 0x6D6978  # separates these random numbers from others with the same seed


@dataclass(frozen=True)
class Mixture:
    """The probabilities of the sources, and the source of each batch.

    A source is drawn at random, as a pure function of (seed, number of the batch). Each source has its own epochs.
    """

    seed: int
    probabilities: NDArray[np.float64]  # [K]

    def choose(self, number: int) -> int:
        """Return the source of batch `number`, counted from 0."""
        value = np.random.default_rng([self.seed, number, MIXTURE_STREAM]).random()
        ends: list[float] = np.cumsum(self.probabilities).tolist()
        return bisect_right(ends, value * ends[-1])


def make_mixture(data: DataConfig, n_batches: Sequence[int], *, seed: int) -> Mixture:
    """Return the mixture of the training sources, which must be a list. `n_batches` has the batches of each source.

    Without weights, the probability of a source is proportional to `n_batches ** (1 / temperature)`.
    """
    assert isinstance(data.train, tuple)
    weights = [
        n ** (1 / data.temperature) if source.weight is None else source.weight
        for n, source in zip(n_batches, data.train, strict=True)
    ]
    return Mixture(seed, np.array(weights) / sum(weights))


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamPosition:
    """Position in the plan: the next batch is batch `index` of epoch `epoch`, both counted from 0."""

    epoch: Count = 0
    index: Count = 0
    n_taken: tuple[Count, ...] = ()  # of a mixture: batches taken so far from each source


class PlannedBatch(NamedTuple):
    """A batch of the plan: its source, and its number in an epoch of this source."""

    source: int
    epoch: int
    number: int


class BatchPlan:
    """The endless sequence of the batches of a corpus, epoch after epoch.

    With a mixture, each batch has pairs of one source of the corpus. An epoch then has as many batches as all sources
    together, but the number that comes from each source depends on the mixture.
    """

    def __init__(
        self,
        bounds: Sequence[int],
        read_lengths: ReadLengths,
        tokens: int,
        seed: int,
        make_mixture: Callable[[Sequence[int]], Mixture] | None = None,
    ) -> None:
        """Bucket each source of a corpus into batches of at most `tokens` padded target tokens.

        `bounds` are the first row of each source, and the end of the last. `make_mixture` makes the mixture from the
        numbers of batches of the sources.
        """
        self.sources = [BucketedBatches(*read_lengths(first, end), tokens, first) for first, end in pairwise(bounds)]
        self._seed = seed
        self._shuffled = lru_cache(2 * len(self.sources))(self._shuffle)  # a step may span two epochs of a source
        self._mixture = make_mixture([*map(len, self.sources)]) if make_mixture else None

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return sum(map(len, self.sources))

    @property
    def shapes(self) -> Shapes:
        """Return number of pairs, source length and target length of each batch of an epoch: [M, 3]."""
        return np.concatenate([source.shapes for source in self.sources])

    def take(self, position: StreamPosition, count: int) -> tuple[list[PlannedBatch], StreamPosition]:
        """Return the next `count` batches, and the position after them."""
        size, planned = len(self), list[PlannedBatch]()
        n_taken = [*position.n_taken] or [0] * len(self.sources)
        start = position.epoch * size + position.index
        for number in range(start, start + count):
            if self._mixture is None:
                planned.append(PlannedBatch(0, *divmod(number, size)))
            else:
                source = self._mixture.choose(number)
                planned.append(PlannedBatch(source, *divmod(n_taken[source], len(self.sources[source]))))
                n_taken[source] += 1
        return planned, StreamPosition(*divmod(start + count, size), tuple(n_taken) if self._mixture else ())

    def rows(self, planned: PlannedBatch) -> Rows:
        """Return the corpus rows of a batch. [B]."""
        return self._shuffled(planned.source, planned.epoch)[planned.number]

    def _shuffle(self, source: int, epoch: int) -> list[Rows]:
        return self.sources[source].shuffled(self._seed, epoch)

    def shortest_first(self) -> Iterator[Rows]:
        """Yield the rows of all batches once, the shortest pairs of each source first, as `shapes` has them."""
        return chain.from_iterable(source.shortest_first() for source in self.sources)

    def rows_of_shape(self, number: int) -> Rows:
        """Return the rows of the batch to which row `number` of `shapes` belongs."""
        ends: list[int] = np.cumsum([*map(len, self.sources)]).tolist()
        source = bisect_right(ends, number)
        return self.sources[source].shortest_first()[number - ends[source]]  # counted from the end of the source
