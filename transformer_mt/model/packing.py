"""Packed sentences: one after the other in a single row, without padding.

A padded batch wastes work on every sentence that is shorter than the longest. Nearly all of the model treats each
position independently, so it computes a packed row like any other row. Only two parts look at the boundaries of the
sentences: positions, which count from the start of a sentence, and attention, which stays within a sentence.

`B` sentences, `N` tokens of all of them, `T` of the queries, `S` of the keys, `H` heads, `E` head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Where the sentences of a packed row begin, and the positions of its tokens."""

    offsets: Tensor  # [B + 1] int32, the first token of each sentence, and N
    positions: Tensor  # [N] of each token in its sentence, from 0
    longest: int  # tokens of the longest sentence

    @classmethod
    def from_lengths(cls, lengths: Sequence[int]) -> Packing:
        """Return the packing of sentences of these lengths."""
        counts = torch.tensor(lengths)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        positions = torch.arange(int(offsets[-1])) - offsets[:-1].repeat_interleave(counts)
        return cls(offsets.int(), positions, max(lengths))

    def sentence_indices(self) -> Tensor:
        """Return the index of the sentence of each token. [N]."""
        indices = torch.arange(len(self.offsets) - 1, device=self.offsets.device)
        return indices.repeat_interleave(self.offsets.diff(), output_size=len(self.positions))

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Packing:
        """Apply a function to both tensors."""
        return Packing(function(self.offsets), function(self.positions), self.longest)


class PackingPair(NamedTuple):
    """The packings of source and target sentences."""

    src: Packing
    tgt: Packing


class PackedMask(NamedTuple):
    """The keys that a query of a packed row may attend to: those of its sentence, and if causal, only up to itself."""

    queries: Packing
    keys: Packing
    is_causal: bool = False

    def to_dense(self) -> Tensor:
        """Return the same mask as a bool tensor, which grows with the square of the row. [1, 1, T, S]."""
        mask = self.queries.sentence_indices()[:, None] == self.keys.sentence_indices()  # [T, S]
        if self.is_causal:
            mask &= self.keys.positions <= self.queries.positions[:, None]
        return mask[None, None]
