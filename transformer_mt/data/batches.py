"""The stream of training batches: padded sentence pairs of similar length within a token budget.

The order of an epoch depends only on (seed, epoch), and the position in the stream is two integers, `StreamPosition`.
A resumed run therefore sees the same batches, with any number of processes.

Shapes: `B` sentence pairs, `S` source length, `T` target length, `N` pairs of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from transformer_mt.config.section import CountOrAuto, Section
from transformer_mt.data.block_encoding import Ids
from transformer_mt.data.bucketing import Lengths, Rows
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.sharding import ShardedBatches
from transformer_mt.data.tokenizers.subword_sampling import SubwordSamplers
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

if TYPE_CHECKING:
    import torch

Sentences = Sequence[Sequence[int] | Ids]  # ids without control symbols

LENGTH_SAMPLE = 1000  # rows used to estimate by how much subword sampling lengthens sentences


class BatchConfig(Section):
    """Batch size and gradient accumulation."""

    tokens: CountOrAuto = 4096
    """maximum padded target tokens per batch (source: twice as many); auto: the largest that fits the GPU, or 4096"""
    accumulate: int = Field(default=1, ge=1)
    """batches per optimizer step, of all processes together (gradient accumulation)"""

    @property
    def token_budget(self) -> int:
        """Return `tokens` as a number, once `auto` is resolved."""
        assert self.tokens != "auto"
        return self.tokens


@dataclass(frozen=True)
class StreamPosition:
    """Position in the stream: the next batch is batch `index` of epoch `epoch`, both counted from 0."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Batch:
    """A batch of right-padded token ids. The decoder reads BOS + target and predicts target + EOS."""

    src: torch.Tensor  # [B, S] source + EOS, or BOS + source + EOS if the tokenizers set `source_bos`
    tgt_in: torch.Tensor  # [B, T] BOS + target
    labels: torch.Tensor  # [B, T] target + EOS
    n_src: int  # source tokens without padding
    n_tgt: int  # labels without padding
    rows: Rows = field(default_factory=lambda: np.empty(0, np.int32))  # [B] rows of the encoded corpus
    epoch: int | None = None  # epoch whose subword sampling was used; None: the canonical segmentation

    def to(self, device: torch.device) -> Batch:
        """Return this batch on another device."""
        non_blocking = device.type == "cuda"  # on MPS, the source may be freed before the copy has ended
        src, tgt_in, labels = (x.to(device, non_blocking=non_blocking) for x in (self.src, self.tgt_in, self.labels))
        return replace(self, src=src, tgt_in=tgt_in, labels=labels)

    def pin_memory(self) -> Batch:
        """Return this batch in page-locked memory, which a GPU copies asynchronously."""
        src, tgt_in, labels = (x.pin_memory() for x in (self.src, self.tgt_in, self.labels))
        return replace(self, src=src, tgt_in=tgt_in, labels=labels)


