"""Batches of texts of similar length within a token budget, and the stream of training batches.

The order of an epoch depends only on (seed, epoch), and the position in the stream is a few integers, `StreamPosition`.
A resumed run therefore sees the same batches, with any number of processes.

Shapes: `B` sentence pairs, `S` source length, `T` target length, `N` pairs of the corpus, `M` batches.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from transformer_mt.config.section import CountOrAuto, Section
from transformer_mt.data.encoding import EncodedCorpus, Ids, Lengths, Rows
from transformer_mt.data.mixture import Mixture
from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.subword_sampling import SubwordSamplers, sample_sides
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

if TYPE_CHECKING:
    import torch

# --- bucketing --------------------------------------------------------------------------------------------------------
# Sorting by length and cutting into batches happen once. Each epoch shuffles the pairs of equal source and target
# length among themselves, and then the batches. So the number of batches and their shapes are the same in every epoch.


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
        shapes = np.diff(self.bounds), np.maximum.reduceat(src, starts), tgt[self.bounds[1:] - 1]
        self.shapes: Shapes = np.stack(shapes, axis=1).astype(np.int64)

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


# --- partitions of a large corpus -------------------------------------------------------------------------------------

PARTITION_PAIRS = 2**22
"""Maximum pairs of a partition. Another value changes the order of batches of a larger corpus."""
BLOCK_PAIRS = 10_000
"""Consecutive pairs that are in one partition."""

ReadLengths = Callable[[int, int], tuple[Lengths, Lengths]]
"""Returns the source and target lengths of the rows from a first one to an end."""
Shapes = NDArray[np.int64]
"""Number of pairs, source length and target length of each batch. [M, 3]."""


class PartitionedBatches:
    """The batches of all partitions, numbered partition by partition. Partitions are bucketed when they are needed."""

    def __init__(
        self,
        n_pairs: int,
        read_lengths: ReadLengths,
        tokens: int,
        seed: int,
        first_row: int = 0,
        measure: MeasureShapes | None = None,
    ) -> None:
        """Divide `n_pairs` rows from `first_row` on into partitions.

        `measure` returns the shapes of the batches of each partition, e.g. from a cache. Without it, or with a single
        partition, each partition is bucketed here.
        """
        self._n_pairs, self._read_lengths, self._tokens, self._seed = n_pairs, read_lengths, tokens, seed
        self.first_row = first_row
        n_partitions = -(-n_pairs // PARTITION_PAIRS)
        blocks = np.arange(-(-n_pairs // BLOCK_PAIRS))
        if n_partitions > 1:
            np.random.default_rng([seed, n_pairs]).shuffle(blocks)
        self._blocks = [np.sort(part) for part in np.array_split(blocks, n_partitions)] if n_pairs else []
        self.partition = lru_cache(maxsize=2)(self._bucket)  # 2: a step may span two partitions
        shapes = (
            measure(self) if measure and n_partitions > 1 else [self.partition(i).shapes for i in range(n_partitions)]
        )
        self.shapes: Shapes = np.concatenate([np.empty((0, 3), np.int64), *shapes])
        self.bounds = np.cumsum([0, *map(len, shapes)])  # [partitions + 1] number of the first batch of each

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def n_partitions(self) -> int:
        """Return the number of partitions."""
        return len(self._blocks)

    def shortest_first(self) -> PartitionedPlan:
        """Return the unshuffled plan, shortest pairs first within each partition."""
        return PartitionedPlan(
            np.arange(len(self._blocks)), self.bounds, lambda number: self.partition(number).shortest_first()
        )

    def shuffled(self, seed: int, epoch: int) -> PartitionedPlan:
        """Return the plan of a training epoch, a pure function of (seed, epoch)."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self._blocks))

        def make_plan(number: int) -> BatchPlan:
            # a single partition has no number in its key: its order is that of a corpus without partitions
            key = (seed, epoch) if len(order) == 1 else (seed, epoch, number)
            return self.partition(number).shuffled(*key)

        return PartitionedPlan(order, np.cumsum([0, *np.diff(self.bounds)[order]]), make_plan)

    def _bucket(self, number: int) -> BucketedBatches:
        starts: list[int] = (self.first_row + BLOCK_PAIRS * self._blocks[number]).tolist()
        ranges = [(start, min(start + BLOCK_PAIRS, self.first_row + self._n_pairs)) for start in starts]
        lengths = [self._read_lengths(start, end) for start, end in ranges]
        src, tgt = (np.concatenate([pair[side] for pair in lengths]) for side in (0, 1))
        bucketed = BucketedBatches(src, tgt, self._tokens)
        rows = np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in ranges])
        bucketed.rows = rows[bucketed.rows]  # from positions in the partition to rows of the corpus
        return bucketed


