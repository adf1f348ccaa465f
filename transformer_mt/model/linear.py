"""Projections: one, or several of one input in one matrix; how they begin, and how they are made ready to translate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from transformer_mt.model.config import ModelConfig
from transformer_mt.model.padded_linear import product

NORMAL_STD = 0.02  # of `init: normal`, as in BERT (Devlin et al. 2019)


class Linear(nn.Linear):
    """x W^T + b; where the weights were converted, the input is converted too, and the output is of their precision."""

    def forward(self, input: Tensor) -> Tensor:
        return product(input, self.weight, self.bias)


def convert(module: nn.Module, dtype: torch.dtype) -> None:
    """Give each projection inside a module weights of another precision, of its own where they were shared."""
    for linear in module.modules():
        if isinstance(linear, Linear):
            for name, parameter in list(linear.named_parameters()):
                setattr(linear, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))


class PackedLinear(Linear):
    """Projections of one input that are worked out in one product."""

    def __init__(self, d_in: int, widths: Sequence[int], bias: bool) -> None:
        super().__init__(d_in, sum(widths), bias)
        self.widths = list(widths)

    def project(self, x: Tensor, first: int = 0, last: int | None = None) -> list[Tensor]:
        """The projections first .. last - 1. [..., D] -> [..., width] each"""
        widths = self.widths[first:last]
        start = sum(self.widths[:first])
        rows = slice(start, start + sum(widths))
        bias = self.bias if self.bias is None else self.bias[rows]  # pyright: ignore[reportUnnecessaryComparison]
        projected = product(x, self.weight[rows], bias)
        if len(widths) == 1:
            return [projected]  # as the one part of a split, its gradient would be copied
        return cast("list[Tensor]", projected.split_with_sizes(widths, dim=-1))


def rows(linear: nn.Linear) -> list[int]:
    """Of its weight matrix, for each of the projections in it."""
    return linear.widths if isinstance(linear, PackedLinear) else [linear.out_features]


def initialise(module: nn.Module, config: ModelConfig, depth: int = 1) -> None:
    """Give each projection inside a module its first values, as `init` says; biases are zero.

    `xavier`: Glorot & Bengio 2010, uniform; `depth_scaled`: the same over sqrt(depth) (Zhang et al. 2019), the first
    layer of a stack having depth 1; `normal`: N(0, 0.02).
    """
    for linear in module.modules():
        if not isinstance(linear, nn.Linear):
            continue
        for weight in linear.weight.data.split_with_sizes(rows(linear)):
            if config.init == "normal":
                nn.init.normal_(weight, std=NORMAL_STD)
            else:
                nn.init.xavier_uniform_(weight, gain=depth**-0.5 if config.init == "depth_scaled" else 1.0)
        if linear.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            nn.init.zeros_(linear.bias)
