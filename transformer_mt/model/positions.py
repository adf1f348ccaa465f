"""Positional encodings (Vaswani et al. 2017, section 3.5).

`D` width of the model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sinusoidal_table(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D)), in fp32. [length, D]"""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float32) * (-math.log(10_000.0) / d_model))
    table = torch.empty(length, d_model)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate[: d_model // 2])
    return table


class SinusoidalPositions(nn.Module):
    """The table as a buffer that grows with the longest sequence met. It is computed, so no checkpoint holds it."""

    table: Tensor  # [length, D]

    def __init__(self, d_model: int, length: int = 512) -> None:
        super().__init__()
        self.register_buffer("table", sinusoidal_table(length, d_model), persistent=False)

    def forward(self, start: int, length: int) -> Tensor:
        """The encodings of positions start .. start + length - 1. [length, D]"""
        end = start + length
        if end > len(self.table):
            longer = sinusoidal_table(max(end, 2 * len(self.table)), self.table.size(1))
            self.table = longer.to(self.table)
        return self.table[start:end]
