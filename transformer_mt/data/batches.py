"""Batches: plan them, read and modify their pairs, pad them, and prefetch the next steps of a training.

The plan reads only lengths, and gives the corpus rows of the pairs of each batch. It is a pure function of (seed,
epoch), and a position in it is a few integers, `StreamPosition`. A resumed run therefore sees the same batches, with
any number of processes. `BatchStream.take`, in the last section, builds the batches of a step. `BucketedBatches` and
`collate_pairs` also serve the scoring of given translations.

Shapes: `N` pairs, `M` batches, `K` sources of pairs; `B` pairs of one batch, `S` source length, `T` target length.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from transformer_mt.config.section import CountOrAuto, Section
from transformer_mt.data.corpus import choose_evenly
from transformer_mt.data.data_config import DataConfig
from transformer_mt.data.encoding import EncodedCorpus, Lengths, Rows, Sentences
from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.runs.records import Count

if TYPE_CHECKING:
    import torch

Shapes = NDArray[np.int64]
"""Number of pairs, source length and target length of each batch. [M, 3]."""


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


# --- buckets ----------------------------------------------------------------------------------------------------------
# Sorting by length and cutting into batches happen once. Each epoch shuffles the pairs of equal source and target
# length among themselves, and then the batches. So the number of batches and their shapes are the same in every epoch.


class BucketedBatches:
    """Pairs sorted by length and cut into batches at a token budget.

    A batch of B pairs satisfies B * T <= tokens and B * S <= 2 * tokens. A pair above the budget is a batch of one.
    """

    def __init__(self, src_lengths: Lengths, tgt_lengths: Lengths, tokens: int, first_row: int = 0) -> None:
        """Sort and cut pairs of these lengths, which include control symbols. The first pair is row `first_row`."""
        longest = max(src_lengths.max(initial=0), tgt_lengths.max(initial=0))  # 0: no pair of the source is held out
        key_type = np.uint16 if longest < 2**16 else np.int64  # 16-bit keys sort fastest
        # Source lengths rise and fall in turn, so they stay similar in a batch that spans two target lengths.
        src_key = np.where(tgt_lengths % 2 == 0, src_lengths, longest - src_lengths)
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
        generator = np.random.default_rng((seed, epoch))
        rows: Rows = np.array(self.rows)
        for start, end in pairwise(self.length_bounds.tolist()):
            generator.shuffle(rows[start:end])
        batches = self._cut(rows)
        return [batches[i] for i in generator.permutation(len(self)).tolist()]

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


# --- padded batches ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """A batch of right-padded token ids. The decoder reads BOS + target and predicts target + EOS.

    With a tag (`data.train.tag`), the first token of the source, of the target, or of both is a symbol of it.
    """

    src: torch.Tensor  # [B, S] source + EOS, or BOS + source + EOS if the tokenizers set `source_bos`
    tgt_in: torch.Tensor  # [B, T] BOS + target
    labels: torch.Tensor  # [B, T] target + EOS
    n_src: int  # source tokens without padding
    n_tgt: int  # labels without padding
    rows: Rows = field(default_factory=lambda: np.empty(0, np.int32))  # [B] rows of the encoded corpus
    source_index: int = 0  # index of the source that all its pairs come from
    place: tuple[int, int] = (0, 0)  # index of the planned batch in the step, and of the part in this batch

    @property
    def model_inputs(self) -> tuple[object, ...]:
        """Return the arguments of the model's forward pass."""
        return self.src, self.tgt_in

    @property
    def n_labels(self) -> int | None:
        """Return the number of labels without padding. None: compute logits of padding too, so that sizes are fixed."""
        return self.n_tgt

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

    def halve(self, src_pad: int, tgt_pad: int) -> list[Batch]:
        """Split at least two pairs into two batches, each padded to its own longest sentence."""
        middle = (len(self.rows) + 1) // 2
        n_src, n_tgt = (self.src != src_pad).sum(1), (self.labels != tgt_pad).sum(1)  # [B]
        return [
            replace(
                self,
                src=self.src[part, : int(n_src[part].max())],
                tgt_in=self.tgt_in[part, : int(n_tgt[part].max())],
                labels=self.labels[part, : int(n_tgt[part].max())],
                n_src=int(n_src[part].sum()),
                n_tgt=int(n_tgt[part].sum()),
                rows=self.rows[part],
            )
            for part in (slice(middle), slice(middle, None))
        ]