MeasureShapes = Callable[[PartitionedBatches], Sequence[Shapes]]
"""Returns the shapes of the batches of each partition."""


class PartitionedPlan:
    """The batches of one epoch: those of the partition `order[0]`, then those of `order[1]`, and so on."""

    def __init__(
        self, order: NDArray[np.int64], bounds: NDArray[np.int64], make_plan: Callable[[int], BatchPlan]
    ) -> None:
        """`bounds[i]` is the number of the first batch of `order[i]`. `make_plan` makes its plan when it is needed."""
        self.order, self.bounds = order, bounds
        self._plan = lru_cache(maxsize=2)(make_plan)

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __getitem__(self, i: int) -> Rows:
        at = int(np.searchsorted(self.bounds, i, "right")) - 1
        return self._plan(int(self.order[at]))[i - int(self.bounds[at])]

    def __iter__(self) -> Iterator[Rows]:
        return (self[i] for i in range(len(self)))


# --- batches ----------------------------------------------------------------------------------------------------------

Sentences = Sequence[Sequence[int] | Ids]  # ids without control symbols

LENGTH_SAMPLE = 1000  # rows used to estimate by how much modification and subword sampling lengthen sentences
SAMPLE_BLOCK = 20  # rows of this sample that are modified together
MODIFICATION_STREAM = 0x6D6F64  # separates the random numbers of modifications from others with the same seed


class ModifiedPair(NamedTuple):
    """A modified pair, with the indices of the pairs that it was made of: several if they were joined."""

    src: str
    tgt: str
    origins: tuple[int, ...]


Modify = Callable[[Sequence[Pair], random.Random], Sequence[ModifiedPair]]
"""Random modification of the pairs of a batch. Each pair is an origin of exactly one modified pair."""


class BatchConfig(Section):
    """Batch size and gradient accumulation."""

    tokens: CountOrAuto = 4096
    """maximum padded target tokens per batch (source: twice as many); auto: the largest that fits the GPU, or 4096"""
    accumulate: int = Field(default=1, ge=1)
    """batches per optimizer step, of all processes together (gradient accumulation)"""
    packed_positions: CountOrAuto = "auto"
    """on CUDA: maximum padded source and target positions of the batches that are packed together; auto: what fits"""

    @property
    def token_budget(self) -> int:
        """Return `tokens` as a number, once `auto` is resolved."""
        assert self.tokens != "auto"
        return self.tokens


@dataclass(frozen=True)
class StreamPosition:
    """Position in the stream: the next batch is batch `index` of epoch `epoch`, both counted from 0."""

    epoch: Annotated[int, Field(ge=0, le=10**12)] = 0
    index: Annotated[int, Field(ge=0, le=10**12)] = 0
    n_taken: tuple[
        Annotated[int, Field(ge=0, le=10**12)], ...
    ] = ()  # of a mixture: batches taken so far from each source


