"""Key/value cache of a step-by-step decoder.

The K hypotheses of a sentence share prefixes, so the cache is a tree. Each token's keys and values are written once, to
the next free slot. Each hypothesis has a mask of the slots of its tokens. To reorder hypotheses, beam search copies
masks; keys and values do not move.

`B` sentences, `K` hypotheses per sentence, `G` key/value heads, `S` source length, `C` slots (allocated in blocks), `E`
head width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.attention import KeysValues
from transformer_mt.model.cpu_kernels import masked_score

BLOCK = 16
"""Keys come in multiples of this number, because softmax over shorter rows is slow on a CPU."""


def round_up(n_slots: int) -> int:
    """Round a number of slots up to whole blocks."""
    return -(-n_slots // BLOCK) * BLOCK


def pad_slots(x: Tensor, n_slots: int) -> Tensor:
    """Append slots of zeros. [B, G, S, E] -> contiguous [B, G, n_slots, E]."""
    return F.pad(x, (0, 0, 0, n_slots - x.size(2))).contiguous()


def pad_mask(mask: Tensor, n_slots: int) -> Tensor:
    """Append slots that no hypothesis attends to. [B, 1, L, S] -> [B, 1, L, n_slots]."""
    missing = n_slots - mask.size(3)
    return F.pad(mask, (0, missing), value=masked_score(mask.dtype)) if missing else mask


class KVCache:
    """State of a step-by-step decoder: the projected source, and the target tokens so far of each hypothesis.

    Its masks are added to the scores: 0 for a key that may be attended, `masked_score` for any other.
    """

    def __init__(self, memory: list[KeysValues], is_source: Tensor) -> None:
        """`memory` has the projections for each layer's cross-attention, 2 x [B, G, S, E]; the mask is [B, 1, 1, S]."""
        keys, is_padding, n_slots = memory[0].keys, ~is_source, round_up(is_source.size(3))
        mask = keys.new_zeros(is_source.shape).masked_fill_(is_padding, masked_score(keys.dtype))
        self.memory_mask = pad_mask(mask, n_slots)
        self.memory = [  # values of padding are 0, so that a source without tokens gives 0
            KeysValues(pad_slots(keys, n_slots), pad_slots(values.masked_fill(is_padding.mT, 0), n_slots))
            for keys, values in memory
        ]
        self.mask = mask[..., :0]  # slots of each hypothesis [B, 1, K, C]
        self.slots = [KeysValues(*(each[:, :, :0] for each in layer)) for layer in memory]  # 2 x [B, G, at least C, E]
        self.position = 0  # of the next token, the same for all hypotheses
        self.n_used = 0  # slots

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

    def append(self, layer: int, new: KeysValues) -> KeysValues:
        """Write keys and values to the reserved slots, and return those of all slots. [B, G, K, E] -> [B, G, C, E].

        Slots without a token hold zeros; the mask hides them.
        """
        slots, n_new, n_slots = self.slots[layer], new.keys.size(2), self.mask.size(3)
        n_allocated = slots.keys.size(2)
        if n_slots > n_allocated:
            slots = KeysValues(*(pad_slots(each, max(n_slots, 2 * n_allocated)) for each in slots))
            self.slots[layer] = slots
        for old, each in zip(slots, new, strict=True):
            old.narrow(2, self.n_used - n_new, n_new).copy_(each)
        return KeysValues(*(each.narrow(2, 0, n_slots) for each in slots))

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis k of each sentence by a copy of its hypothesis parents[:, k]. [B, K]."""
        if parents.size(1) > 1:  # a single hypothesis can only continue itself
            index = parents[:, None, :, None].expand(-1, -1, -1, self.mask.size(3))  # [B, 1, K, C]
            self.mask = self.mask.gather(2, index)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. rows: [B']."""
        self.memory, self.slots = (  # indexing would take six times as long as `index_select`
            [KeysValues(*(each.index_select(0, rows) for each in layer)) for layer in layers]
            for layers in (self.memory, self.slots)
        )
        self.memory_mask, self.mask = self.memory_mask[rows], self.mask[rows]