class BatchStream:
    """The endless stream of the batches of a corpus, epoch after epoch."""

    def __init__(
        self,
        corpus: EncodedCorpus,
        tokenizers: TokenizerPair,
        tokens: int,
        seed: int,
        subword_samplers: SubwordSamplers | None = None,
    ) -> None:
        """Bucket a corpus into batches of at most `tokens` padded target tokens."""
        self.corpus, self.tokenizers, self.subword_samplers = corpus, tokenizers, subword_samplers
        self._growth = None if subword_samplers is None else [self._sampling_growth(side) for side in (0, 1)]
        self.bucketed = ShardedBatches(len(corpus), self._read_lengths, tokens, seed)
        self.plan = lru_cache(maxsize=2)(partial(self.bucketed.shuffled, seed))  # 2: a step may span two epochs

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.bucketed)

    def take(
        self, position: StreamPosition, count: int, rank: int = 0, world_size: int = 1
    ) -> tuple[list[Batch], StreamPosition]:
        """Build the next `count` batches and return them with the position after them.

        A rank gets only its share, batches `rank`, `rank + world_size`, ... of the `count`. The position advances by
        all `count`, so the order does not depend on the number of processes.
        """
        positions = [self.advance(position, i) for i in range(rank, count, world_size)]
        batches = [self.collate(self.plan(p.epoch)[p.index], p.epoch) for p in positions]
        return batches, self.advance(position, count)

    def rows_at(self, position: StreamPosition, count: int) -> Rows:
        """Return the corpus rows of the next `count` batches."""
        positions = [self.advance(position, i) for i in range(count)]
        return np.concatenate([self.plan(p.epoch)[p.index] for p in positions])

    def advance(self, position: StreamPosition, count: int) -> StreamPosition:
        """Return the position `count` batches later."""
        epochs, index = divmod(position.index + count, len(self))
        return StreamPosition(position.epoch + epochs, index)

    def shortest_first(self, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield one rank's share of the corpus, unshuffled and shortest pairs first."""
        return map(self.collate, islice(self.bucketed.shortest_first(), rank, None, world_size))

    def halve(self, batch: Batch) -> list[Batch]:
        """Split a batch of at least two pairs into two batches, each padded to its own longest sentence."""
        middle = (len(batch.rows) + 1) // 2
        return [self.collate(rows, batch.epoch) for rows in (batch.rows[:middle], batch.rows[middle:])]

    def collate(self, rows: Rows, epoch: int | None = None) -> Batch:
        """Build the batch of some corpus rows, with the subword sampling of `epoch` if one is given."""
        src, tgt = (self._sentences(side, rows, epoch) for side in (0, 1))
        return replace(collate_pairs(src, tgt, self.tokenizers), rows=rows, epoch=epoch)

    def _sentences(self, side: int, rows: Rows, epoch: int | None) -> Sentences:
        """Return the ids of some rows, resegmented if subword sampling is on and an epoch is given."""
        ids = self.corpus.sides[side]
        if self.subword_samplers is None or epoch is None:
            return [ids[row] for row in rows.tolist()]
        return [self.subword_samplers[side](ids[row].tolist(), epoch, side, row) for row in rows.tolist()]

    def _read_lengths(self, start: int, end: int) -> tuple[Lengths, Lengths]:
        """Return the lengths of some rows to bucket by, with control symbols and the growth by subword sampling."""
        src, tgt = (side.lengths_of(start, end) for side in self.corpus.sides)
        if self._growth is not None:
            src, tgt = (
                np.ceil(x * growth).astype(np.int32) for x, growth in zip((src, tgt), self._growth, strict=True)
            )
        return src + self.tokenizers.n_source_controls, tgt + 1

    def _sampling_growth(self, side: int) -> float:
        """Return the factor by which subword sampling lengthens the sentences of a sample."""
        rows = np.unique(np.linspace(0, len(self.corpus) - 1, LENGTH_SAMPLE, dtype=np.int32))
        canonical = sum(len(self.corpus.sides[side][row]) for row in rows.tolist())
        return sum(map(len, self._sentences(side, rows, 0))) / max(1, canonical)


def collate_pairs(src: Sentences, tgt: Sentences, tokenizers: TokenizerPair) -> Batch:
    """Add control symbols to sentence pairs and right-pad them to a batch."""
    tokenizer = tokenizers.tgt
    return Batch(
        src=collate_sources(src, tokenizers),
        tgt_in=_pad(tgt, tokenizer.pad_id, first=tokenizer.bos_id),
        labels=_pad(tgt, tokenizer.pad_id, last=tokenizer.eos_id),
        n_src=sum(map(len, src)) + len(src) * tokenizers.n_source_controls,
        n_tgt=sum(map(len, tgt)) + len(tgt),
    )


def collate_sources(sentences: Sentences, tokenizers: TokenizerPair) -> torch.Tensor:
    """Return the encoder's input [B, S]: right-padded source + EOS, after BOS if the tokenizers set it."""
    tokenizer = tokenizers.src
    first = tokenizer.bos_id if tokenizers.source_bos else None
    return _pad(sentences, tokenizer.pad_id, first=first, last=tokenizer.eos_id)


def _pad(sentences: Sentences, pad_id: int, first: int | None = None, last: int | None = None) -> torch.Tensor:
    """Add the first and the last id, if given, and right-pad: [B, longest sentence]."""
    import torch

    start = int(first is not None)
    width = max(map(len, sentences)) + start + int(last is not None)
    padded = np.full((len(sentences), width), pad_id, np.int64)
    for row, ids in zip(padded, sentences, strict=True):
        row[start : start + len(ids)] = ids
        if first is not None:
            row[0] = first
        if last is not None:
            row[start + len(ids)] = last
    return torch.from_numpy(padded)