@dataclass(frozen=True)
class Batch:
    """A batch of right-padded token ids. The decoder reads BOS + target and predicts target + EOS."""

    src: torch.Tensor  # [B, S] source + EOS, or BOS + source + EOS if the tokenizers set `source_bos`
    tgt_in: torch.Tensor  # [B, T] BOS + target
    labels: torch.Tensor  # [B, T] target + EOS
    n_src: int  # source tokens without padding
    n_tgt: int  # labels without padding
    rows: Rows = field(default_factory=lambda: np.empty(0, np.int32))  # [B] rows of the encoded corpus
    epoch: int | None = None  # of the stream; None: the batch is neither modified nor sampled
    source_index: int = 0  # index of the source that all its pairs come from
    place: tuple[int, int] = (0, 0)  # in its step: number of the planned batch, and of the part of it

    @property
    def n_padded(self) -> int:
        """Return the number of source and target positions, including padding."""
        return self.src.numel() + self.labels.numel()

    def map_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Apply a function to all tensors."""
        return replace(self, src=function(self.src), tgt_in=function(self.tgt_in), labels=function(self.labels))

    def to(self, device: torch.device) -> Batch:
        """Return this batch on another device."""
        non_blocking = device.type == "cuda"  # on MPS, the source may be freed before the copy has ended
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Return this batch in page-locked memory, which a GPU copies asynchronously."""
        return self.map_tensors(lambda tensor: tensor.pin_memory())


