"""Dropout (Srivastava et al. 2014)."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 1 << 16  # rates are told apart to 1 / 65,536


class Dropout(nn.Module):
    """In training, each element is zero with probability `p`, and the others are multiplied by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, p: float) -> Tensor:
    """The same as a function, always as in training."""
    if p == 0.0:
        return x
    if x.device.type == "cpu":  # where torch draws 32 bits for each element, one after the other
        return cast(Tensor, _Dropout.apply(x, min(round(p * STEPS), STEPS - 1)))
    return F.dropout(x, p)


class _Dropout(torch.autograd.Function):
    """16 random bits for each element, four elements from one number of the generator.

    What is kept is remembered as ones and zeros of the input's own precision: products with them run several times as
    fast here as what takes a bool.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        drawn = bits.view(torch.int16)[: x.numel()].view(x.shape)
        kept = torch.ge(drawn, threshold - STEPS // 2, out=torch.empty(x.shape, dtype=x.dtype))
        ctx.save_for_backward(kept)
        ctx.scale = STEPS / (STEPS - threshold)
        return x.mul(kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (kept,) = ctx.saved_tensors
        return grad_outputs[0].mul(kept).mul_(ctx.scale), None
