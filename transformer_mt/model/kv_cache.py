"""Key/value cache of a step-by-step decoder.

The K hypotheses of a sentence share prefixes, so the cache is a tree. Each token's keys and values are written once, to
the next free slot. Each hypothesis has a mask of the slots of its own tokens. To reorder hypotheses, beam search copies
masks; keys and values do not move.

`B` sentences, `K` hypotheses per sentence, `G` key/value heads, `S` source length, `C` slots (allocated in blocks), `E`
head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.attention import KeysValues

BLOCK = 32
"""Slots are allocated in multiples of this number."""


def whole_blocks(n_slots: int) -> int:
    """Round a number of slots up to whole blocks."""
    return -(-n_slots // BLOCK) * BLOCK


class LayerKVCache:
    """Keys and values of the target so far, for the self-attention of one layer."""

    def __init__(self) -> None:
        self.n_used = 0
        self.buffer: Tensor | None = None  # keys and values [2, B, G, C, E]; None before the first token

    def append(self, new: KeysValues) -> KeysValues:
        """Write the keys and values of one step, and return all slots. 2 x [B, G, K, E] -> 2 x [B, G, C, E].

        Slots without a token hold zeros; the mask of `KVCache.append_step` hides them.
        """
        end = self.n_used + new.keys.size(2)
        if self.buffer is None or end > self.buffer.size(3):
            self.buffer = self._allocate(new.keys, whole_blocks(end))
        for stored, added in zip(self.buffer, new, strict=True):
            stored[:, :, self.n_used : end] = added
        self.n_used = end
        return KeysValues(*self.buffer)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. rows: [B']."""
        if self.buffer is not None:
            self.buffer = self.buffer[:, rows]

    def _allocate(self, like: Tensor, n_slots: int) -> Tensor:
        batch, heads, _, width = like.shape
        buffer = like.new_zeros(2, batch, heads, n_slots, width)
        if self.buffer is not None:
            buffer[:, :, :, : self.n_used] = self.buffer[:, :, :, : self.n_used]
        return buffer


class KVCache:
    """State of a step-by-step decoder: the projected source, and the target tokens so far of each hypothesis."""

    def __init__(self, memory: list[KeysValues], memory_mask: Tensor) -> None:
        # of each layer's cross-attention, 2 x [B, G, S, E]
        self.memory = [KeysValues(keys.contiguous(), values.contiguous()) for keys, values in memory]
        self.memory_mask = memory_mask  # [B, 1, 1, S]
        self.layers = [LayerKVCache() for _ in memory]
        self.mask = memory_mask.new_zeros(len(memory_mask), 1, 1, 0)  # slots of each hypothesis [B, 1, K, C]
        self.position = 0  # of the next token, the same for all hypotheses
        self.n_used = 0  # slots

    def append_step(self, n_hypotheses: int) -> tuple[slice, Tensor]:
        """Reserve a slot for the next token of each hypothesis.

        Return the position of that token, and the self-attention mask [B, 1, K, C].
        """
        new = torch.arange(n_hypotheses, device=self.mask.device)
        missing = whole_blocks(self.n_used + n_hypotheses) - self.mask.size(3)
        if missing > 0:
            self.mask = F.pad(self.mask, (0, missing))
        self.mask[:, :, new, self.n_used + new] = True
        position = slice(self.position, self.position + 1)
        self.position, self.n_used = self.position + 1, self.n_used + n_hypotheses
        return position, self.mask

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis k of each sentence by a copy of its hypothesis parents[:, k]. [B, K]."""
        index = parents[:, None, :, None].expand(-1, -1, -1, self.mask.size(3))  # [B, 1, K, C]
        self.mask = self.mask.gather(2, index)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. rows: [B']."""
        self.memory = [KeysValues(keys[rows], values[rows]) for keys, values in self.memory]
        self.memory_mask, self.mask = self.memory_mask[rows], self.mask[rows]
        for layer in self.layers:
            layer.select(rows)