class BatchStream:
    """The endless stream of the batches of a corpus, epoch after epoch.

    With a mixture, each batch has pairs of one source of the corpus. An epoch then has as many batches as all sources
    together, but the number that comes from each source depends on the mixture.
    """

    def __init__(
        self,
        corpus: EncodedCorpus,
        tokenizers: TokenizerPair,
        tokens: int,
        seed: int,
        subword_samplers: SubwordSamplers | None = None,
        tags: Sequence[str | None] = (None,),
        make_mixture: Callable[[Sequence[int]], Mixture] | None = None,
        modify: Modify | None = None,
        max_length: int | None = None,
        measure: MeasureShapes | None = None,
    ) -> None:
        """Bucket each source of a corpus into batches of at most `tokens` padded target tokens.

        `tags` has the tag of each source. `make_mixture` makes the mixture from the numbers of batches of the sources.
        `modify` changes the pairs of each training batch. A pair that would then be empty, have the unknown token, or
        have more than `max_length` tokens on one side with the end symbol, stays as it was. For `measure`, see
        `PartitionedBatches`.
        """
        self.corpus, self.tokenizers, self.subword_samplers = corpus, tokenizers, subword_samplers
        self._tokens, self._seed = tokens, seed
        self._modify, self._max_length = modify, max_length
        self.sample_subwords: Callable[[Sequence[Sentences], Rows, int], Sequence[Sentences]] | None = None
        if subword_samplers is not None:
            self.sample_subwords = partial(sample_sides, subword_samplers)
        self._growth = self._measure_growth()
        self._tag_ids = [None if tag is None else tokenizers.src.tag_id(tag) for tag in tags]
        self._bounds: list[int] = corpus.source_bounds().tolist()  # first row of each source, and the end of the last
        self.bucketed_sources = [
            PartitionedBatches(end - first, self._read_lengths, tokens, seed, first, measure)
            for first, end in pairwise(self._bounds)
        ]
        self.plan = lru_cache(maxsize=2 * len(self.bucketed_sources))(self._plan)  # 2: a step may span two epochs
        self._mixture = make_mixture([*map(len, self.bucketed_sources)]) if make_mixture else None

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return sum(map(len, self.bucketed_sources))

    @property
    def shapes(self) -> Shapes:
        """Return number of pairs, source length and target length of each batch of an epoch: [M, 3]."""
        return np.concatenate([source.shapes for source in self.bucketed_sources])

    def _plan(self, epoch: int, source: int = 0) -> PartitionedPlan:
        return self.bucketed_sources[source].shuffled(self._seed, epoch)

    def take(
        self, position: StreamPosition, count: int, rank: int = 0, world_size: int = 1
    ) -> tuple[list[Batch], StreamPosition]:
        """Build the next `count` batches and return them with the position after them.

        A rank gets only its share, batches `rank`, `rank + world_size`, ... of the `count`. The position advances by
        all `count`, so the order does not depend on the number of processes. A batch whose modified pairs exceed the
        token budget comes in several parts.
        """
        batches = [
            replace(part, place=(number, i))
            for number, at in islice(enumerate(self._positions(position)), rank, count, world_size)
            for i, part in enumerate(self.build_training_batches(*self._rows_and_epoch(at)))
        ]
        return batches, self.advance(position, count)

    def rows_at(self, position: StreamPosition, count: int) -> Rows:
        """Return the corpus rows of the next `count` batches."""
        return np.concatenate([self._rows_and_epoch(at)[0] for at in islice(self._positions(position), count)])

    def advance(self, position: StreamPosition, count: int) -> StreamPosition:
        """Return the position `count` batches later."""
        return next(islice(self._positions(position), count, None))

    def _positions(self, position: StreamPosition) -> Iterator[StreamPosition]:
        """Yield a position and the following ones."""
        epochs, index = divmod(position.index, len(self))
        position = replace(position, epoch=position.epoch + epochs, index=index)
        while True:
            yield position
            n_taken = [*position.n_taken] or [0] * len(self.bucketed_sources)
            n_taken[self._source_at(position)] += 1
            epochs, index = divmod(position.index + 1, len(self))
            position = StreamPosition(position.epoch + epochs, index, tuple(n_taken) if self._mixture else ())

    def _source_at(self, position: StreamPosition) -> int:
        if self._mixture is None:
            return 0
        return self._mixture.choose(position.epoch * len(self) + position.index)

    def _rows_and_epoch(self, position: StreamPosition) -> tuple[Rows, int]:
        """Return the rows of the batch at a position, and the epoch of its source."""
        source = self._source_at(position)
        batches, epoch, index = self.bucketed_sources[source], position.epoch, position.index
        if self._mixture is not None:
            epoch, index = divmod(position.n_taken[source] if position.n_taken else 0, len(batches))
        return self.plan(epoch, source)[index], epoch

    def shortest_first(self, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield one rank's share of the corpus, unshuffled and shortest pairs of each source first."""
        return map(self.build_plain_batch, islice(self._shortest_first(), rank, None, world_size))

    def _shortest_first(self) -> Iterator[Rows]:
        return chain.from_iterable(source.shortest_first() for source in self.bucketed_sources)

    def batch_of_shape(self, number: int) -> Batch:
        """Return the batch to which row `number` of `shapes` belongs, or its largest part, as it is in epoch 0."""
        rows = next(islice(self._shortest_first(), number, None))
        return max(self.build_training_batches(rows, 0), key=lambda batch: batch.n_padded)

    def halve(self, batch: Batch) -> list[Batch]:
        """Split a batch of at least two pairs into two batches, each padded to its own longest sentence."""
        middle = (len(batch.rows) + 1) // 2
        n_src = (batch.src != self.tokenizers.src.pad_id).sum(1)  # [B]
        n_tgt = (batch.labels != self.tokenizers.tgt.pad_id).sum(1)  # [B]
        return [
            replace(
                batch,
                src=batch.src[part, : int(n_src[part].max())],
                tgt_in=batch.tgt_in[part, : int(n_tgt[part].max())],
                labels=batch.labels[part, : int(n_tgt[part].max())],
                n_src=int(n_src[part].sum()),
                n_tgt=int(n_tgt[part].sum()),
                rows=batch.rows[part],
            )
            for part in (slice(middle), slice(middle, None))
        ]

    def build_plain_batch(self, rows: Rows) -> Batch:
        """Build the batch of some corpus rows of one source, without modification and subword sampling."""
        return self._collate(*self._read_ids(rows), rows)

    def build_training_batches(self, rows: Rows, epoch: int) -> list[Batch]:
        """Build the training batch of some corpus rows of one source: one batch, or several within the token budget."""
        src, tgt = self._read_ids(rows)
        if self._modify is not None:
            src, tgt, rows = self._modify_pairs(self._modify, src, tgt, rows, epoch)
        if self.sample_subwords is not None:
            src, tgt = self.sample_subwords((src, tgt), rows, epoch)
        ends = [len(rows)]
        if self._modify is not None and len(ends := self._split_at_budget(src, tgt)) > 1:
            order = sorted(range(len(rows)), key=lambda i: (len(tgt[i]), len(src[i])))  # so that few parts are full
            src, tgt, rows = [src[i] for i in order], [tgt[i] for i in order], rows[order]
            ends = self._split_at_budget(src, tgt)
        return [
            replace(self._collate(src[start:end], tgt[start:end], rows[start:end]), epoch=epoch)
            for start, end in pairwise([0, *ends])
        ]

    def _read_ids(self, rows: Rows) -> tuple[Sentences, Sentences]:
        src, tgt = self.corpus.sides
        return [src[row] for row in rows.tolist()], [tgt[row] for row in rows.tolist()]

    def _collate(self, src: Sentences, tgt: Sentences, rows: Rows) -> Batch:
        source = bisect_right(self._bounds, int(rows[0])) - 1
        batch = collate_pairs(src, tgt, self.tokenizers, self._tag_ids[source])
        return replace(batch, rows=rows, source_index=source)

    def _modify_pairs(
        self, modify: Modify, src: Sentences, tgt: Sentences, rows: Rows, epoch: int
    ) -> tuple[Sentences, Sentences, Rows]:
        """Return the ids of the modified pairs of a batch, and the row of the first origin of each."""
        tokenizers = self.tokenizers
        texts = [
            tokenizer.decode([[*map(int, ids)] for ids in sentences])
            for tokenizer, sentences in ((tokenizers.src, src), (tokenizers.tgt, tgt))
        ]
        pairs = [*zip(*texts, strict=True)]
        modified = modify(pairs, random.Random(f"{self._seed} {epoch} {rows[0]} {MODIFICATION_STREAM}"))
        changed = [pair for pair in modified if (pair.src, pair.tgt) != pairs[pair.origins[0]]]
        encoded = zip(
            tokenizers.src.encode([pair.src for pair in changed]),
            tokenizers.tgt.encode([pair.tgt for pair in changed]),
            strict=True,
        )
        ids_of = dict(zip((pair.origins for pair in changed), encoded, strict=True))
        kept: list[tuple[Sequence[int] | Ids, Sequence[int] | Ids, int]] = []
        for pair in modified:
            ids = ids_of.get(pair.origins)
            if ids is not None and all(
                0 < len(side) < (self._max_length or math.inf) and tokenizer.unk_id not in side
                for tokenizer, side in zip((tokenizers.src, tokenizers.tgt), ids, strict=True)
            ):
                kept.append((*ids, rows[pair.origins[0]]))
            else:
                kept += [(src[i], tgt[i], rows[i]) for i in pair.origins]
        new_src, new_tgt, new_rows = zip(*kept, strict=True)
        return new_src, new_tgt, np.array(new_rows, np.int32)

    def _split_at_budget(self, src: Sentences, tgt: Sentences) -> list[int]:
        """Return the ends of parts that are within the token budget. A pair above the budget is a part of its own."""
        ends: list[int] = []
        start = longest_src = longest_tgt = 0
        for i, (src_ids, tgt_ids) in enumerate(zip(src, tgt, strict=True)):
            n_src, n_tgt = len(src_ids) + self.tokenizers.n_source_controls, len(tgt_ids) + 1
            longest_src, longest_tgt = max(longest_src, n_src), max(longest_tgt, n_tgt)
            count = i + 1 - start
            if count > 1 and (count * longest_tgt > self._tokens or count * longest_src > 2 * self._tokens):
                ends.append(i)
                start, longest_src, longest_tgt = i, n_src, n_tgt
        return [*ends, len(src)]

    def _read_lengths(self, start: int, end: int) -> tuple[Lengths, Lengths]:
        """Return the lengths of some rows to bucket by, with control symbols and the growth."""
        src, tgt = (side.lengths_of(start, end) for side in self.corpus.sides)
        if self._growth is not None:
            src, tgt = (
                np.ceil(x * growth).astype(np.int32) for x, growth in zip((src, tgt), self._growth, strict=True)
            )
        return src + self.tokenizers.n_source_controls, tgt + 1

    def _measure_growth(self) -> list[float] | None:
        """Return the factor by which modification and subword sampling lengthen a sample of the sentences of each side.

        The number of batches is then right for a vocabulary that suits the modified text better than the corpus.
        """
        if self._modify is None and self.sample_subwords is None:
            return None
        rows = np.unique(np.linspace(0, len(self.corpus) - 1, LENGTH_SAMPLE, dtype=np.int32))
        canonical = self._read_ids(rows)
        new: tuple[Sentences, Sentences] = canonical
        if self._modify is not None:
            blocks = [slice(start, start + SAMPLE_BLOCK) for start in range(0, len(rows), SAMPLE_BLOCK)]
            src, tgt = canonical
            parts = [self._modify_pairs(self._modify, src[at], tgt[at], rows[at], 0) for at in blocks]
            new = [ids for part in parts for ids in part[0]], [ids for part in parts for ids in part[1]]
            rows = np.concatenate([part[2] for part in parts])
        if self.sample_subwords is not None:
            src, tgt = self.sample_subwords(new, rows, 0)
            new = src, tgt
        return [sum(map(len, after)) / max(1, sum(map(len, old))) for after, old in zip(new, canonical, strict=True)]


def collate_pairs(src: Sentences, tgt: Sentences, tokenizers: TokenizerPair, tag_id: int | None = None) -> Batch:
    """Add control symbols, and the tag of the sources if there is one, to sentence pairs. Right-pad them to a batch."""
    tokenizer = tokenizers.tgt
    n_controls = 1 + tokenizers.source_bos + (tag_id is not None)
    return Batch(
        src=collate_sources(src, tokenizers, tag_id),
        tgt_in=_pad(tgt, tokenizer.pad_id, first=[tokenizer.bos_id]),
        labels=_pad(tgt, tokenizer.pad_id, last=tokenizer.eos_id),
        n_src=sum(map(len, src)) + len(src) * n_controls,
        n_tgt=sum(map(len, tgt)) + len(tgt),
    )


def collate_sources(sentences: Sentences, tokenizers: TokenizerPair, tag_id: int | None = None) -> torch.Tensor:
    """Return the encoder's input [B, S]: right-padded source + EOS, after BOS if the tokenizers set it, and the tag."""
    tokenizer = tokenizers.src
    first = [tokenizer.bos_id] if tokenizers.source_bos else []
    first += [] if tag_id is None else [tag_id]
    return _pad(sentences, tokenizer.pad_id, first=first, last=tokenizer.eos_id)


def _pad(sentences: Sentences, pad_id: int, first: Sequence[int] = (), last: int | None = None) -> torch.Tensor:
    """Add the first and the last ids, if given, and right-pad: [B, longest sentence]."""
    import torch

    start = len(first)
    width = max(map(len, sentences)) + start + int(last is not None)
    padded = np.full((len(sentences), width), pad_id, np.int64)
    padded[:, :start] = first
    for row, ids in zip(padded, sentences, strict=True):
        row[start : start + len(ids)] = ids
        if last is not None:
            row[start + len(ids)] = last
    return torch.from_numpy(padded)


# --- text to translate ------------------------------------------------------------------------------------------------

MAX_LENGTH_RATIO = 1.5  # of the longest to the shortest text of a batch to translate


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
