"""Where a token stands: positions added to embeddings, or queries and keys that are turned.

`B` batch, `L` length, `D` width of the model, `H` heads, `E` width of a head. Positions are computed in fp32.
`at` names the positions of the columns, or one position where all have the same; without it they count from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_mt.errors import UserError
from transformer_mt.model.config import ModelConfig

LENGTH = 512  # of a table before it has to grow


def rates(width: int) -> Tensor:
    """1 / 10000^(2i / width), the angle by which pair i moves from one position to the next. [ceil(width / 2)]"""
    return torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10_000.0) / width))


def sinusoidal_table(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)), in fp32. [length, D]

    Vaswani et al. 2017, section 3.5.
    """
    angles = torch.arange(length, dtype=torch.float32)[:, None] * rates(d_model)
    table = torch.empty(length, d_model)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles[:, : d_model // 2])
    return table


def rotary_table(length: int, width: int) -> Tensor:
    """cos and sin of the angle of each pair at each position, in fp32. [2, length, E / 2]"""
    angles = torch.arange(length, dtype=torch.float32)[:, None] * rates(width)
    return torch.stack([angles.cos(), angles.sin()])


class PositionTable(nn.Module):
    """Positions `compute(length, width)` [..., length, _], made longer where a sequence needs it; no checkpoint holds
    what can be computed."""

    table: Tensor

    def __init__(self, compute: Callable[[int, int], Tensor], width: int, length: int) -> None:
        super().__init__()
        self.compute, self.width = compute, width
        self.register_buffer("table", compute(length, width), persistent=False)

    def reaching(self, length: int) -> Tensor:
        """The table, of at least this length. Threads share it, so each reads the one that it was given here."""
        table = self.table
        if length > table.size(-2):
            with torch.inference_mode(False):  # grown while translating, it has to serve training as well
                table = self.compute(max(length, 2 * table.size(-2)), self.width).to(table)
            self.table = table
        return table


# --- added to the embeddings ------------------------------------------------------------------------------------------


class SinusoidalPositions(PositionTable):
    """Adds the table [length, D]."""

    def __init__(self, d_model: int, length: int = LENGTH) -> None:
        super().__init__(sinusoidal_table, d_model, length)

    def forward(self, x: Tensor, at: slice | None = None) -> Tensor:
        """[B, L, D] -> [B, L, D]"""
        at = at or slice(0, x.size(1))
        return x + self.reaching(at.stop)[at]


class LearnedPositions(nn.Module):
    """Adds a vector learnt for each position (Gehring et al. 2017)."""

    def __init__(self, d_model: int, max_positions: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_positions, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, x: Tensor, at: slice | None = None) -> Tensor:
        """[B, L, D] -> [B, L, D]. Raises `UserError` beyond the last position."""
        at = at or slice(0, x.size(1))
        if at.stop > len(self.table):
            raise UserError(
                f"a sequence of {at.stop} tokens, and the model has learnt {len(self.table)} positions: shorten it, "
                "or train with a larger model.max_positions, or with sinusoidal or rotary positions"
            )
        return x + self.table[at]


class NoPositions(nn.Module):
    """Adds nothing."""

    def forward(self, x: Tensor, at: slice | None = None) -> Tensor:
        return x


def make_positions(config: ModelConfig) -> nn.Module:
    """What `positions` adds to embeddings."""
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_model)
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_positions)
    return NoPositions()


# --- in the attention -------------------------------------------------------------------------------------------------


class Rotary(PositionTable):
    """Turns pairs of a vector by angles that grow with its position (Su et al. 2021), so that the product of a query
    and a key depends on their distance alone. Pair i is made of the elements i and i + E / 2."""

    def __init__(self, width: int, length: int = LENGTH) -> None:
        super().__init__(rotary_table, width, length)

    def forward(self, x: Tensor, at: slice | None = None) -> Tensor:
        """[B, H, L, E] -> [B, H, L, E]"""
        at = at or slice(0, x.size(2))
        cos, sin = self.reaching(at.stop)[:, at].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class NoRotation(nn.Module):
    """Turns nothing."""

    def forward(self, x: Tensor, at: slice | None = None) -> Tensor:
        return x


def make_rotation(config: ModelConfig) -> nn.Module:
    """What `positions` does to the queries and keys of self-attention."""
    return Rotary(config.d_head) if config.positions == "rotary" else NoRotation()
