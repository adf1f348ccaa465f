"""Linear projections with their initialisation, normalisation, and dropout: what attention and layers are built of.

`D` input width, `O` output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.cpu_kernels import (
    dropout_cpu,
    needs_padded_rows,
    onednn_is_faster,
    onednn_linear,
    padded_linear,
    rms_norm_cpu,
    uses_cpu_kernels,
)
from transformer_mt.model.model_config import ModelConfig

NORMAL_STD = 0.02  # of `init: normal`, as in BERT (Devlin et al. 2019)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of products with `x`: that of autocast if it is enabled and `x` is fp32, otherwise its own."""
    device = x.device.type
    if x.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b. [..., D], [O, D], [O] -> [..., O].

    If the weights have another dtype than fp32 (`convert_linears`, `WeightCast`), the input is converted to it.
    """
    dtype = compute_dtype(weight)
    if needs_padded_rows(x.device, dtype):
        return padded_linear(x, weight, bias, dtype)
    if onednn_is_faster(x, weight):
        return onednn_linear(x, weight, bias)
    return F.linear(x if weight.dtype == torch.float32 else x.to(weight.dtype), weight, bias)


class Linear(nn.Linear):
    """x W^T + b. [..., D] -> [..., O]."""

    copies: tuple[Tensor, Tensor | None] | None = None  # of weight and bias in another dtype, see `WeightCast`

    def get_weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """Return the tensors to compute with: the copies, if there are any."""
        return self.copies or (self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Project the last dimension, see `linear`."""
        return linear(input, *self.get_weight_and_bias())


class FusedLinear(Linear):
    """Several projections of one input, fused: they share a weight matrix and are computed in one product."""

    def __init__(self, d_in: int, widths: Sequence[int], bias: bool) -> None:
        super().__init__(d_in, sum(widths), bias)
        self.widths = list(widths)

    def project(self, x: Tensor, first: int = 0, last: int | None = None) -> list[Tensor]:
        """Compute the projections `first` to `last - 1`, by default all. [..., D] -> [..., width] each."""
        widths = self.widths[first:last]
        if len(widths) == len(self.widths):
            y = self(x)  # without slices, which take time
        else:
            start = sum(self.widths[:first])
            rows = slice(start, start + sum(widths))
            weight, bias = self.get_weight_and_bias()
            y = linear(x, weight[rows], None if bias is None else bias[rows])  # [..., sum(widths)]
        if len(widths) == 1:
            return [y]  # splitting into one part would copy the gradient
        return cast("list[Tensor]", y.split_with_sizes(widths, dim=-1))


def projection_widths(module: nn.Linear) -> list[int]:
    """Return the output widths of the projections that share the weight matrix of `module`."""
    return module.widths if isinstance(module, FusedLinear) else [module.out_features]


def convert_linears(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of each projection inside `module` to `dtype`; a tied weight is copied, not shared."""
    for submodule in module.modules():
        if isinstance(submodule, Linear):
            for name, parameter in list(submodule.named_parameters()):
                setattr(submodule, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))


def initialise(module: nn.Module, config: ModelConfig, depth: int = 1) -> None:
    """Initialise each projection inside `module` as `config.init` says, and set biases to zero.

    `xavier`: uniform (Glorot & Bengio 2010); `depth_scaled`: the same divided by sqrt(depth) (Zhang et al. 2019), where
    the first layer of a stack has depth 1; `normal`: N(0, 0.02).
    """
    for submodule in module.modules():
        if not isinstance(submodule, nn.Linear):
            continue
        for weight in submodule.weight.data.split_with_sizes(projection_widths(submodule)):
            if config.init == "normal":
                nn.init.normal_(weight, std=NORMAL_STD)
            else:
                nn.init.xavier_uniform_(weight, gain=depth**-0.5 if config.init == "depth_scaled" else 1.0)
        if submodule.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            nn.init.zeros_(submodule.bias)


# --- normalisation and dropout ----------------------------------------------------------------------------------------


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
        if uses_cpu_kernels(x.device) and x.dtype == torch.float32:
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
    return dropout_cpu(x, p) if uses_cpu_kernels(x.device) else F.dropout(x, p)
