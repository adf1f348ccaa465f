"""Dropout (Srivastava et al. 2014)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.cpu_kernels import dropout_cpu, use_cpu_kernels


class Dropout(nn.Module):
    """In training, zero each element with probability `p` and scale the others by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout in training mode, and return `x` unchanged in evaluation mode."""
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability `p` and scale the others by 1 / (1 - p)."""
    if p == 0.0:
        return x
    return dropout_cpu(x, p) if use_cpu_kernels(x.device) else F.dropout(x, p)
