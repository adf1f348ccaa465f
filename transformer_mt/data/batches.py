"""Batches: right-padded, cut by a budget of tokens from sentences of like length, in an order that is a pure function.

`B` sentences, `S` source length, `T` target length.

The order of an epoch depends only on (seed, epoch), and the position in the stream is a small value, `StreamPosition`.
A resumed run therefore sees the same batches, on any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from transformer_mt.config.section import CountOrAuto, Section
from transformer_mt.data.bucketing import BucketedBatches, Plan, Rows
from transformer_mt.data.encoding import EncodedCorpus, Ids
from transformer_mt.data.tokenizers.subword_sampling import SubwordSamplers
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

if TYPE_CHECKING:
    import torch

Sentences = Sequence[Sequence[int] | Ids]  # in ids, without control symbols

PROBED = 1000  # rows by which it is told how much longer sampling makes sentences


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
    """The place in the stream of batches: the next batch is number `index` of epoch `epoch`, both from 0."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Batch:
    """Padded ids. The decoder reads BOS + target and has to predict target + EOS."""

    src: torch.Tensor  # [B, S] source + EOS, with `tokenizer.source_bos` BOS + source + EOS
    tgt_in: torch.Tensor  # [B, T] BOS + target
    labels: torch.Tensor  # [B, T] target + EOS
    n_src: int  # source ids that are not padding
    n_tgt: int  # labels that are not padding
    rows: Rows = field(default_factory=lambda: np.empty(0, np.int32))  # of the encoded corpus. [B]
    epoch: int | None = None  # of training, in whose segmentation the pairs stand

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        goes_on = device.type == "cuda"  # Apple's copy would read what may have been freed by then
        src, tgt_in, labels = (part.to(device, non_blocking=goes_on) for part in (self.src, self.tgt_in, self.labels))
        return replace(self, src=src, tgt_in=tgt_in, labels=labels)

    def pin_memory(self) -> Batch:
        """The same batch in memory that a GPU can read while the CPU goes on."""
        src, tgt_in, labels = (part.pin_memory() for part in (self.src, self.tgt_in, self.labels))
        return replace(self, src=src, tgt_in=tgt_in, labels=labels)


class BatchStream:
    """The batches of a corpus, epoch after epoch."""

    def __init__(
        self,
        corpus: EncodedCorpus,
        tokenizers: TokenizerPair,
        tokens: int,
        seed: int,
        subword_samplers: SubwordSamplers | None = None,
    ) -> None:
        self.corpus, self.tokenizers = corpus, tokenizers
        self.seed, self.subword_samplers = seed, subword_samplers
        # every sequence carries one control symbol more than its text, or two
        self.bucketed = BucketedBatches(self._expected(0) + tokenizers.n_source_controls, self._expected(1) + 1, tokens)
        self.plan = lru_cache(maxsize=2)(self._plan)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.bucketed)

    def take(
        self, position: StreamPosition, count: int, rank: int = 0, size: int = 1
    ) -> tuple[list[Batch], StreamPosition]:
        """The next `count` batches from a position, across the ends of epochs, and the position after them.

        Of `size` processes that share them, number `rank` gets those numbered rank, rank + size, ... of them, and the
        position moves by all: so the order does not depend on the number of processes.
        """
        taken = [self.advance(position, i) for i in range(rank, count, size)]
        batches = [self.collate(self.plan(place.epoch)[place.index], place.epoch) for place in taken]
        return batches, self.advance(position, count)

    def rows_at(self, position: StreamPosition, count: int) -> Rows:
        """The pairs of the next `count` batches from a position."""
        places = [self.advance(position, i) for i in range(count)]
        return np.concatenate([self.plan(place.epoch)[place.index] for place in places])

    def advance(self, position: StreamPosition, count: int) -> StreamPosition:
        """The position `count` batches on."""
        epochs, index = divmod(position.index + count, len(self))
        return StreamPosition(position.epoch + epochs, index)

    def shortest_first(self, share: slice = slice(None)) -> Iterator[Batch]:
        """Every pair once, shortest first, without shuffling: for validation. Of several processes, each has a share of
        the batches."""
        plan = self.bucketed.shortest_first()
        return (self.collate(plan[i]) for i in range(len(plan))[share])

    def halve(self, batch: Batch) -> list[Batch]:
        """The pairs of a batch, of two at least, in two batches, each padded no more than it must be."""
        middle = (len(batch.rows) + 1) // 2
        return [self.collate(rows, batch.epoch) for rows in (batch.rows[:middle], batch.rows[middle:])]

    def collate(self, rows: Rows, epoch: int | None = None) -> Batch:
        """Pad the pairs of these rows to one batch; of an epoch of training, in that epoch's segmentation."""
        src, tgt = (self._sentences(side, rows, epoch) for side in (0, 1))
        return replace(collate_pairs(src, tgt, self.tokenizers), rows=rows, epoch=epoch)

    def _sentences(self, side: int, rows: Rows, epoch: int | None) -> Sentences:
        held = self.corpus.tgt if side else self.corpus.src
        if self.subword_samplers is None or epoch is None:
            return [held[row] for row in rows.tolist()]
        return [self.subword_samplers[side](held[row].tolist(), epoch, side, row) for row in rows.tolist()]

    def _expected(self, side: int) -> NDArray[np.int32]:
        """The lengths by which batches are cut: with sampling, longer by as much as some rows have become. [N]"""
        held = self.corpus.tgt if side else self.corpus.src
        if self.subword_samplers is None:
            return held.lengths
        rows = np.unique(np.linspace(0, len(held) - 1, PROBED, dtype=np.int32))
        before, after = int(held.lengths[rows].sum()), sum(map(len, self._sentences(side, rows, 0)))
        return np.ceil(held.lengths * (after / max(1, before))).astype(np.int32)

    def _plan(self, epoch: int) -> Plan:
        return self.bucketed.shuffled(self.seed, epoch)


def collate_pairs(src: Sentences, tgt: Sentences, tokenizers: TokenizerPair) -> Batch:
    """Pairs of ids with their control symbols, right-padded."""
    tokenizer = tokenizers.tgt
    return Batch(
        src=collate_sources(src, tokenizers),
        tgt_in=_pad(tgt, tokenizer.pad_id, first=tokenizer.bos_id),
        labels=_pad(tgt, tokenizer.pad_id, last=tokenizer.eos_id),
        n_src=sum(map(len, src)) + len(src) * tokenizers.n_source_controls,
        n_tgt=sum(map(len, tgt)) + len(tgt),
    )


def collate_sources(sentences: Sentences, tokenizers: TokenizerPair) -> torch.Tensor:
    """Source ids as the encoder wants them: with EOS, and BOS where the tokenizers say so, right-padded. [B, S]"""
    tokenizer = tokenizers.src
    first = tokenizer.bos_id if tokenizers.source_bos else None
    return _pad(sentences, tokenizer.pad_id, first=first, last=tokenizer.eos_id)


def _pad(sequences: Sentences, pad: int, first: int | None = None, last: int | None = None) -> torch.Tensor:
    import torch

    before = int(first is not None)
    width = max(map(len, sequences)) + before + int(last is not None)
    padded = np.full((len(sequences), width), pad, np.int64)
    for row, ids in zip(padded, sequences, strict=True):
        row[before : before + len(ids)] = ids
        if first is not None:
            row[0] = first
        if last is not None:
            row[before + len(ids)] = last
    return torch.from_numpy(padded)
