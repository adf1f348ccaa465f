"""Fast CUDA versions of two operations: attention within packed sentences, and the conversion of weights to bf16.

`T` queries, `S` keys, `L` either, `H` heads, `G` key/value heads, `E` head width.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# `torch._foreach_*` changes all tensors of a list in one operation; torch has no public name for it.

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from transformer_mt.model.layers import Linear
from transformer_mt.model.packing import PackedMask

# --- attention --------------------------------------------------------------------------------------------------------


def packed_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: PackedMask, dropout_rate: float = 0.0
) -> Tensor:
    """Compute softmax(Q K^T / sqrt(E)) V within each sentence, on CUDA. [1, H, T, E], 2 x [1, G, S, E] -> [1, H, T, E].

    This is the memory-efficient kernel of PyTorch (Rabe & Staats 2021), called without `scaled_dot_product_attention`,
    which has no offsets. On an H100 with sentences of 30 tokens it took a quarter of the time of `varlen_attn`, the
    FlashAttention kernel, whose blocks are longer than the sentences.
    """
    n_repeats = queries.size(1) // keys.size(1)
    if n_repeats > 1:  # the kernel has no grouped queries
        keys, values = (x.repeat_interleave(n_repeats, dim=1) for x in (keys, values))
    context, *_ = torch.ops.aten._efficient_attention_forward(
        *map(_put_tokens_first, (queries, keys, values)),
        None,
        mask.queries.offsets,
        mask.keys.offsets,
        mask.queries.longest,
        mask.keys.longest,
        dropout_rate,
        int(mask.is_causal),
        True,  # keep what the backward pass needs
    )
    return cast(Tensor, context).transpose(1, 2)


def _put_tokens_first(x: Tensor) -> Tensor:
    """Swap heads and tokens, and copy if the heads come first in memory. [1, H, L, E] -> [1, L, H, E].

    The kernel returns contiguous gradients. `torch.compile` expects the strides of the input, which are the same only
    with the tokens first.
    """
    x = x.transpose(1, 2)
    return x if x.stride(1) >= x.stride(2) else x.contiguous()


# --- weights ----------------------------------------------------------------------------------------------------------


class WeightCast:
    """Lets the projections of a model's layers compute with copies in `dtype`. Gradients reach the original weights.

    Each layer is copied with one or a few kernels. Autocast converts each weight and bias, and in the backward pass
    each of their gradients, with a kernel of its own, which the host submits more slowly than a GPU computes it. On an
    H200 a step of the base model took 52 instead of 75 ms. Compiled layers are as fast without it.
    """

    def __init__(self, layers: Iterable[nn.Module], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.linears = {
            layer: [(module, [*module.parameters()]) for module in layer.modules() if isinstance(module, Linear)]
            for layer in layers
        }  # of each layer, with weight and bias, if any

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Use copies in forward passes inside the `with` block. Those of a layer are made when the pass reaches it.

        A backward pass computes the newest nodes of the graph first. If the copies were made before the forward pass,
        no gradient of a projection would be complete before the end of the backward pass, and none could be sent early.
        """
        hooks = [layer.register_forward_pre_hook(self._cast) for layer in self.linears]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for linears in self.linears.values():
                for linear, _ in linears:
                    linear.copies = None

    def _cast(self, layer: nn.Module, _inputs: tuple[object, ...]) -> None:
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
