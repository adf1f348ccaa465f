"""Multi-head attention (Vaswani et al. 2017, section 3.2), one class for self- and cross-attention.

With fewer key/value heads than query heads it is multi-query (Shazeer 2019) or grouped-query attention (Ainslie et al.
2023): query head h uses key/value head h * G // H.

`B` batch, `T` queries, `S` keys, `L` either, `D` model width, `H` query heads, `G` key/value heads, `R` = H / G, `E` =
D / H head width. A mask is True where attention is allowed, and broadcasts to [B, H, T, S]. A `PackedMask` stores
offsets instead of a matrix (packing.py). Inference adds a mask of floats to the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.cpu_kernels import (
    MASKED_SCORE,
    SHORT_KEYS,
    explicit_attention_is_faster,
    masked_softmax_cpu,
    uses_cpu_kernels,
)
from transformer_mt.model.cuda_kernels import packed_attention
from transformer_mt.model.layers import FusedLinear, Linear, dropout
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.packing import PackedMask
from transformer_mt.model.positions import Rotation, rotate


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Return the mask that hides padding. [B, S] -> [B, 1, 1, S]."""
    return (ids != pad_id)[:, None, None, :]


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Return the mask that shows position t the positions up to t. [1, 1, T, T]."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]


Mask = Tensor | PackedMask | None


class KeysValues(NamedTuple):
    """Keys and values, split into heads."""

    keys: Tensor  # [B, G, S, E]
    values: Tensor  # [B, G, S, E]


class MultiHeadAttention(nn.Module):
    """Attention with its projections.

    Projections and attention are separate calls, because queries and keys have different origins. Self-attention
    projects all three from one input (`project`). Cross-attention projects the queries from the target, and the keys
    and values from the encoder output.

    Inference computes the projections itself, and then calls the same `split`, and `infer` instead of `attend`.
    """

    weights: Tensor | None = None
    """Attention weights of the last pass, after `record_weights`. [B, H, T, S]"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model, d_head = config.d_model, config.d_head
        self.n_heads, self.n_kv_heads, self.d_head = config.n_heads, config.kv_heads, d_head
        self.dropout = config.dropout.attention
        self.queries_keys_values = FusedLinear(
            d_model, [d_model, *2 * [config.kv_heads * d_head]], config.attention_bias
        )
        self.output = Linear(d_model, d_model, config.attention_output_bias)
        self.attend: Callable[[Tensor, KeysValues, Mask, float], Tensor] = attend
        self.infer: Callable[[Tensor, KeysValues, Tensor], Tensor] = infer_attention

    def project(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, KeysValues]:
        """Project one input to queries, keys and values. [B, L, D] -> [B, H, L, E], 2 x [B, G, L, E]."""
        return self.split(self.queries_keys_values(x), rotation)

    def project_queries(self, x: Tensor) -> Tensor:
        """Project only queries, of cross-attention. [B, T, D] -> [B, H, T, E]."""
        (queries,) = self.queries_keys_values.project(x, 0, 1)
        return self.split_heads(queries)

    def project_keys_values(self, states: Tensor) -> KeysValues:
        """Project only keys and values, of cross-attention. [B, S, D] -> 2 x [B, G, S, E]."""
        return KeysValues(*map(self.split_heads, self.queries_keys_values.project(states, 1, 3)))

    def forward(self, queries: Tensor, keys_values: KeysValues, mask: Mask) -> Tensor:
        """Attend and project the output. [B, H, T, E], 2 x [B, G, S, E] -> [B, T, D]."""
        context = self.attend(queries, keys_values, mask, self.dropout if self.training else 0.0)  # [B, H, T, E]
        return self.output(context.transpose(1, 2).flatten(2))  # [B, T, D]

    def split(self, projected: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, KeysValues]:
        """Split a projection into heads, and rotate. [B, L, (H + 2 G) E] -> [B, H, L, E], 2 x [B, G, L, E]."""
        heads, groups = self.split_heads(projected), self.n_kv_heads  # [B, H + 2 G, L, E]
        queries, keys, values = heads.split_with_sizes([self.n_heads, groups, groups], dim=1)
        return rotate(queries, rotation), KeysValues(rotate(keys, rotation), values)

    def split_heads(self, x: Tensor) -> Tensor:
        """Split the last dimension into heads. [B, L, H * E] -> [B, H, L, E]."""
        return x.view(x.size(0), x.size(1), -1, self.d_head).transpose(1, 2)

    def record_weights(self) -> None:
        """Let each later pass without packed sentences store its attention weights."""

        def attend_and_record(queries: Tensor, keys_values: KeysValues, mask: Mask, dropout_rate: float) -> Tensor:
            assert not isinstance(mask, PackedMask)
            context, self.weights = explicit_attention(queries, keys_values, mask, dropout_rate)
            return context

        self.attend = attend_and_record


def attend(queries: Tensor, keys_values: KeysValues, mask: Mask, dropout_rate: float = 0.0) -> Tensor:
    """Compute softmax(Q K^T / sqrt(E)) V. [B, H, T, E], 2 x [B, G, S, E] -> [B, H, T, E].

    A query that may attend to nothing gets zeros.
    """
    if isinstance(mask, PackedMask):
        if not queries.is_cpu:  # a GPU, or meta tensors
            return packed_attention(queries, *keys_values, mask, dropout_rate)
        mask = mask.to_dense()
    if explicit_attention_is_faster(queries, n_keys=keys_values.keys.size(2)):
        return explicit_attention(queries, keys_values, mask, dropout_rate)[0]
    return fused_attention(queries, keys_values, mask, dropout_rate)


def fused_attention(queries: Tensor, keys_values: KeysValues, mask: Tensor | None, dropout_rate: float = 0.0) -> Tensor:
    """Compute `attend` with PyTorch's fused kernel, which never holds all attention weights.

    The CUDA kernel that accepts a mask does not support grouped queries. So the R query heads that share a key/value
    head become one head with R * T queries.
    """
    batch, groups = keys_values.keys.shape[:2]
    shape, is_grouped = queries.shape, groups < queries.size(1)
    if is_grouped and mask is not None and mask.shape[1:3] != (1, 1):
        mask = mask.expand(-1, *shape[1:3], -1).reshape(len(mask), groups, -1, mask.size(3))  # [B, G, R * T, S]
    grouped = queries.reshape(batch, groups, -1, shape[3]) if is_grouped else queries  # [B, G, R * T, E]
    context = F.scaled_dot_product_attention(grouped, *keys_values, attn_mask=mask, dropout_p=dropout_rate)
    return context.reshape(shape)  # [B, H, T, E]


def explicit_attention(
    queries: Tensor, keys_values: KeysValues, mask: Tensor | None, dropout_rate: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute `attend` step by step; also return the weights before dropout. [B, H, T, E], [B, H, T, S].

    The R query heads that share a key/value head become one head with R * T queries.
    """
    keys, values = keys_values
    if keys.stride(2) != keys.size(3):  # products with strided keys and values take twice as long
        keys, values = keys.contiguous(), values.contiguous()
    batch, groups, n_keys, width = keys.shape
    grouped = queries.reshape(batch, groups, -1, width)  # [B, G, R * T, E]
    scores = (grouped @ keys.mT).view(*queries.shape[:3], n_keys)  # [B, H, T, S]
    weights = masked_softmax(scores, mask, scale=width**-0.5)
    dropped = dropout(weights, dropout_rate).to(values.dtype).view(batch, groups, -1, n_keys)  # [B, G, R * T, S]
    return (dropped @ values).view_as(queries), weights


