"""Key/value cache of a step-by-step decoder.

The K hypotheses of a sentence share prefixes, so the cache is a tree. Each token's keys and values are written once, to
the next free slot. Each hypothesis has a mask of the slots of its tokens. To reorder hypotheses, beam search copies
masks; keys and values do not move.

`B` sentences, `K` hypotheses per sentence, `G` key/value heads, `S` source length, `C` slots (allocated in blocks), `E`
head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.attention import KeysValues
from transformer_mt.model.cpu_kernels import masked_score

BLOCK = 16
"""Keys come in multiples of this number, because softmax over shorter rows is slow on a CPU."""


def round_up(n_slots: int) -> int:
    """Round a number of slots up to whole blocks."""
    return -(-n_slots // BLOCK) * BLOCK


class LayerKVCache:
    """Keys and values of the target so far, for the self-attention of one layer."""

    def __init__(self) -> None:
        self.n_used = 0
        self.slots: Tensor | None = None  # keys and values [2, B, G, at least C, E]; None before the first token

    def append(self, new: KeysValues) -> KeysValues:
        """Write the keys and values of one step. 2 x [B, G, K, E] -> 2 x [B, G, C, E], the used slots in whole blocks.

        Slots without a token hold zeros; the mask of `KVCache.append_step` hides them.
        """
        return KeysValues(*self.append_stacked(torch.stack([*new])).unbind())

    def append_stacked(self, new: Tensor) -> Tensor:
        """Append keys and values in one tensor, as `append` does. [2, B, G, K, E] -> [2, B, G, C, E]."""
        n_new = new.size(3)
        start, self.n_used = self.n_used, self.n_used + n_new
        n_slots = round_up(self.n_used)
        if self.slots is None:
            self.slots = new.new_zeros(*new.shape[:3], n_slots, new.size(4))
        elif n_slots > self.slots.size(3):
            self.slots = pad_slots(self.slots, max(n_slots, 2 * self.slots.size(3)))
        self.slots.narrow(3, start, n_new).copy_(new)
        return self.slots.narrow(3, 0, n_slots)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. rows: [B']."""
        if self.slots is not None:  # indexing would take six times as long as `index_select`
            self.slots = self.slots.index_select(1, rows)


def pad_slots(x: Tensor, n_slots: int) -> Tensor:
    """Append slots of zeros. [..., S, E] -> contiguous [..., n_slots, E]."""
    return F.pad(x, (0, 0, 0, n_slots - x.size(-2))).contiguous()


def pad_mask(mask: Tensor, n_slots: int) -> Tensor:
    """Append slots that no hypothesis attends to. [B, 1, L, S] -> [B, 1, L, n_slots]."""
    missing = n_slots - mask.size(3)
    return F.pad(mask, (0, missing), value=masked_score(mask.dtype)) if missing else mask


class KVCache:
    """State of a step-by-step decoder: the projected source, and the target tokens so far of each hypothesis.

    Its masks are added to the scores: 0 for a key that may be attended, `masked_score` for any other.
    """

    def __init__(self, memory: list[KeysValues], memory_mask: Tensor) -> None:
        """`memory` has the projections for each layer's cross-attention, 2 x [B, G, S, E]; the mask is [B, 1, 1, S]."""
        n_slots, is_padding = round_up(memory_mask.size(3)), ~memory_mask
        dtype = memory[0].keys.dtype
        mask = torch.zeros_like(memory_mask, dtype=dtype).masked_fill_(is_padding, masked_score(dtype))
        self.memory_mask = pad_mask(mask, n_slots)
        self.memory = [  # values of padding are 0, so that a source without tokens gives 0
            KeysValues(pad_slots(keys, n_slots), pad_slots(values.masked_fill(is_padding.mT, 0), n_slots))
            for keys, values in memory
        ]
        self.layers = [LayerKVCache() for _ in memory]
        self.mask = mask[..., :0]  # slots of each hypothesis [B, 1, K, C]
        self.position = 0  # of the next token, the same for all hypotheses
        self.n_used = 0  # slots

    @classmethod
    def cat(cls, caches: Sequence[KVCache]) -> KVCache:
        """Join the caches of consecutive sentences before the first step. The first cache becomes the result."""
        joined, *others = caches
        if others:
            n_slots = max(each.memory_mask.size(3) for each in caches)
            masks = [each.memory_mask for each in caches]
            joined.memory_mask = torch.cat([pad_mask(mask, n_slots) for mask in masks])
            joined.mask = torch.cat([each.mask for each in caches])
            joined.memory = [
                KeysValues(*(torch.cat([pad_slots(x, n_slots) for x in parts]) for parts in zip(*layer, strict=True)))
                for layer in zip(*(each.memory for each in caches), strict=True)
            ]
        return joined

    def append_step(self, n_hypotheses: int) -> tuple[slice, Tensor]:
        """Reserve a slot for the next token of each hypothesis.

        Return the position of that token, and the self-attention mask [B, 1, K, C].
        """
        end = self.n_used + n_hypotheses
        self.mask = pad_mask(self.mask, round_up(end))
        self.mask[..., self.n_used : end].diagonal(dim1=-2, dim2=-1).zero_()
        position = slice(self.position, self.position + 1)
        self.position, self.n_used = self.position + 1, end
        return position, self.mask

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis k of each sentence by a copy of its hypothesis parents[:, k]. [B, K]."""
        if parents.size(1) > 1:  # a single hypothesis can only continue itself
            index = parents[:, None, :, None].expand(-1, -1, -1, self.mask.size(3))  # [B, 1, K, C]
            self.mask = self.mask.gather(2, index)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. rows: [B']."""
        self.memory = [KeysValues(*(each.index_select(0, rows) for each in layer)) for layer in self.memory]
        self.memory_mask, self.mask = self.memory_mask[rows], self.mask[rows]
        for layer in self.layers:
            layer.select(rows)
