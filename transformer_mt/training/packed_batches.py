"""Packed batches: the sentences of several padded batches, without padding, in one forward and backward pass.

A GPU needs tens of thousands of tokens per pass to be fast. Micro-batches of different lengths would need much padding
to be computed together; packed, they need none. See model/packing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model.packing import Packing, PackingPair

MAX_PASS_POSITIONS = 1 << 17
"""Maximum source and target positions of a pass over several batches. A GPU is not faster with more."""

MIN_TOKEN_STEP, MIN_SENTENCES, MIN_LONGEST = 1024, 256, 64
"""Minimum sizes of `PackedBatch.pad`. Smaller ones would save little time, and need more CUDA graphs."""


@dataclass(frozen=True)
class PackedBatch(Batch):
    """A batch whose sentences form one row: all tensors are [1, tokens]."""

    packings: PackingPair = field(kw_only=True)
    n_positions_before_packing: int = field(kw_only=True)  # source and target, with padding
    is_padded: bool = field(default=False, kw_only=True)  # ends with the padding of `pad`

    @property
    def model_inputs(self) -> tuple[object, ...]:
        """Return the arguments of the model's forward pass."""
        return self.src, self.tgt_in, self.packings

    @property
    def n_labels(self) -> int | None:
        """Return the number of labels, or None after `pad`, because CUDA graphs need fixed sizes."""
        return None if self.is_padded else self.n_tgt

    @property
    def n_padded(self) -> int:
        """Return the number of source and target positions before packing, with padding."""
        return self.n_positions_before_packing

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to all tensors."""
        return replace(
            self,
            src=function(self.src),
            tgt_in=function(self.tgt_in),
            labels=function(self.labels),
            packings=PackingPair(*(packing.map_tensors(function) for packing in self.packings)),
        )

    def pad(self, src_pad: int, tgt_pad: int, max_length: int | None) -> PackedBatch:
        """Append pairs of padding tokens of at most `max_length`, so that the batches of a training have few sizes.

        The number of tokens is rounded up by at most a sixteenth, or `MIN_TOKEN_STEP`. The number of sentences and the
        greatest length are rounded up to a power of two. A pair is empty, or has tokens on both sides, because the
        attention kernel fails for a sentence without keys or queries.
        """
        longest = _next_power_of_two(max(packing.longest for packing in self.packings), MIN_LONGEST)
        longest = min(longest, max_length or longest)
        n_tokens = self.n_src, self.n_tgt
        step = max(MIN_TOKEN_STEP, (1 << max(n_tokens).bit_length()) // 32)
        least = -(-step // (longest - 1))  # so much padding on both sides is enough for a token in each pair
        n_added = [least + -(n + least) % step for n in n_tokens]
        n_pairs = -(-max(n_added) // longest)
        n_sentences = len(self.packings.src.offsets) - 1 + n_pairs
        n_empty = _next_power_of_two(n_sentences, MIN_SENTENCES) - n_sentences
        src, tgt = (
            packing.append([(n + i) // n_pairs for i in range(n_pairs)] + n_empty * [0], longest)
            for packing, n in zip(self.packings, n_added, strict=True)
        )
        return replace(
            self,
            src=F.pad(self.src, (0, n_added[0]), value=src_pad),
            tgt_in=F.pad(self.tgt_in, (0, n_added[1]), value=tgt_pad),
            labels=F.pad(self.labels, (0, n_added[1]), value=tgt_pad),
            packings=PackingPair(src, tgt),
            is_padded=True,
        )

    def halve(self, src_pad: int, tgt_pad: int) -> list[Batch]:
        """Split at least two pairs into two batches without padding, with about the same number of target tokens."""
        n_pairs = len(self.rows)
        middle = int(torch.searchsorted(self.packings.tgt.offsets, self.n_tgt // 2))
        middle = min(max(1, middle), n_pairs - 1)
        return [self._take_pairs(0, middle), self._take_pairs(middle, n_pairs)]

    def _take_pairs(self, first: int, end: int) -> Batch:
        offsets = [cast("list[int]", packing.offsets.tolist())[first : end + 1] for packing in self.packings]
        src, tgt = (slice(bounds[0], bounds[-1]) for bounds in offsets)
        lengths = [[stop - start for start, stop in pairwise(bounds)] for bounds in offsets]
        n_src, n_tgt = map(sum, lengths)
        return replace(
            self,
            src=self.src[:, src],
            tgt_in=self.tgt_in[:, tgt],
            labels=self.labels[:, tgt],
            n_src=n_src,
            n_tgt=n_tgt,
            rows=self.rows[first:end],
            packings=PackingPair(*map(Packing.from_lengths, lengths)),
            is_padded=False,
            n_positions_before_packing=round(
                self.n_positions_before_packing * (n_src + n_tgt) / (self.n_src + self.n_tgt)
            ),
        )


def _next_power_of_two(n: int, minimum: int) -> int:
    return max(minimum, 1 << (n - 1).bit_length())


def pack(batches: Sequence[Batch], src_pad: int, tgt_pad: int) -> PackedBatch:
    """Pack the sentences of padded batches of one source."""
    is_src = [batch.src != src_pad for batch in batches]
    is_tgt = [batch.labels != tgt_pad for batch in batches]
    src, tgt_in, labels = (
        torch.cat([ids[mask] for ids, mask in zip(side, masks, strict=True)])[None]
        for side, masks in (
            ([batch.src for batch in batches], is_src),
            ([batch.tgt_in for batch in batches], is_tgt),
            ([batch.labels for batch in batches], is_tgt),
        )
    )
    return PackedBatch(
        src,
        tgt_in,
        labels,
        n_src=src.numel(),
        n_tgt=labels.numel(),
        rows=np.concatenate([batch.rows for batch in batches]),
        source_index=batches[0].source_index,
        place=batches[0].place,
        packings=PackingPair(_packing(is_src), _packing(is_tgt)),
        n_positions_before_packing=sum(batch.n_padded for batch in batches),
    )


def _packing(masks: Iterable[Tensor]) -> Packing:
    """Return the packing of the sentences of padded batches, whose masks [B, L] are true for tokens."""
    return Packing.from_lengths(cast("list[int]", torch.cat([mask.sum(1) for mask in masks]).tolist()))


def pack_passes(batches: Sequence[Batch], src_pad: int, tgt_pad: int, max_positions: int) -> list[PackedBatch]:
    """Pack consecutive micro-batches of a step, as long as their padded positions do not exceed `max_positions`.

    The pairs of a packed batch come from one source of a mixture. A micro-batch is not split.
    """
    groups: dict[int, list[list[Batch]]] = {}
    for batch in batches:
        passes = groups.setdefault(batch.source_index, [[]])
        if passes[-1] and sum(other.n_padded for other in passes[-1]) + batch.n_padded > max_positions:
            passes.append([])
        passes[-1].append(batch)
    return [pack(group, src_pad, tgt_pad) for passes in groups.values() for group in passes]
