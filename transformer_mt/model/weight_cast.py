"""Low-precision copies of the weights for one forward pass, made with one kernel per layer.

Autocast converts each weight and bias, and in the backward pass each of their gradients, with a kernel of its own: a
fifth of the kernels of a training step of the base model. The host takes longer to launch such a kernel than a GPU to
compute it.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# `torch._foreach_*` changes all tensors of a list in one operation; torch has no public name for it.

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from transformer_mt.model.linear import Linear
from transformer_mt.model.transformer import Transformer


class WeightCast:
    """Converts the projections of all layers of a model to `dtype`. Gradients reach the model's parameters."""

    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        layers = [layer for stack in (model.encoder, model.decoder) for layer in stack.layers]
        self.layers = [[module for module in layer.modules() if isinstance(module, Linear)] for layer in layers]
        self.dtype = dtype

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Use the copies in forward passes inside the `with` block."""
        try:
            for linears in self.layers:
                originals = [tensor for linear in linears for tensor in linear.weight_and_bias() if tensor is not None]
                copies = iter(cast("tuple[Tensor, ...]", _CastAll.apply(self.dtype, *originals)))
                for linear in linears:
                    has_bias = linear.weight_and_bias()[1] is not None
                    linear.copies = next(copies), next(copies) if has_bias else None
            yield
        finally:
            for linears in self.layers:
                for linear in linears:
                    linear.copies = None


class _CastAll(torch.autograd.Function):
    """Converts tensors, and in the backward pass their gradients."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
        torch._foreach_copy_(copies, tensors)
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        gradients = [torch.empty_like(each, dtype=dtype) for each, dtype in zip(grad_outputs, ctx.dtypes, strict=True)]
        torch._foreach_copy_(gradients, grad_outputs)
        return None, *gradients
