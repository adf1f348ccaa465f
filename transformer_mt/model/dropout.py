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
        return cast(Tensor, _Dropout.apply(x, round(p * STEPS)))
    return F.dropout(x, p)


class _Dropout(torch.autograd.Function):
    """16 random bits for each element, four elements from one number of the generator; a byte each is remembered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        dropped = bits.view(torch.int16)[: x.numel()].view(x.shape) < threshold - STEPS // 2
        ctx.save_for_backward(dropped)
        ctx.scale = STEPS / (STEPS - threshold)
        return x.mul(ctx.scale).masked_fill_(dropped, 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (dropped,) = ctx.saved_tensors
        return grad_outputs[0].mul(ctx.scale).masked_fill_(dropped, 0.0), None
