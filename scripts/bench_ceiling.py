"""What a machine could do at best, and how much of it a model needs: the two parts of model FLOPs utilisation."""

from __future__ import annotations

import time

import torch

from transformer_mt.model.config import ModelConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRODUCT = {"cpu": (4096, 1024, 1024), "mps": (4096, 4096, 4096), "cuda": (8192, 8192, 8192)}
"""The matrix product [M, K] @ [K, N] whose rate is the ceiling: M, K, N."""


def model_flops(model: ModelConfig, vocab: int, src: list[int], tgt: list[int]) -> float:
    """Floating-point operations of a training step over sentences of these lengths, in the model's matrix products.

    Two for each multiply-add, and three times those of the forward pass, as backward has two products for each. For D
    width, E = n_kv_heads * d_head, F inner width, S and T lengths, the multiply-adds are, padding not counted:

        projections of attention    (2 D D + 2 D E) a position; in cross-attention, 2 D D at the target's positions
                                    and 2 D E at the source's
        scores and mixture          2 D S S in the encoder, D T (T + 1) in the causal decoder, 2 D S T across
        feed-forward                2 D F a position; 3 D F where it is gated
        output, once                D V a target position
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
    """Floating-point operations per second of a matrix product: the best of some turns."""
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
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
