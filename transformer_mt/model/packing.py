"""Packed sentences: one after the other in a single row, without padding.

A padded batch wastes work on every sentence that is shorter than the longest. Nearly all of the model treats each
position independently, so it computes a packed row like any other row. Only two parts look at the boundaries of the
sentences: positions, which count from the start of a sentence, and attention, which stays within a sentence.

`B` sentences, `N` tokens of all of them, `T` of the queries, `S` of the keys, `H` heads, `E` head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

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

    def mean_per_sentence(self, values: Tensor) -> Tensor:
        """Return the mean of the values of each sentence's tokens. [N] -> [B]."""
        n_sentences = len(self.offsets) - 1
        return values.new_zeros(n_sentences).index_add(0, self.sentence_indices(), values) / self.offsets.diff()

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


def packed_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: PackedMask, dropout_rate: float = 0.0
) -> Tensor:
    """Compute softmax(Q K^T / sqrt(E)) V within each sentence, on CUDA. [1, H, T, E], 2 x [1, G, S, E] -> [1, H, T, E].

    This is the memory-efficient kernel of PyTorch (Rabe & Staats 2021), called without `scaled_dot_product_attention`,
    which has no offsets. On an H100 with sentences of 30 tokens it took a quarter of the time of `varlen_attn`, the
    FlashAttention kernel, whose blocks are longer than the sentences.
    """
    n_repeats = queries.size(1) // keys.size(1)
    if n_repeats > 1:  # the kernel has no grouped queries
        keys, values = (x.repeat_interleave(n_repeats, dim=1) for x in (keys, values))
    context, *_ = torch.ops.aten._efficient_attention_forward(
        *map(_put_tokens_first, (queries, keys, values)),
        None,
        mask.queries.offsets,
        mask.keys.offsets,
        mask.queries.longest,
        mask.keys.longest,
        dropout_rate,
        int(mask.is_causal),
        True,  # keep what the backward pass needs
    )
    return cast(Tensor, context).transpose(1, 2)


def _put_tokens_first(x: Tensor) -> Tensor:
    """Exchange heads and tokens, and copy if the heads come first in memory. [1, H, L, E] -> [1, L, H, E].

    The kernel returns contiguous gradients. `torch.compile` expects the strides of the input, which are the same only
    with the tokens first.
    """
    x = x.transpose(1, 2)
    return x if x.stride(1) >= x.stride(2) else x.contiguous()
