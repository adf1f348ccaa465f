"""Normalisation over the last dimension.

`D` width of that dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.cpu_kernels import dropout_cpu, rms_norm_cpu, use_cpu_kernels
from transformer_mt.model.model_config import ModelConfig


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(variance + eps) * gain + bias (Ba et al. 2016). [..., D] -> [..., D]."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise in the dtype of the weights: the CUDA kernel refuses a bf16 input with fp32 weights."""
        weight = self.weight
        return F.layer_norm(input.to(weight.dtype), self.normalized_shape, weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * gain (Zhang & Sennrich 2019). [..., D] -> [..., D]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise in the dtype of the gain."""
        x = x.to(self.weight.dtype)
        if use_cpu_kernels(x.device) and x.dtype == torch.float32:
            return rms_norm_cpu(x, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """Build the normalisation that `config.norm` names, of the model's width unless `width` is given."""
    norm_class = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}[config.norm]
    return norm_class(width or config.d_model, eps=config.norm_eps)


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
