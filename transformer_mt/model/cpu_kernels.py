"""Fast CPU versions of five operations, and the switch between them and plain PyTorch.

At the sizes of a translation model, PyTorch's own CPU code is slow for:

* bf16 matrix products: oneDNN compiles a kernel for each new shape, and almost every batch has a new shape;
* large fp32 matrix products: PyTorch calls MKL, which takes twice as long as oneDNN on an AMD CPU;
* dropout: PyTorch draws 32 random bits for each element, one after the other;
* softmax over few keys: PyTorch's kernel takes ten times as long for rows shorter than a vector register;
* RMSNorm: PyTorch has no CPU kernel, and the gradient of the composed operations takes three times as long.

`slice_sources` splits batches for the encoder, so that their states fit into the caches of the processor.

The kernels equal the plain PyTorch code beside each call, except for rounding. `uses_cpu_kernels`,
`needs_padded_rows` and `onednn_is_faster` say which of the two to run. Gradients are written out to save passes over
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

ENABLED = True  # False only in tests, which compare the kernels with plain PyTorch


def uses_cpu_kernels(device: torch.device) -> bool:
    """Return whether operations on `device` run the kernels of this module instead of plain PyTorch.

    Compiled layers run plain PyTorch, which the compiler fuses.
    """
    return ENABLED and device.type == "cpu" and not torch.compiler.is_compiling()


# --- attention --------------------------------------------------------------------------------------------------------

SHORT_KEYS = 128
"""Up to this many keys, explicit fp32 attention is faster on a CPU than PyTorch's fused kernel."""


def explicit_attention_is_faster(queries: Tensor, n_keys: int) -> bool:
    """Return whether separate products beat PyTorch's fused attention: on a CPU in bf16 (2 to 7 times) or if short."""
    return uses_cpu_kernels(queries.device) and (queries.dtype == torch.bfloat16 or n_keys <= SHORT_KEYS)


TINY = torch.finfo(torch.float32).tiny
MIN_SCORE = -80.0  # relative to the maximum: exp takes ten times as long where it underflows


def masked_score(dtype: torch.dtype) -> float:
    """Return the score of a masked key in `dtype`: half of the minimum, so that adding a score cannot overflow."""
    return torch.finfo(dtype).min / 2


MASKED_SCORE = masked_score(torch.float32)


