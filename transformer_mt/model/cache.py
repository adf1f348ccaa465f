"""What a decoder that works step by step remembers.

`B` batch, `G` heads of keys and values, `S` source length, `C` positions there is room for, `E` width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_mt.model.attention import KeysValues

BLOCK = 32  # positions by which the room grows


class Past:
    """Keys and values of the target so far, of one layer. It has room for some more and grows by blocks."""

    def __init__(self) -> None:
        self.length = 0
        self._room: tuple[Tensor, Tensor] | None = None  # each [B, G, C, E]

    def append(self, new: KeysValues) -> KeysValues:
        """Add new positions and return all of them so far. 2 x [B, G, n, E] -> 2 x [B, G, length, E]"""
        end = self.length + new.keys.size(2)
        self._room = room = self._with_room(new, end)
        for kept, added in zip(room, new, strict=True):
            kept[:, :, self.length : end] = added
        self.length = end
        return KeysValues(*(kept[:, :, :end] for kept in room))

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self._room is not None:
            self._room = (self._room[0][rows], self._room[1][rows])

    def _with_room(self, new: KeysValues, end: int) -> tuple[Tensor, Tensor]:
        old = self._room
        if old is not None and end <= old[0].size(2):
            return old
        batch, heads, _, width = new.keys.shape
        room = new.keys.new_zeros(2, batch, heads, -(-end // BLOCK) * BLOCK, width)
        if old is not None:
            room[:, :, :, : self.length] = torch.stack([kept[:, :, : self.length] for kept in old])
        return room[0], room[1]


@dataclass
class Cache:
    """The state of a step-by-step decoder: the source, projected once, and the target so far."""

    memory: list[KeysValues]  # of each layer's cross-attention, 2 x [B, G, S, E]
    memory_mask: Tensor  # [B, 1, 1, S]
    past: list[Past]  # of each layer's self-attention

    @property
    def length(self) -> int:
        """Positions decoded so far."""
        return self.past[0].length

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order. rows: [B']"""
        self.memory = [KeysValues(keys[rows], values[rows]) for keys, values in self.memory]
        self.memory_mask = self.memory_mask[rows]
        for past in self.past:
            past.select(rows)
