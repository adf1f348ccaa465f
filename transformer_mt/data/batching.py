"""Batches: right-padded, cut by a budget of tokens from sentences of like length, in an order that is a pure function.

`B` sentences, `S` source length, `T` target length.

The order of an epoch depends on (seed, epoch) alone, and the place in the stream is a small value, `Position`: so a run
that resumes, on any number of workers, sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from transformer_mt.data.encoded import EncodedCorpus, Ids
from transformer_mt.data.sampling import Resamplers
from transformer_mt.data.tokenizer import TokenizerPair
from transformer_mt.settings import Section

if TYPE_CHECKING:
    import torch

Rows = NDArray[np.int64]
PROBED = 1000  # rows by which it is told how much longer sampling makes sentences


class BatchConfig(Section):
    """How much is learnt from at once."""

    tokens: int = Field(default=4096, ge=1)
    """budget of a batch: padded target tokens (twice as many of the source); with tokenizer.sampling, about"""
    accumulate: int = Field(default=1, ge=1)
    """batches whose gradients make one step"""


@dataclass(frozen=True)
class Position:
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

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        moved = (part.to(device, non_blocking=True) for part in (self.src, self.tgt_in, self.labels))
        return Batch(*moved, n_src=self.n_src, n_tgt=self.n_tgt)


class BatchStream:
    """The batches of a corpus, epoch after epoch."""

    def __init__(
        self,
        corpus: EncodedCorpus,
        tokenizers: TokenizerPair,
        tokens: int,
        seed: int,
        resample: Resamplers | None = None,
    ) -> None:
        self.corpus, self.tokenizers = corpus, tokenizers
        self.tokens, self.seed, self.resample = tokens, seed, resample
        # every sequence carries one control symbol more than its text, or two
        self._lengths = self._expected(0) + 1 + tokenizers.source_bos, self._expected(1) + 1
        self.plan = lru_cache(maxsize=2)(self._plan)

    def take(self, position: Position, count: int) -> tuple[list[Batch], Position]:
        """The next `count` batches from a position, across the ends of epochs, and the position after them."""
        batches: list[Batch] = []
        for _ in range(count):
            plan = self.plan(position.epoch)
            batches.append(self.collate(plan[position.index], position.epoch))
            at_end = position.index + 1 == len(plan)
            position = Position(position.epoch + 1, 0) if at_end else Position(position.epoch, position.index + 1)
        return batches, position

    def in_order(self) -> Iterator[Batch]:
        """Every pair once, shortest first, without shuffling: for validation."""
        for rows in cut_batches(*self._lengths, self.tokens, np.arange(len(self.corpus))):
            yield self.collate(rows)

    def collate(self, rows: Rows, epoch: int | None = None) -> Batch:
        """Pad the pairs of these rows to one batch; of an epoch of training, in that epoch's segmentation."""
        src, tgt = (self._sentences(side, rows, epoch) for side in (0, 1))
        tokenizer = self.tokenizers.tgt
        return Batch(
            src=source_batch(src, self.tokenizers),
            tgt_in=_pad(tgt, tokenizer.pad_id, first=tokenizer.bos_id),
            labels=_pad(tgt, tokenizer.pad_id, last=tokenizer.eos_id),
            n_src=sum(map(len, src)) + len(src) * (1 + self.tokenizers.source_bos),
            n_tgt=sum(map(len, tgt)) + len(tgt),
        )

    def _sentences(self, side: int, rows: Rows, epoch: int | None) -> Sequence[Sequence[int] | Ids]:
        held = self.corpus.tgt if side else self.corpus.src
        if self.resample is None or epoch is None:
            return [held[row] for row in rows.tolist()]
        return [self.resample[side](held[row].tolist(), epoch, side, row) for row in rows.tolist()]

    def _expected(self, side: int) -> Rows:
        """The lengths by which batches are cut: with sampling, longer by as much as some rows have become. [N]"""
        held = self.corpus.tgt if side else self.corpus.src
        if self.resample is None:
            return held.lengths
        rows = np.unique(np.linspace(0, len(held) - 1, PROBED, dtype=np.int64))
        before, after = int(held.lengths[rows].sum()), sum(map(len, self._sentences(side, rows, 0)))
        return np.ceil(held.lengths * (after / max(1, before))).astype(np.int64)

    def _plan(self, epoch: int) -> list[Rows]:
        """The rows of each batch of an epoch: a pure function of (seed, epoch)."""
        random = np.random.default_rng([self.seed, epoch])
        batches = cut_batches(*self._lengths, self.tokens, random.permutation(len(self.corpus)))
        return [batches[i] for i in random.permutation(len(batches))]


def source_batch(sentences: Sequence[Sequence[int] | Ids], tokenizers: TokenizerPair) -> torch.Tensor:
    """Source ids as the encoder wants them: with EOS, and BOS where the tokenizers say so, right-padded. [B, S]"""
    tokenizer = tokenizers.src
    first = tokenizer.bos_id if tokenizers.source_bos else None
    return _pad(sentences, tokenizer.pad_id, first=first, last=tokenizer.eos_id)


def cut_batches(src_lengths: Rows, tgt_lengths: Rows, tokens: int, order: Rows) -> list[Rows]:
    """Sort the rows by target and source length, ties in the given order, and cut them at the budget.

    A batch of B rows has B * T <= tokens and B * S <= 2 * tokens; a row that alone is longer is a batch of its own.
    """
    order = order[np.lexsort((src_lengths[order], tgt_lengths[order]))]
    src, tgt = src_lengths[order], tgt_lengths[order]
    batches: list[Rows] = []
    start = 0
    while start < len(order):
        most = max(1, tokens // int(tgt[start]))  # targets only get longer from here on
        count = np.arange(1, min(most, len(order) - start) + 1)
        window = slice(start, start + len(count))
        fits = (count * tgt[window] <= tokens) & (count * np.maximum.accumulate(src[window]) <= 2 * tokens)
        size = max(1, int(fits.sum()))  # both products only grow, so what fits is a beginning
        batches.append(order[start : start + size])
        start += size
    return batches


def _pad(
    sequences: Sequence[Sequence[int] | Ids], pad: int, first: int | None = None, last: int | None = None
) -> torch.Tensor:
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