def masked_softmax_cpu(scores: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return softmax(scale * scores) over the last dimension in fp32, and 0 where `mask` is False.

    A row that is masked completely is 0. [B, H, T, S] -> [B, H, T, S]
    """
    if not torch.is_grad_enabled():
        return _softmax_in_place(scores, mask, scale)
    return cast(Tensor, _MaskedSoftmax.apply(scores, mask, scale))


class _MaskedSoftmax(torch.autograd.Function):
    """`masked_softmax_cpu` with its gradient: for weights w and their gradient g, w (g - sum(g w))."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        weights = _softmax_in_place(scores, mask, scale)
        ctx.save_for_backward(weights)
        ctx.scale, ctx.dtype = scale, scores.dtype
        return weights

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (weights,) = ctx.saved_tensors
        products = grad_outputs[0] * weights
        grad_scores = products.sub_(weights * products.sum(-1, keepdim=True)).mul_(ctx.scale)
        return grad_scores.to(ctx.dtype), None, None


def _softmax_in_place(scores: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    weights = scores.float() * scale
    if mask is not None:
        weights += torch.zeros(mask.shape).masked_fill_(~mask, MASKED_SCORE)
    weights.sub_(weights.amax(-1, keepdim=True)).clamp_(min=MIN_SCORE).exp_()
    if mask is not None:
        weights *= mask.float()  # in a row that is masked completely, all weights are 1 until here
    weights /= weights.sum(-1, keepdim=True).clamp_(min=TINY)
    return weights


# --- encoder ----------------------------------------------------------------------------------------------------------

SLICE_TOKENS = 2048
"""Source tokens that translation encodes together, so that the states stay in the cache of a CPU."""


def slice_sources(src: Tensor, pad_id: int) -> Iterator[Tensor]:
    """Yield a batch in slices that the encoder reads one by one, on a CPU without their padding. [B, S] -> [b, s] each.

    A batch is sorted by length, so that most slices have less padding than the batch.
    """
    if not uses_cpu_kernels(src.device):
        yield src
        return
    for rows in torch.split(src, max(1, SLICE_TOKENS // src.size(1))):
        yield rows[:, : max(1, int((rows != pad_id).sum(1).max()))]


# --- dropout ----------------------------------------------------------------------------------------------------------

DROPOUT_STEPS = 1 << 16
"""16 random bits distinguish this many dropout rates."""


def dropout_cpu(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability `p` and scale the others by 1 / (1 - p), with 16 random bits per element."""
    return cast(Tensor, _Dropout16Bit.apply(x, min(round(p * DROPOUT_STEPS), DROPOUT_STEPS - 1)))


class _Dropout16Bit(torch.autograd.Function):
    """Dropout that takes four elements' random bits from each 64-bit random number.

    The mask has the dtype of the input, because products with floats run several times as fast as those with bools.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        random_64_bit = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        random_16_bit = random_64_bit.view(torch.int16)[: x.numel()].view(x.shape)
        kept = torch.ge(random_16_bit, threshold - DROPOUT_STEPS // 2, out=torch.empty(x.shape, dtype=x.dtype))
        ctx.save_for_backward(kept)
        ctx.scale = DROPOUT_STEPS / (DROPOUT_STEPS - threshold)
        return x.mul(kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (kept,) = ctx.saved_tensors
        return grad_outputs[0].mul(kept).mul_(ctx.scale), None


# --- RMSNorm ----------------------------------------------------------------------------------------------------------


def rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension. fp32 [..., D], [D] -> [..., D]."""
    return cast(Tensor, _RMSNorm.apply(x, weight, eps))


class _RMSNorm(torch.autograd.Function):
    """`rms_norm_cpu` with its gradient.

    With r = 1 / sqrt(mean(x^2) + eps) and output gradient g: dx = r (g w - x r^2 mean(x g w)), dw = sum(g x r).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        width = x.size(-1)
        norm = cast(Tensor, torch.linalg.vector_norm(x, dim=-1, keepdim=True))
        rate = norm.square_().div_(width).add_(eps).rsqrt_()  # [..., 1]
        ctx.save_for_backward(x, weight, rate)
        return (x * rate).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        x, weight, rate = ctx.saved_tensors
        grad_y, width = grad_outputs[0], x.size(-1)
        products = (grad_y * x).reshape(-1, width)  # [N, D]
        sums = (products @ weight).view_as(rate)  # [..., 1]
        grad_weight = rate.reshape(1, -1) @ products  # [1, D]
        grad_x = (grad_y * weight).mul_(rate).addcmul_(x, sums.mul_(rate**3).div_(-width))
        return grad_x, grad_weight.squeeze(0), None


# --- oneDNN products with padded rows ---------------------------------------------------------------------------------

BUCKETS_PER_OCTAVE = 8
"""Number of row counts from a power of two to the next. Padding adds at most 1/8 of the rows, 1/24 on average."""


def needs_padded_rows(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether products on `device` in `dtype` compile a kernel per shape: bf16 on a CPU."""
    return dtype == torch.bfloat16 and uses_cpu_kernels(device)


def bucket_size(n_rows: int) -> int:
    """Round a row count up to one of `BUCKETS_PER_OCTAVE` counts per octave; counts up to 16 stay."""
    step = max(1, (1 << max(0, n_rows - 1).bit_length()) // (2 * BUCKETS_PER_OCTAVE))
    return -(-n_rows // step) * step


def pad_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert rows to `dtype` and append zero rows up to `bucket_size`. [N, ...] -> [bucket_size(N), ...]."""
    n_rows = rows.size(0)
    n_padded = bucket_size(n_rows)
    if n_padded == n_rows:
        return rows.to(dtype)
    padded = rows.new_empty(n_padded, *rows.shape[1:], dtype=dtype)
    padded[:n_rows] = rows
    padded[n_rows:] = 0
    return padded


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return x W^T + b in `dtype`, computed with padded rows. [..., D], [O, D], [O] -> [..., O]."""
    n_rows = x.numel() // x.size(-1)
    if not torch.is_grad_enabled() and bucket_size(n_rows) == n_rows:
        return F.linear(x.to(dtype), weight, bias)  # decoding would notice the overhead of the call below
    return cast(Tensor, _PaddedLinear.apply(x, weight, bias, dtype))


ONEDNN_PRODUCT = 1 << 20
"""From this many multiplications on, oneDNN's fp32 product is faster than MKL's in spite of its longer call."""
HAS_MKL_AND_ONEDNN = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()


def onednn_is_faster(x: Tensor, weight: Tensor) -> bool:
    """Return whether `onednn_linear` may replace `F.linear`, and is faster. It has no gradient."""
    is_usable = HAS_MKL_AND_ONEDNN and not torch.is_grad_enabled() and uses_cpu_kernels(x.device)
    # the size comes last: a graph that PyTorch traces must not depend on it
    return is_usable and x.dtype == weight.dtype == torch.float32 and x.numel() * weight.size(0) >= ONEDNN_PRODUCT


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b in fp32, computed by oneDNN with padded rows. [..., D], [O, D], [O] -> [..., O]."""
    rows = x.reshape(-1, x.size(-1))  # [N, D]
    y = torch.ops.mkldnn._linear_pointwise(pad_rows(rows, x.dtype), weight, bias, "none", [], "")
    return y[: len(rows)].view(*x.shape[:-1], len(weight))


PACKED_WEIGHTS = 1 << 18
"""From this number of fp32 weights on, packed weights are faster."""
MAX_SMALL_ROWS = 16
"""Up to this many rows, PyTorch's products with smaller fp32 weights are the fastest."""


def make_product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return the function x -> x W^T + b for inference in the dtype of the weights. [O, D], [O]; [N, D] -> [N, O].

    Large fp32 weights, and all in bf16, are copied in the layout that oneDNN computes with. Products of few rows then
    take a third to two thirds of the time.
    """
    dtype, transposed = weight.dtype, weight.t()
    is_large_fp32 = dtype == torch.float32 and weight.numel() >= PACKED_WEIGHTS
    is_bf16 = HAS_MKL_AND_ONEDNN and dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if HAS_MKL_AND_ONEDNN and uses_cpu_kernels(weight.device) and (is_large_fp32 or is_bf16):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)

        def packed_product(x: Tensor) -> Tensor:
            y = torch.ops.mkldnn._linear_pointwise(pad_rows(x, dtype), packed, bias, "none", [], "")
            return y.narrow(0, 0, x.size(0))

        return packed_product

    def product(x: Tensor) -> Tensor:
        if x.size(0) > MAX_SMALL_ROWS and onednn_is_faster(x, weight):
            return onednn_linear(x, weight, bias)
        x = x if x.dtype == dtype else x.to(dtype)
        return torch.mm(x, transposed) if bias is None else torch.addmm(bias, x, transposed)

    return product


class _PaddedLinear(torch.autograd.Function):
    """x W^T + b with padded rows. Each conversion to bf16 also pads, in the same pass over memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        rows = x.reshape(-1, x.size(-1))  # [N, D]
        padded, weight_16 = pad_rows(rows, dtype), weight.to(dtype)
        ctx.save_for_backward(padded, weight_16)
        ctx.shape, ctx.dtypes = x.shape, [None if given is None else given.dtype for given in (x, weight, bias)]
        y = F.linear(padded, weight_16, None if bias is None else bias.to(dtype))  # [bucket_size(N), O]
        return y[: len(rows)].view(*x.shape[:-1], len(weight))  # [..., O]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad_y,), (padded, weight) = grad_outputs, ctx.saved_tensors
        rows = grad_y.reshape(-1, len(weight))  # [N, O]
        padded_grad = pad_rows(rows, weight.dtype)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_x = (padded_grad @ weight)[: len(rows)].view(ctx.shape).to(ctx.dtypes[0]) if needs_x else None
        grad_weight = (padded_grad.T @ padded).to(ctx.dtypes[1]) if needs_weight else None
        grad_bias = padded_grad.sum(0).to(ctx.dtypes[2]) if needs_bias else None
        return grad_x, grad_weight, grad_bias, None
