"""Sums over logits that exist only in chunks. Their gradient is worked out beside them, so that no chunk is made twice.

`N` labels that count, `n` of a chunk, `D` width, `V` vocabulary; `...` is nothing, or the passes of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from transformer_mt.model.padded_linear import compute_dtype, fill_up

CHUNK_BYTES = {"cpu": 1 << 23, "cuda": 1 << 28}
"""Logits held at once: on a CPU, about what its caches hold."""
CHUNK_BYTES_ELSEWHERE = 1 << 25

ChunkLoss = Callable[[Tensor, Tensor], Tensor]
"""Of a chunk: from logits [n, ..., V] and labels [n] to some sums, in fp32. The gradient of the first of them takes the
place of the logits."""


def sum_over_chunks(states: Tensor, weight: Tensor, labels: Tensor, chunk_loss: ChunkLoss, tensors: int = 1) -> Tensor:
    """The sums of all chunks, of which the first has a gradient. [N, ..., D], [V, D], [N] -> [sums]

    The logits are made, used and dropped in the precision of the autocast around; working out holds so many tensors of
    their size.
    """
    dtype, logits = compute_dtype(states), math.prod(states.shape[1:-1]) * len(weight)  # of a label
    rows = chunk_rows(states.device, tensors * logits * dtype.itemsize)
    with torch.autocast(states.device.type, enabled=False):
        return cast(Tensor, _Chunks.apply(states, weight, labels, chunk_loss, rows, dtype, torch.is_grad_enabled()))


def non_pad_indices(labels: Tensor, pad_id: int, n_labels: int) -> Tensor:
    """Return the flat indices of the `n_labels` labels that are no padding. [B, T] -> [N]

    The caller knows `n_labels` beforehand, so that a GPU need not synchronise to count them.
    """
    is_real = labels.flatten() != pad_id  # [B * T]
    if labels.device.type == "mps":  # MPS has `nonzero_static` only from torch 2.12 on
        return is_real.nonzero()[:, 0]
    return torch.nonzero_static(is_real, size=n_labels)[:, 0]


def chunk_rows(device: torch.device, row_bytes: int) -> int:
    """How many rows of logits are worked on at once."""
    return max(1, CHUNK_BYTES.get(device.type, CHUNK_BYTES_ELSEWHERE) // row_bytes)


class _Chunks(torch.autograd.Function):
    """Chunk by chunk: logits, their sums, and from the gradient in their place those of states and weight."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        labels: Tensor,
        chunk_loss: ChunkLoss,
        rows: int,
        dtype: torch.dtype,
        wants_gradient: bool,
    ) -> Tensor:
        states = fill_up(states, dtype)
        grad_states = torch.empty_like(states) if wants_gradient else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_gradient else None
        weight = weight.to(dtype)
        sums: list[Tensor] = []
        for start in range(0, max(1, len(labels)), rows):
            chunk = slice(start, start + rows)
            logits = states[chunk] @ weight.T  # [n, ..., V]; rows that fill up stay 0, which is their gradient too
            wanted = labels[chunk]
            sums.append(chunk_loss(logits[: len(wanted)], wanted))
            if grad_states is not None and grad_weight is not None:
                gradient = logits.flatten(0, -2)
                torch.mm(gradient, weight, out=grad_states[chunk].view(-1, weight.size(1)))
                grad_weight += gradient.T @ states[chunk].flatten(0, -2)
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.count = len(labels)
        return torch.stack(sums).sum(0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        grad_states, grad_weight = ctx.saved_tensors
        scale = grad_outputs[0][0]
        return grad_states[: ctx.count] * scale, grad_weight * scale, None, None, None, None, None
