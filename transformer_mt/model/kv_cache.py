"""What a decoder that works step by step remembers.

The translations of a sentence that a search follows at once are the branches of a tree: they share their beginnings. So
each token is kept once, in the column in which it came, and each branch has a mask of the columns that lie on its path.
A branch that goes on from another one takes over its mask, and no key is ever moved.

`B` sentences, `K` branches of each, `G` heads of keys and values, `S` source length, `C` columns there is room for,
`E` width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.attention import KeysValues

BLOCK = 32  # columns by which the room grows


def room_for(columns: int) -> int:
    """Columns in whole blocks."""
    return -(-columns // BLOCK) * BLOCK


class LayerKVCache:
    """Keys and values of the target so far, of one layer, with room for some more."""

    def __init__(self) -> None:
        self.length = 0
        self._room: Tensor | None = None  # keys and values. [2, B, G, C, E]

    def append(self, new: KeysValues) -> KeysValues:
        """Add columns and return the whole room, of which the mask knows what is taken.

        2 x [B, G, K, E] -> 2 x [B, G, C, E]
        """
        end = self.length + new.keys.size(2)
        if self._room is None or end > self._room.size(3):
            self._grow(new.keys, room_for(end))
        assert self._room is not None
        for kept, added in zip(self._room, new, strict=True):
            kept[:, :, self.length : end] = added
        self.length = end
        return KeysValues(*self._room)

    def select(self, rows: Tensor) -> None:
        """Keep these sentences, in this order."""
        if self._room is not None:
            self._room = self._room[:, rows]

    def _grow(self, like: Tensor, columns: int) -> None:
        batch, heads, _, width = like.shape
        room = like.new_zeros(2, batch, heads, columns, width)
        if self._room is not None:
            room[:, :, :, : self.length] = self._room[:, :, :, : self.length]
        self._room = room


class KVCache:
    """The state of a step-by-step decoder: the source, projected once, and the branches so far."""

    def __init__(self, memory: list[KeysValues], memory_mask: Tensor) -> None:
        self.memory = [
            KeysValues(keys.contiguous(), values.contiguous()) for keys, values in memory
        ]  # 2 x [B, G, S, E]
        self.memory_mask = memory_mask  # [B, 1, 1, S]
        self.past = [LayerKVCache() for _ in memory]  # of each layer's self-attention
        self.path = memory_mask.new_zeros(len(memory_mask), 1, 1, 0)  # the columns on each branch's path. [B, 1, K, C]
        self.position = 0  # of the next token of every branch
        self.columns = 0  # that are taken

    def append_step(self, n_branches: int) -> tuple[slice, Tensor]:
        """Open a column for the next token of each branch; its position, and what each may see. [B, 1, K, C]"""
        at, new = slice(self.position, self.position + 1), torch.arange(n_branches, device=self.path.device)
        if self.columns + n_branches > self.path.size(3):
            self.path = F.pad(self.path, (0, room_for(self.columns + n_branches) - self.path.size(3)))
        self.path[:, :, new, self.columns + new] = True
        self.position, self.columns = at.stop, self.columns + n_branches
        return at, self.path

    def reorder(self, parents: Tensor) -> None:
        """From now on branch k goes on from what was branch parents[:, k]. [B, K]"""
        places = parents[:, None, :, None].expand(-1, -1, -1, self.path.size(3))
        self.path = self.path.gather(2, places)

    def select(self, rows: Tensor) -> None:
        """Keep these sentences, in this order. rows: [B']"""
        self.memory = [KeysValues(keys[rows], values[rows]) for keys, values in self.memory]
        self.memory_mask, self.path = self.memory_mask[rows], self.path[rows]
        for past in self.past:
            past.select(rows)