def collate_pairs(src: Sentences, tgt: Sentences, tokenizers: TokenizerPair, tag: str | None = None) -> Batch:
    """Add control symbols, and those of a tag if there is one, to sentence pairs. Right-pad them to a batch."""
    tokenizer = tokenizers.tgt
    src_tag, tgt_tag = tokenizers.tag_ids(tag)
    return Batch(
        src=collate_sources(src, tokenizers, src_tag),
        tgt_in=_pad(tgt, tokenizer.pad_id, first=[tokenizer.bos_id, *tgt_tag]),
        labels=_pad(tgt, tokenizer.pad_id, first=tgt_tag, last=tokenizer.eos_id),
        n_src=sum(map(len, src)) + len(src) * (tokenizers.source_eos + tokenizers.source_bos + len(src_tag)),
        n_tgt=sum(map(len, tgt)) + len(tgt) * (1 + len(tgt_tag)),
    )


def collate_sources(sentences: Sentences, tokenizers: TokenizerPair, tag_ids: Sequence[int] = ()) -> torch.Tensor:
    """Return the encoder's input [B, S]: BOS if the tokenizers set it, the tag, the source, and EOS, right-padded."""
    tokenizer = tokenizers.src
    first = [tokenizer.bos_id] if tokenizers.source_bos else []
    last = tokenizer.eos_id if tokenizers.source_eos else None
    return _pad(sentences, tokenizer.pad_id, first=[*first, *tag_ids], last=last)


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


# --- reading ----------------------------------------------------------------------------------------------------------


class EncodedPairs(NamedTuple):
    """Ids of some pairs of one source, and the corpus row of each pair."""

    src: Sentences
    tgt: Sentences
    rows: Rows


class BatchReader:
    """Reads pairs of an encoded corpus, and builds batches of them."""

    def __init__(self, corpus: EncodedCorpus, tokenizers: TokenizerPair, tags: Sequence[str | None] = (None,)) -> None:
        """Read pairs of a corpus. `tags` has the tag of each source."""
        self.corpus, self.tokenizers, self.tags = corpus, tokenizers, tags
        self.bounds: list[int] = corpus.source_bounds().tolist()  # first row of each source, and the end of the last

    def read_lengths(self, start: int, end: int, growth: Sequence[float] = (1.0, 1.0)) -> tuple[Lengths, Lengths]:
        """Return the lengths of some rows, times the growth of each side, with control symbols."""
        src, tgt = (
            np.ceil(side.lengths_of(start, end) * factor).astype(np.int32)
            for side, factor in zip(self.corpus.sides, growth, strict=True)
        )
        return src + self.tokenizers.n_source_controls, tgt + 1 + self.tokenizers.n_target_tags

    def read(self, rows: Rows) -> EncodedPairs:
        """Read the ids of some rows."""
        src, tgt = self.corpus.sides
        return EncodedPairs([src[row] for row in rows.tolist()], [tgt[row] for row in rows.tolist()], rows)

    def collate(self, pairs: EncodedPairs) -> Batch:
        """Build a batch of some pairs of one source."""
        source = bisect_right(self.bounds, int(pairs.rows[0])) - 1
        batch = collate_pairs(pairs.src, pairs.tgt, self.tokenizers, self.tags[source])
        return replace(batch, rows=pairs.rows, source_index=source)


# --- modifying --------------------------------------------------------------------------------------------------------

LENGTH_SAMPLE = 1000  # rows used to estimate by how much modification and subword sampling lengthen sentences
SAMPLE_BLOCK = 20  # rows of this sample that are modified together
MODIFICATION_STREAM = 0x6D6F64  # separates the random numbers of modifications from others with the same seed


Modify = Callable[[Sequence[Pair], random.Random], Sequence[Pair]]
"""Modifies pairs at random. Returns the same number of pairs, in the same order."""


SampleSubwords = Callable[[Sequence[Sentences], Rows, int], Sequence[Sentences]]
"""Random segmentation into other subwords: takes the ids of sources and targets, the corpus rows of the pairs and the
epoch, and returns the new ids, a pure function of rows and epoch."""


