"""Parts of the Transformer: linear projections and their initialisation, norms, dropout, feed-forward, and residuals.

`B` batch, `L` length, `D` model or input width, `O` output width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def initialise(module: nn.Module) -> None:
    """Initialise each projection inside `module` uniformly (Glorot & Bengio 2010), and set biases to zero."""
    for submodule in module.modules():
        if not isinstance(submodule, nn.Linear):
            continue
        for weight in submodule.weight.data.split_with_sizes(projection_widths(submodule)):
            nn.init.xavier_uniform_(weight)
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


def make_norm(config: ModelConfig) -> nn.Module:
    """Build the normalisation that `config.norm` names."""
    norm_class = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}[config.norm]
    return norm_class(config.d_model, eps=config.norm_eps)


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


# --- feed-forward -----------------------------------------------------------------------------------------------------


class GatedActivation(nn.Module):
    """activation(x W) * (x V), a gated linear unit (Shazeer 2020)."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, gate: Tensor, value: Tensor) -> Tensor:
        """Multiply the value by the activated gate."""
        return self.activation(gate) * value


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2, at each position independently."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation, n_inputs = make_activation(config.activation)
        self.inner = FusedLinear(config.d_model, n_inputs * [config.d_ff], config.feed_forward_bias)
        self.dropout = Dropout(config.dropout.activation)
        self.outer = Linear(config.d_ff, config.d_model, config.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position. [B, L, D] -> [B, L, D]."""
        return self.outer(self.dropout(self.activation(*self.inner.project(x))))


def make_activation(name: str) -> tuple[nn.Module, int]:
    """Build the activation `name`; also return how many projections of the input it takes."""
    plain = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}
    gated = {"geglu": nn.GELU, "swiglu": nn.SiLU}
    return (plain[name](), 1) if name in plain else (GatedActivation(gated[name]()), 2)


# --- residual connections ---------------------------------------------------------------------------------------------

Sublayer = Callable[[Tensor], Tensor]
"""Self-attention, cross-attention or feed-forward. [B, L, D] -> [B, L, D]"""


class Residual(nn.Module):
    """A residual connection around a sub-layer. Subclasses define the order of norm, sub-layer and sum."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout.residual)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Apply the sub-layer and add its input. [B, L, D] -> [B, L, D]."""
        raise NotImplementedError


class PreNorm(Residual):
    """x + sublayer(norm(x)) (Xiong et al. 2020). The sum is not normalised, so a final norm follows the stack."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Normalise the input of the sub-layer."""
        return x + self.dropout(sublayer(self.norm(x)))


class PostNorm(Residual):
    """norm(x + sublayer(x)), as in the paper."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Normalise the sum."""
        return self.norm(x + self.dropout(sublayer(x)))


def make_residual(config: ModelConfig) -> Residual:
    """Build the residual connection that `norm_position` names."""
    return {"pre": PreNorm, "post": PostNorm}[config.norm_position](config)


def make_final_norm(config: ModelConfig) -> nn.Module:
    """Build the norm at the end of a stack. With post-norm, the last layer has already normalised."""
    return nn.Identity() if config.norm_position == "post" else make_norm(config)
