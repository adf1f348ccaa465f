"""Positions: vectors added to embeddings, or rotations of queries and keys.

Positions are computed in fp32 and then cast: in bf16, neighbouring positions would coincide. A `positions` argument is
the slice of positions of the columns, counted from 0 by default; a slice of length 1 applies to all columns. The
columns of packed sentences have the positions of their `Packing`.

`B` batch, `L` length, `D` model width, `H` heads, `E` head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.packing import Packing

Positions = slice | Packing
Rotation = tuple[Tensor, Tensor]
"""Cosines and signed sines of rotary positions. [L, E] or [1, E] each"""

INITIAL_LENGTH = 512
"""Initial length of a computed table."""


def frequencies(width: int) -> Tensor:
    """Return 1 / 10000^(2i / width): the angle between two adjacent positions, for each pair i. [ceil(width / 2)]."""
    return torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10_000.0) / width))


def sinusoidal_table(length: int, d_model: int) -> Tensor:
    """Return PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)). fp32 [length, D].

    Vaswani et al. 2017, section 3.5.
    """
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies(d_model)  # [length, ceil(D / 2)]
    table = torch.empty(length, d_model)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles[:, : d_model // 2])
    return table


def rotary_table(length: int, width: int) -> Tensor:
    """Return cosines and signed sines of the angles at each position. fp32 [2, length, E].

    Elements i and i + E / 2 form a pair with the same angle. The sine of the first is negative.
    """
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies(width)  # [length, E / 2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)])


class PositionTable(nn.Module):
    """A table `compute(length, width)` [..., length, _] that grows on demand. No checkpoint contains it."""

    table: Tensor

    def __init__(self, compute: Callable[[int, int], Tensor], width: int, length: int) -> None:
        super().__init__()
        self.compute, self.width = compute, width
        self.register_buffer("table", compute(length, width), persistent=False)

    def get(self, length: int) -> Tensor:
        """Return the table with at least this length.

        Another thread may replace the attribute at any time, so callers use the returned tensor.
        """
        table = self.table
        if length > table.size(-2):
            with torch.inference_mode(False):  # a table that grows while translating must also serve training
                table = self.compute(max(length, 2 * table.size(-2)), self.width).to(table)
            self.table = table
        return table


def table_rows(positions: Positions | None, length: int) -> tuple[int, slice | Tensor]:
    """Return the end of the range of positions, and the index of their rows in a table."""
    if isinstance(positions, Packing):
        return positions.longest, positions.positions
    positions = positions or slice(0, length)
    return positions.stop, positions


# --- added to the embeddings ------------------------------------------------------------------------------------------


class SinusoidalPositions(PositionTable):
    """Sinusoidal positions, added to embeddings."""

    def __init__(self, d_model: int, length: int = INITIAL_LENGTH) -> None:
        super().__init__(sinusoidal_table, d_model, length)

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        """Add the rows of these positions. [B, L, D] -> [B, L, D]."""
        end, index = table_rows(positions, x.size(1))
        return x + self.get(end)[index]


class LearnedPositions(nn.Module):
    """Learned positions, added to embeddings (Gehring et al. 2017)."""

    def __init__(self, d_model: int, max_positions: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_positions, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        """Add the rows of these positions. [B, L, D] -> [B, L, D].

        Raises `UserError` for a position beyond the table.
        """
        end, index = table_rows(positions, x.size(1))
        if end > len(self.table):
            raise UserError(
                f"the sequence has {end} tokens, but the model has learned {len(self.table)} positions: "
                "shorten it, or train with a larger model.max_positions, or with sinusoidal or rotary positions"
            )
        return x + self.table[index]


class NoPositions(nn.Module):
    """Identity, for models without positions in their embeddings."""

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        """Return `x`."""
        return x


def make_positions(config: ModelConfig) -> nn.Module:
    """Build the module that adds positions to embeddings."""
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_model)
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_positions)
    return NoPositions()


# --- in self-attention ------------------------------------------------------------------------------------------------


class Rotary(PositionTable):
    """Rotary positions: pairs of elements rotate by angles proportional to the position (Su et al. 2021).

    The product of a query and a key then depends only on their distance. All layers share the rotation.
    """

    def __init__(self, width: int, length: int = INITIAL_LENGTH) -> None:
        super().__init__(rotary_table, width, length)

    def forward(self, positions: Positions | None, length: int) -> Rotation:
        """Return the rotation of `length` columns at these positions."""
        end, index = table_rows(positions, length)
        cos, sin = self.get(end)[:, index].unbind()
        return cos, sin


def rotate(x: Tensor, rotation: Rotation | None) -> Tensor:
    """Rotate queries or keys. [B, H, L, E] -> [B, H, L, E]."""
    if rotation is None:
        return x
    cos, sin = (each.to(x.dtype) for each in rotation)
    partners = x.roll(x.size(-1) // 2, dims=-1)  # the other element of each pair
    return x * cos + partners * sin


def make_rotary(config: ModelConfig) -> Rotary | None:
    """Build the rotary positions of a stack, if it has any."""
    return Rotary(config.d_head) if config.positions == "rotary" else None