@dataclass(frozen=True)
class BatchModifier:
    """Changes the pairs of a batch, and then samples their subwords: a pure function of (seed, epoch, rows).

    A changed pair that would be empty, have the unknown token, or have more than `max_length` tokens on one side with
    the end symbol, stays as it was.
    """

    tokenizers: TokenizerPair
    tokens: int  # padded target tokens of a batch
    seed: int
    max_length: int
    modify: Modify | None = None
    sample: SampleSubwords | None = None

    def __call__(self, pairs: EncodedPairs, epoch: int) -> list[EncodedPairs]:
        """Return the pairs of a batch, changed. If modified pairs exceed the token budget, they are several parts."""
        pairs = self._change(pairs, epoch)
        if self.modify is None or len(self._cut(pairs)) == 1:
            return [pairs]
        src, tgt, rows = pairs
        order = sorted(range(len(rows)), key=lambda i: (len(tgt[i]), len(src[i])))  # less padding, so fewer parts
        return self._cut(EncodedPairs([src[i] for i in order], [tgt[i] for i in order], rows[order]))

    def measure_growth(self, reader: BatchReader) -> list[float]:
        """Return the factor by which a sample of the sentences of each side gets longer.

        The plan scales lengths by it, so its number of batches is right although modified text has more tokens.
        """
        rows = np.array(choose_evenly(range(len(reader.corpus)), LENGTH_SAMPLE), np.int32)
        before = [reader.read(rows[start : start + SAMPLE_BLOCK]) for start in range(0, len(rows), SAMPLE_BLOCK)]
        after = [self._change(block, 0) for block in before]
        old, new = (
            np.sum([[sum(map(len, block.src)), sum(map(len, block.tgt))] for block in blocks], axis=0)
            for blocks in (before, after)
        )
        return (new / np.maximum(1, old)).tolist()

    def _change(self, pairs: EncodedPairs, epoch: int) -> EncodedPairs:
        if self.modify is not None:
            pairs = self._modify_texts(self.modify, pairs, epoch)
        if self.sample is not None:
            src, tgt = self.sample((pairs.src, pairs.tgt), pairs.rows, epoch)
            pairs = EncodedPairs(src, tgt, pairs.rows)
        return pairs

    def _modify_texts(self, modify: Modify, pairs: EncodedPairs, epoch: int) -> EncodedPairs:
        src, tgt, rows = pairs
        tokenizers = self.tokenizers
        texts = [
            tokenizer.decode([[*map(int, ids)] for ids in sentences])
            for tokenizer, sentences in ((tokenizers.src, src), (tokenizers.tgt, tgt))
        ]
        old = [*zip(*texts, strict=True)]
        modified = modify(old, random.Random(f"{self.seed} {epoch} {rows[0]} {MODIFICATION_STREAM}"))
        changed = [i for i, pair in enumerate(modified) if pair != old[i]]
        encoded = zip(
            tokenizers.src.encode([modified[i][0] for i in changed]),
            tokenizers.tgt.encode([modified[i][1] for i in changed]),
            strict=True,
        )
        new_src, new_tgt = [*src], [*tgt]
        for i, ids in zip(changed, encoded, strict=True):
            if all(
                0 < len(side) < self.max_length and tokenizer.unk_id not in side
                for tokenizer, side in zip((tokenizers.src, tokenizers.tgt), ids, strict=True)
            ):
                new_src[i], new_tgt[i] = ids
        return EncodedPairs(new_src, new_tgt, rows)

    def _cut(self, pairs: EncodedPairs) -> list[EncodedPairs]:
        """Cut pairs into parts that are within the token budget. A pair above the budget forms a separate part."""
        bounds = [0]
        longest_src = longest_tgt = 0
        for i, (src, tgt) in enumerate(zip(pairs.src, pairs.tgt, strict=True)):
            n_src = len(src) + self.tokenizers.n_source_controls
            n_tgt = len(tgt) + 1 + self.tokenizers.n_target_tags
            longest_src, longest_tgt = max(longest_src, n_src), max(longest_tgt, n_tgt)
            count = i + 1 - bounds[-1]
            if count > 1 and (count * longest_tgt > self.tokens or count * longest_src > 2 * self.tokens):
                bounds.append(i)
                longest_src, longest_tgt = n_src, n_tgt
        cuts = [slice(*cut) for cut in pairwise([*bounds, len(pairs.rows)])]
        return [EncodedPairs(pairs.src[cut], pairs.tgt[cut], pairs.rows[cut]) for cut in cuts]


