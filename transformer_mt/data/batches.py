"""The stream of training batches: padded sentence pairs of similar length within a token budget.

The order of an epoch depends only on (seed, epoch), and the position in the stream is a small value, `StreamPosition`.
A resumed run therefore sees the same batches, on any number of processes.

Shapes: `B` sentence pairs, `S` source length, `T` target length, `N` pairs of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from transformer_mt.config.section import CountOrAuto, Section
from transformer_mt.data.bucketing import BatchPlan, BucketedBatches, Lengths, Rows
from transformer_mt.data.encoding import EncodedCorpus, EncodedSide, Ids
from transformer_mt.data.tokenizers.subword_sampling import SubwordSamplers
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

if TYPE_CHECKING:
    import torch

Sentences = Sequence[Sequence[int] | Ids]  # ids without control symbols

LENGTH_SAMPLE = 1000  # rows from which the growth by subword sampling is estimated


class BatchConfig(Section):
    """How much is learnt from at once."""

    tokens: CountOrAuto = 4096
    """padded target tokens of a batch (source: twice as many; sampling: about); auto: what a GPU holds, a CPU likes"""
    accumulate: int = Field(default=1, ge=1)
    """batches whose gradients make one step"""

    @property
    def budget(self) -> int:
        """`tokens`, after `auto` was given its meaning."""
        assert self.tokens != "auto"
        return self.tokens


@dataclass(frozen=True)
class StreamPosition:
    """Position in the stream: the next batch is batch `index` of epoch `epoch`, both counted from 0."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Batch:
    """Right-padded ids. The decoder reads BOS + target and predicts target + EOS."""

    src: torch.Tensor  # [B, S] source + EOS, or BOS + source + EOS if the tokenizers set `source_bos`
    tgt_in: torch.Tensor  # [B, T] BOS + target
    labels: torch.Tensor  # [B, T] target + EOS
    n_src: int  # source ids without padding
    n_tgt: int  # labels without padding
    rows: Rows = field(default_factory=lambda: np.empty(0, np.int32))  # [B] rows of the encoded corpus
    epoch: int | None = None  # epoch whose subword segmentation was used; None: the canonical segmentation

    def to(self, device: torch.device) -> Batch:
        """Return this batch on another device."""
        non_blocking = device.type == "cuda"  # on MPS, the source may be freed before the copy has ended
        src, tgt_in, labels = (t.to(device, non_blocking=non_blocking) for t in (self.src, self.tgt_in, self.labels))
        return replace(self, src=src, tgt_in=tgt_in, labels=labels)

    def pin_memory(self) -> Batch:
        """Return this batch in page-locked memory, which a GPU copies asynchronously."""
        src, tgt_in, labels = (tensor.pin_memory() for tensor in (self.src, self.tgt_in, self.labels))
        return replace(self, src=src, tgt_in=tgt_in, labels=labels)


class BatchStream:
    """The endless stream of a corpus' batches, epoch after epoch."""

    def __init__(
        self,
        corpus: EncodedCorpus,
        tokenizers: TokenizerPair,
        tokens: int,
        seed: int,
        subword_samplers: SubwordSamplers | None = None,
    ) -> None:
        """Bucket a corpus into batches of at most `tokens` padded target tokens."""
        self.corpus, self.tokenizers = corpus, tokenizers
        self.seed, self.subword_samplers = seed, subword_samplers
        src_lengths, tgt_lengths = (self._expected_lengths(side) for side in (0, 1))
        self.bucketed = BucketedBatches(src_lengths + tokenizers.n_source_controls, tgt_lengths + 1, tokens)
        self.plan = lru_cache(maxsize=2)(self._plan)  # a step may span the end of an epoch

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
        places = [self.advance(position, i) for i in range(rank, count, world_size)]
        batches = [self.collate(self.plan(place.epoch)[place.index], place.epoch) for place in places]
        return batches, self.advance(position, count)

    def rows_at(self, position: StreamPosition, count: int) -> Rows:
        """Return the corpus rows of the next `count` batches."""
        places = [self.advance(position, i) for i in range(count)]
        return np.concatenate([self.plan(place.epoch)[place.index] for place in places])

    def advance(self, position: StreamPosition, count: int) -> StreamPosition:
        """Return the position `count` batches later."""
        epochs, index = divmod(position.index + count, len(self))
        return StreamPosition(position.epoch + epochs, index)

    def shortest_first(self, share: slice = slice(None)) -> Iterator[Batch]:
        """Yield every pair once, unshuffled and shortest first. `share` selects the batches of one rank."""
        plan = self.bucketed.shortest_first()
        return (self.collate(plan[i]) for i in range(len(plan))[share])

    def halve(self, batch: Batch) -> list[Batch]:
        """Split a batch of at least two pairs into two batches, each padded to its own longest sentence."""
        middle = (len(batch.rows) + 1) // 2
        return [self.collate(rows, batch.epoch) for rows in (batch.rows[:middle], batch.rows[middle:])]

    def collate(self, rows: Rows, epoch: int | None = None) -> Batch:
        """Pad the pairs of some corpus rows to a batch. `epoch` selects that epoch's subword segmentation."""
        src, tgt = (self._sentences(side, rows, epoch) for side in (0, 1))
        return replace(collate_pairs(src, tgt, self.tokenizers), rows=rows, epoch=epoch)

    def _side(self, side: int) -> EncodedSide:
        return self.corpus.tgt if side else self.corpus.src

    def _sentences(self, side: int, rows: Rows, epoch: int | None) -> Sentences:
        """Return the ids of some rows, resegmented by subword sampling if it is on and an epoch is given."""
        ids = self._side(side)
        if self.subword_samplers is None or epoch is None:
            return [ids[row] for row in rows.tolist()]
        return [self.subword_samplers[side](ids[row].tolist(), epoch, side, row) for row in rows.tolist()]

    def _expected_lengths(self, side: int) -> Lengths:
        """Return the lengths [N] to bucket by. Subword sampling lengthens sentences by a measured factor."""
        lengths = self._side(side).lengths
        if self.subword_samplers is None:
            return lengths
        rows = np.unique(np.linspace(0, len(lengths) - 1, LENGTH_SAMPLE, dtype=np.int32))
        canonical, sampled = int(lengths[rows].sum()), sum(map(len, self._sentences(side, rows, 0)))
        return np.ceil(lengths * (sampled / max(1, canonical))).astype(np.int32)

    def _plan(self, epoch: int) -> BatchPlan:
        return self.bucketed.shuffled(self.seed, epoch)


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
    """Return the encoder's input [B, S]: right-padded source + EOS, with BOS first if the tokenizers set it."""
    tokenizer = tokenizers.src
    first = tokenizer.bos_id if tokenizers.source_bos else None
    return _pad(sentences, tokenizer.pad_id, first=first, last=tokenizer.eos_id)


def _pad(sentences: Sentences, pad_id: int, first: int | None = None, last: int | None = None) -> torch.Tensor:
    """Right-pad sentences after adding a first and a last id, where given."""
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
