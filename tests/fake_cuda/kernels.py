"""References of the kernels that exist only for CUDA, step by step in fp32: attention, RMSNorm, and softmax of fp16.

`B` batch, `T` queries, `S` keys, `H` heads, `E` head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fake_cuda.device import KERNELS, hidden, observe

LIBRARY = torch.library.Library("aten", "IMPL")


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as the kernel of the operator of that name."""
    name = function.__name__

    def run(*args: Any, **kwargs: Any) -> Any:
        observe(name, KERNELS.get(f"aten::{name}", 1))
        with hidden(), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    LIBRARY.impl(name, run, "CUDA")
    return function


# --- attention --------------------------------------------------------------------------------------------------------


def attention_weights(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Return the attention weights in fp32; those of a query without keys are 0. [B, H, T, S].

    The kernel needs one dtype, contiguous heads, and a width of them that is a multiple of 8.
    """
    assert query.dtype == key.dtype
    assert query.stride(-1) == key.stride(-1) == 1
    assert query.size(-1) % 8 == 0
    scores = query.float() @ key.float().mT * (query.size(-1) ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.float()
    return scores.softmax(-1).nan_to_num(0.0)


def dropout_factors(weights: Tensor, rate: float, seed: Tensor) -> Tensor | float:
    """Return 0 for dropped weights and 1 / (1 - rate) for the others, the same for the same seed."""
    if rate == 0.0:
        return 1.0
    generator = torch.Generator().manual_seed(int(seed))
    return (torch.rand(weights.shape, generator=generator) >= rate).to(weights.device) / (1 - rate)


def attention_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    rate: float,
    seed: Tensor,
    scale: float | None,
) -> list[Tensor]:
    """Return the gradients of queries, keys and values."""
    weights = attention_weights(query, key, bias, scale)
    factors, grad = dropout_factors(weights, rate, seed), grad.float()
    grad_value = (weights * factors).mT @ grad
    grad_weights = grad @ value.float().mT * factors
    grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    grad_scores = grad_scores * (query.size(-1) ** -0.5 if scale is None else scale)
    return [
        (grad_scores @ key.float()).to(query.dtype),
        (grad_scores.mT @ query.float()).to(key.dtype),
        grad_value.to(value.dtype),
    ]


@kernel
def _scaled_dot_product_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert attn_bias is None or attn_bias.dtype == query.dtype
    assert not is_causal
    weights, seed = attention_weights(query, key, attn_bias, scale), torch.randint(1 << 40, ())
    context = (weights * dropout_factors(weights, dropout_p, seed)) @ value.float()  # [B, H, T, E]
    context = context.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    return context, weights[..., 0], seed, seed


@kernel
def _scaled_dot_product_efficient_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    return (*attention_gradients(grad, query, key, value, attn_bias, dropout_p, philox_seed, scale), None)


def packed_bias(
    query: Tensor, key: Tensor, offsets_q: Tensor, offsets_k: Tensor, longest: Sequence[int], mask_type: int
) -> Tensor:
    """Return 0 for keys of the query's sentence, and minus infinity for others. [T, S].

    A causal mask (type 1) also hides the keys that are further from the start of the sentence than the query.
    """
    assert mask_type in (0, 1)
    bias = torch.full((query.size(1), key.size(1)), -torch.inf)
    ends = zip(*(offsets.tolist() for offsets in (offsets_q, offsets_k)), strict=True)
    first_q = first_k = 0
    for end_q, end_k in ends:
        block = torch.zeros(end_q - first_q, end_k - first_k)
        assert all(length <= most for length, most in zip(block.shape, longest, strict=True))
        if mask_type:
            block = block.masked_fill(torch.ones_like(block).triu(1) > 0, -torch.inf)
        bias[first_q:end_q, first_k:end_k] = block
        first_q, first_k = end_q, end_k
    return bias.to(query.device)


@kernel
def _efficient_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
    mask = packed_bias(query, key, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k), custom_mask_type)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # [1, H, L, E]
    weights, seed = attention_weights(query, key, mask, scale), torch.randint(1 << 40, ())
    context = (weights * dropout_factors(weights, dropout_p, seed)) @ value.float()
    return (
        context.to(query.dtype).transpose(1, 2).contiguous(),
        weights[..., 0],
        seed,
        seed,
        max_seqlen_q,
        max_seqlen_k,
    )


@kernel
def _efficient_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: Tensor,
    dropout_p: float,
    philox_seed: Tensor,
    philox_offset: Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    num_splits_key: int | None = None,
    window_size: int | None = None,
    shared_storage_dqdkdv: bool = False,
) -> tuple[Tensor | None, ...]:
    mask = packed_bias(query, key, cu_seqlens_q, cu_seqlens_k, (max_seqlen_q, max_seqlen_k), custom_mask_type)
    grad, query, key, value = (x.transpose(1, 2) for x in (grad, query, key, value))  # [1, H, L, E]
    gradients = attention_gradients(grad, query, key, value, mask, dropout_p, philox_seed, scale)
    return (*(x.transpose(1, 2).contiguous() for x in gradients), None)


# --- RMSNorm ----------------------------------------------------------------------------------------------------------


@kernel
def _fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    assert len(normalized_shape) == 1
    assert eps is not None
    rate = (input.float().square().mean(-1, keepdim=True) + eps).rsqrt()  # [..., 1]
    y = input.float() * rate
    return (y if weight is None else y * weight).to(input.dtype), rate


@kernel
def _fused_rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor, Tensor | None]:
    grad, x = grad_out.float(), input.float() * rstd
    grad_x = grad if weight is None else grad * weight
    grad_input = (grad_x - x * (grad_x * x).mean(-1, keepdim=True)) * rstd
    grad_weight = None if weight is None else (grad * x).flatten(0, -2).sum(0).to(weight.dtype)
    return grad_input.to(input.dtype), grad_weight


# --- softmax ----------------------------------------------------------------------------------------------------------
# The kernels of the CPU cannot read fp16 and write fp32.


@kernel
def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    logits = x.float()
    return (logits - logits.logsumexp(dim, keepdim=True)).to(torch.float32 if half_to_float else x.dtype)


@kernel
def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    logits = x.float()
    return (logits - logits.logsumexp(dim, keepdim=True)).exp().to(torch.float32 if half_to_float else x.dtype)
