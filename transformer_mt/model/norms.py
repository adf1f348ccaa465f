"""Normalisation over the last dimension.

`D` its width.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.config import ModelConfig


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(variance + eps) * gain + bias (Ba et al. 2016), in the precision of its weights, as the kernel
    for GPUs asks for. [..., D] -> [..., D]"""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype))


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * gain (Zhang & Sennrich 2019). [..., D] -> [..., D]"""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if x.device.type == "cpu" and x.dtype == torch.float32:
            # torch has no kernel for it there, and its gradient takes three times as long
            return cast(Tensor, _RMSNorm.apply(x, self.weight, self.eps))
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _RMSNorm(torch.autograd.Function):
    """The same with its gradient written out, in few passes over memory.

    With r = 1 / sqrt(mean(x^2) + eps): dx = r (g w - x r^2 mean(x g w)), dw = sum(g x r).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        width = x.size(-1)
        norm = cast(Tensor, torch.linalg.vector_norm(x, dim=-1, keepdim=True))
        rate = norm.square_().div_(width).add_(eps).rsqrt_()  # [..., 1]
        ctx.save_for_backward(x, weight, rate)
        return (x * rate).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        x, weight, rate = ctx.saved_tensors
        gradient, width = grad_outputs[0], x.size(-1)
        products = (gradient * x).reshape(-1, width)  # [N, D]
        sums = (products @ weight).view_as(rate)  # [..., 1]
        grad_weight = rate.reshape(1, -1) @ products  # [1, D]
        grad_x = (gradient * weight).mul_(rate).addcmul_(x, sums.mul_(rate**3).div_(-width))
        return grad_x, grad_weight.squeeze(0), None


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """The normalisation that `norm` names, of the model's width or of another."""
    kind = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}[config.norm]
    return kind(width or config.d_model, eps=config.norm_eps)