def masked_softmax(scores: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return softmax(scale * scores) over the last dimension in fp32, and 0 where `mask` is False. [B, H, T, S]."""
    if uses_cpu_kernels(scores.device):
        return masked_softmax_cpu(scores, mask, scale)
    scores = scores.float() * scale
    if mask is None:
        return scores.softmax(-1)
    # The fill value is finite, so a row that is masked completely is not NaN; the product sets it to 0.
    return scores.masked_fill(~mask, MASKED_SCORE).softmax(-1) * mask


# --- inference --------------------------------------------------------------------------------------------------------


def expand_mask(mask: Tensor, n_heads: int, n_kv_heads: int, length: int, dtype: torch.dtype) -> Tensor:
    """Expand a mask of floats once for all layers, as `infer_attention` needs it. [B, 1, 1 or L, C] -> [B G, R L, C].

    PyTorch's fused attention is faster on a GPU and for many keys of many queries, and gets the mask as it is.
    """
    batch, _, _, n_keys = mask.shape
    if not mask.is_cpu or (dtype == torch.float32 and min(length, n_keys) > SHORT_KEYS):
        return mask
    return mask.expand(batch, n_heads, length, n_keys).reshape(batch * n_kv_heads, -1, n_keys)


def infer_attention(queries: Tensor, keys_values: KeysValues, mask: Tensor) -> Tensor:
    """Compute softmax(Q K^T / sqrt(E) + mask) V without gradient. [B, H, L, E], 2 x [B, G, C, E] -> [B, H, L, E]."""
    if mask.dim() == 4:
        return fused_attention(queries, keys_values, mask)
    shape, scale = queries.shape, queries.size(3) ** -0.5
    keys, values = keys_values.keys.flatten(0, 1).mT, keys_values.values.flatten(0, 1)  # [B G, E, C], [B G, C, E]
    grouped = queries.reshape(mask.size(0), -1, shape[3])  # [B G, R L, E]
    if grouped.dtype == torch.float32:
        weights = torch.baddbmm(mask, grouped, keys, alpha=scale).softmax(-1)  # [B G, R L, C]
    else:
        weights = torch.add(mask, torch.bmm(grouped, keys).float(), alpha=scale).softmax(-1).to(values.dtype)
    return torch.bmm(weights, values).view(shape)
