"""Low-precision copies of the weights for one pass, made with one or a few kernels per layer.

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
from torch import Tensor, nn

from transformer_mt.model.linear import Linear
from transformer_mt.model.transformer import Transformer


class WeightCast:
    """Lets the projections of a model's layers compute with copies in `dtype`. Gradients reach the original weights."""

    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        self.stacks, self.dtype = (model.encoder, model.decoder), dtype
        self.linears = {
            layer: [(module, [*module.parameters()]) for module in layer.modules() if isinstance(module, Linear)]
            for stack in self.stacks
            for layer in stack.layers
        }  # of each layer, with weight and bias, if any

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Use copies in forward passes inside the `with` block. Those of a layer are made when the pass reaches it.

        A backward pass computes the newest nodes of the graph first. If the copies were made before the forward pass,
        no gradient of a projection would be complete before the end of the backward pass, and none could be sent early.
        """
        for stack in self.stacks:
            stack.before_layer = self._cast
        try:
            yield
        finally:
            for stack in self.stacks:
                stack.before_layer = None
            for linears in self.linears.values():
                for linear, _ in linears:
                    linear.copies = None

    def _cast(self, layer: nn.Module) -> None:
        """Make the copies of a layer."""
        originals = [parameter for _, parameters in self.linears[layer] for parameter in parameters]
        copies = iter(cast("tuple[Tensor, ...]", _CastAll.apply(self.dtype, *originals)))
        for linear, parameters in self.linears[layer]:
            linear.copies = next(copies), next(copies) if len(parameters) > 1 else None


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
