"""Matrix products: in what precision, and with how many rows.

In bf16, torch's library for CPUs (oneDNN) compiles a product for its shape, which takes longer than the product itself,
and nearly every batch would bring new shapes. So rows are filled up with zeros to one of few numbers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

PER_OCTAVE = 8
"""Numbers of rows between a power of two and the next: at most an eighth is added, a twenty-fourth on average."""


def compute_dtype(x: Tensor) -> torch.dtype:
    """The precision of products with this: that of the autocast around, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b in the precision of converted weights, or else as torch has it. [..., D] -> [..., width]"""
    dtype = compute_dtype(weight) if weight.dtype == torch.float32 else weight.dtype
    if compiles_by_shape(x.device, dtype) and (torch.is_grad_enabled() or not is_common(x.numel() // x.size(-1))):
        return cast(Tensor, _FilledUp.apply(x, weight, bias, dtype))
    return F.linear(x if weight.dtype == torch.float32 else x.to(dtype), weight, bias)


def compiles_by_shape(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether that device's products in this precision are compiled for each shape."""
    return device.type == "cpu" and dtype == torch.bfloat16


def fill_up(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows in this precision, and zeros behind them where each shape would be compiled. [N, ...] -> [N or more, ...]"""
    count = len(rows)
    wanted = bucket_size(count) if compiles_by_shape(rows.device, dtype) else count
    if wanted == count:
        return rows.to(dtype)
    filled = rows.new_empty(wanted, *rows.shape[1:], dtype=dtype)
    filled[:count] = rows
    filled[count:] = 0
    return filled


def is_common(count: int) -> bool:
    """Whether so many rows stay as they are: up to 16 do."""
    return bucket_size(count) == count


def bucket_size(count: int) -> int:
    """The next of few numbers of rows, `PER_OCTAVE` between a power of two and the next."""
    step = max(1, (1 << max(0, count - 1).bit_length()) // (2 * PER_OCTAVE))
    return -(-count // step) * step


class _FilledUp(torch.autograd.Function):
    """The product of rows that are filled up. Its gradient is written out, so that rows are converted and filled up in
    one pass over memory. [..., D] -> [..., width]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        rows = x.reshape(-1, x.size(-1))
        filled, converted = fill_up(rows, dtype), weight.to(dtype)
        ctx.save_for_backward(filled, converted)
        ctx.shape, ctx.dtypes = x.shape, [None if given is None else given.dtype for given in (x, weight, bias)]
        products = F.linear(filled, converted, None if bias is None else bias.to(dtype))
        return products[: len(rows)].view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (gradient,), (filled, weight) = grad_outputs, ctx.saved_tensors
        rows = gradient.reshape(-1, len(weight))
        pulled = fill_up(rows, weight.dtype)
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        grad_x = (pulled @ weight)[: len(rows)].view(ctx.shape).to(ctx.dtypes[0]) if of_x else None
        grad_weight = (pulled.T @ filled).to(ctx.dtypes[1]) if of_weight else None
        grad_bias = pulled.sum(0).to(ctx.dtypes[2]) if of_bias else None
        return grad_x, grad_weight, grad_bias, None
