"""The two parts of model FLOPs utilisation: operations of a training step, and the peak rate of the machine."""

from __future__ import annotations

import time

import torch

from transformer_mt.model.model_config import ModelConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRODUCT = {"cpu": (4096, 1024, 1024), "mps": (4096, 4096, 4096), "cuda": (8192, 8192, 8192)}
"""Sizes M, K, N of the matrix product [M, K] @ [K, N] that measures the peak rate."""


def model_flops(model: ModelConfig, vocab: int, src: list[int], tgt: list[int]) -> float:
    """Count the floating-point operations of a training step in matrix products, for sentences of these lengths.

    A multiply-add counts as 2, and a training step as 3 forward passes, because backward has two products for each.
    Padding does not count. For width D, E = n_kv_heads * d_head, inner width F, lengths S and T, the multiply-adds are:

        attention projections       2 D D + 2 D E per position; cross-attention: 2 D D per target position, 2 D E per
                                    source position
        scores and weighted sum     encoder: 2 D S S; causal decoder: D T (T + 1); cross-attention: 2 D S T
        feed-forward                2 D F per position; 3 D F if gated
        output projection           D V per target position
    """
    wide = model.d_model
    n_src, n_tgt = sum(src), sum(tgt)
    gated = 3 if model.activation.endswith("glu") else 2
    total = wide * vocab * n_tgt
    for stack, n in ((model.encoder, n_src), (model.decoder, n_tgt)):
        own = model.for_stack(stack)
        outer, inner = 2 * wide * wide, 2 * wide * own.kv_heads * own.d_head
        layer = n * (outer + inner + gated * wide * own.d_ff)
        if stack is model.encoder:
            layer += sum(2 * wide * s * s for s in src)
        else:
            layer += n_tgt * outer + n_src * inner
            layer += sum(wide * t * (t + 1) + 2 * wide * s * t for s, t in zip(src, tgt, strict=True))
        total += stack.n_layers * layer
    return 2.0 * 3.0 * total


def product_rate(device: torch.device, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """Measure the peak rate of a matrix product in floating-point operations per second."""
    m, k, n = PRODUCT[device.type]
    left, right = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(4):
            torch.mm(left, right)
        synchronise(device)
        best = min(best, (time.perf_counter() - began) / 4)
    return 2 * m * k * n / best


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued operations."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