# --- the stream -------------------------------------------------------------------------------------------------------


class StepBatches(NamedTuple):
    """One rank's batches of an optimizer step, and the position of the next step."""

    batches: list[Batch]
    position: StreamPosition


class BatchStream:
    """The batches of a corpus: planned, read, and in a training modified."""

    def __init__(self, plan: BatchPlan, reader: BatchReader, modifier: BatchModifier | None = None) -> None:
        self.plan, self.reader, self.modifier = plan, reader, modifier

    @classmethod
    def plain(
        cls,
        corpus: EncodedCorpus,
        tokenizers: TokenizerPair,
        tokens: int,
        seed: int,
        tags: Sequence[str | None] = (None,),
    ) -> BatchStream:
        """Return a stream of batches without modification and mixture, of at most `tokens` padded target tokens."""
        reader = BatchReader(corpus, tokenizers, tags)
        return cls(BatchPlan(reader.bounds, reader.read_lengths, tokens, seed), reader)

    def take(self, position: StreamPosition, count: int, rank: int = 0, world_size: int = 1) -> StepBatches:
        """Build the batches of a step, which are the next `count` of the plan.

        A rank gets only its share, batches `rank`, `rank + world_size`, ... of the `count`. The position advances by
        all `count`, so the order does not depend on the number of processes. A batch whose modified pairs exceed the
        token budget comes in several parts.
        """
        planned, after = self.plan.take(position, count)
        batches = [
            replace(part, place=(number, i))
            for number in range(rank, count, world_size)
            for i, part in enumerate(self._build(self.plan.rows(planned[number]), planned[number].epoch))
        ]
        return StepBatches(batches, after)

    def _build(self, rows: Rows, epoch: int) -> list[Batch]:
        pairs = self.reader.read(rows)
        parts = [pairs] if self.modifier is None else self.modifier(pairs, epoch)
        return [*map(self.reader.collate, parts)]

    def shortest_first(self, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield one rank's share of the corpus, unmodified and shortest pairs of each source first."""
        for rows in islice(self.plan.shortest_first(), rank, None, world_size):
            yield self.reader.collate(self.reader.read(rows))

    def batch_of_shape(self, number: int) -> Batch:
        """Return the batch to which row `number` of the shapes belongs, or its largest part, as it is in epoch 0."""
        return max(self._build(self.plan.rows_of_shape(number), 0), key=lambda batch: batch.n_padded)

    def describe_lines(self, position: StreamPosition, count: int) -> str:
        """Return the first few `file:line` of the pairs in the next `count` batches."""
        planned, _ = self.plan.take(position, count)
        return self.reader.corpus.describe_lines(np.concatenate([*map(self.plan.rows, planned)]))


# --- prefetching ------------------------------------------------------------------------------------------------------

PREFETCHED_STEPS = 2  # optimizer steps whose batches are built ahead


class Prefetcher:
    """Context manager that builds the batches of upcoming optimizer steps in a background thread."""

    def __init__(
        self,
        build: Callable[[StreamPosition], StepBatches],
        advance: Callable[[StreamPosition], StreamPosition],
    ) -> None:
        """Prefetch steps, which `build` builds from their position. `advance` returns the position of the next one."""
        self._build, self._advance = build, advance
        self._pool = ThreadPoolExecutor(1, "batches")
        self._steps: dict[StreamPosition, Future[StepBatches]] = {}

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, position: StreamPosition) -> StepBatches:
        """Return the step at a position, or raise the error of building it. Submit the following steps."""
        starts = [position]
        for _ in range(PREFETCHED_STEPS):
            starts.append(self._advance(starts[-1]))
        self._steps = {start: self._steps.get(start) or self._pool.submit(self._build, start) for start in starts}
        return self._steps[position].result()
