"""Multi-head attention (Vaswani et al. 2017, section 3.2), one class for self- and cross-attention.

With fewer heads of keys and values than of queries it is multi-query (Shazeer 2019) or grouped-query attention
(Ainslie et al. 2023): query head h reads the keys and values of head h * G / H.

`B` batch, `T` queries, `S` keys, `D` width, `H` heads, `G` heads of keys and values, `E` = D / H width of a head.
A mask is bool, True means "may be attended", and its shape broadcasts to [B, H, T, S].
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.config import ModelConfig
from transformer_mt.model.dropout import dropout
from transformer_mt.model.linear import Linear, PackedLinear
from transformer_mt.model.norms import make_norm
from transformer_mt.model.positions import NoRotation, make_rotation

TINY = torch.finfo(torch.float32).tiny
SHORT = 128  # keys up to which in fp32, too, a CPU takes less time for the products one by one
FLOOR = -80.0  # of a score below the highest: exp takes ten times as long for what comes out as 0
LOWEST = torch.finfo(torch.float32).min / 2  # half, so that a score may be added


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Which keys are real. [B, S] -> [B, 1, 1, S]"""
    return (ids != pad_id)[:, None, None, :]


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Position t sees positions up to t. [1, 1, T, T]"""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]


class KeysValues(NamedTuple):
    """What is attended to, split into heads."""

    keys: Tensor  # [B, G, S, E]
    values: Tensor  # [B, G, S, E]


class MultiHeadAttention(nn.Module):
    """Attention of queries over keys and values; both are projected apart from it, because they come from elsewhere.

    Self-attention projects all three from one input in one product. Cross-attention projects the queries from the
    target and the keys and values from the encoder's output, once for each source; a decoder that works step by step
    keeps them and passes them in again.
    """

    def __init__(self, config: ModelConfig, *, is_self: bool) -> None:
        super().__init__()
        d_model, d_head = config.d_model, config.d_head
        self.d_head, self.dropout = d_head, config.dropout.attention
        self.queries_keys_values = PackedLinear(
            d_model, [d_model, *2 * [config.kv_heads * d_head]], config.attention_bias
        )
        self.output = Linear(d_model, d_model, config.attention_output_bias)
        self.query_norm = make_norm(config, d_head) if config.qk_norm else nn.Identity()
        self.key_norm = make_norm(config, d_head) if config.qk_norm else nn.Identity()
        self.rotation = make_rotation(config) if is_self else NoRotation()

    def project(self, x: Tensor, at: slice | None = None) -> tuple[Tensor, KeysValues]:
        """Queries, keys and values of one input, which stands at these positions.

        [B, L, D] -> [B, H, L, E], 2 x [B, G, L, E]
        """
        queries, keys, values = self.queries_keys_values.project(x)
        return self._queries(queries, at), self._keys_values(keys, values, at)

    def queries(self, x: Tensor) -> Tensor:
        """Queries alone. [B, T, D] -> [B, H, T, E]"""
        (queries,) = self.queries_keys_values.project(x, 0, 1)
        return self._queries(queries)

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Keys and values alone. [B, S, D] -> 2 x [B, G, S, E]"""
        keys, values = self.queries_keys_values.project(memory, 1, 3)
        return self._keys_values(keys, values)

    def forward(self, queries: Tensor, memory: KeysValues, mask: Tensor | None) -> Tensor:
        """[B, H, T, E] -> [B, T, D]"""
        context = attend(queries, memory, mask, self.dropout if self.training else 0.0)
        return self.output(context.transpose(1, 2).flatten(2))

    def _queries(self, queries: Tensor, at: slice | None = None) -> Tensor:
        normalised = self.query_norm(self._split(queries)).to(queries.dtype)
        return self.rotation(normalised, at)

    def _keys_values(self, keys: Tensor, values: Tensor, at: slice | None = None) -> KeysValues:
        normalised = self.key_norm(self._split(keys)).to(keys.dtype)
        return KeysValues(self.rotation(normalised, at), self._split(values))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.d_head).transpose(1, 2)  # [B, L, H * E] -> [B, H, L, E]


def attend(queries: Tensor, memory: KeysValues, mask: Tensor | None, dropout_rate: float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(E)) V by the fastest way there is. [B, H, T, E] -> [B, H, T, E]"""
    if queries.device.type == "cpu" and (queries.dtype == torch.bfloat16 or memory.keys.size(2) <= SHORT):
        # for sentences, torch's fused kernel takes longer here than the products one by one: in bf16 2 to 7 times
        return attend_explicitly(queries, memory, mask, dropout_rate)[0]
    return attend_fused(queries, memory, mask, dropout_rate)


def attend_fused(queries: Tensor, memory: KeysValues, mask: Tensor | None, dropout_rate: float = 0.0) -> Tensor:
    """The same by torch's kernel, which never holds all weights. [B, H, T, E] -> [B, H, T, E]

    The queries that share a head of keys are laid one behind the other: the kernel for GPUs that takes a mask knows no
    groups.
    """
    batch, groups = memory.keys.shape[:2]
    shape, is_grouped = queries.shape, groups < queries.size(1)
    if is_grouped and mask is not None and mask.shape[1:3] != (1, 1):
        mask = mask.expand(-1, *shape[1:3], -1).reshape(len(mask), groups, -1, mask.size(3))  # [B, G, R * T, S]
    together = queries.reshape(batch, groups, -1, shape[3]) if is_grouped else queries
    return F.scaled_dot_product_attention(together, *memory, attn_mask=mask, dropout_p=dropout_rate).reshape(shape)


def attend_explicitly(
    queries: Tensor, memory: KeysValues, mask: Tensor | None, dropout_rate: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same step by step, with the weights. [B, H, T, E] -> [B, H, T, E], [B, H, T, S]

    A query that may attend to nothing gets zeros, as from the fused kernel. The queries that share a head of keys are
    laid one behind the other, R = H / G for each position.
    """
    keys, values = memory[0].contiguous(), memory[1].contiguous()  # what is not takes the products twice as long
    batch, groups, length, width = keys.shape
    together = queries.reshape(batch, groups, -1, width).contiguous()  # [B, G, R * T, E]
    scores = (together @ keys.transpose(-2, -1)).view(*queries.shape[:3], length)  # [B, H, T, S]
    weights = masked_softmax(scores, mask, scale=1 / math.sqrt(width))
    kept = dropout(weights, dropout_rate).to(values.dtype).view(batch, groups, -1, length)  # [B, G, R * T, S]
    return (kept @ values).view_as(queries), weights


def masked_softmax(scores: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(scale * scores) over the last dimension, in fp32; 0 where the mask is False. [B, H, T, S] -> the same"""
    if not torch.is_grad_enabled():
        return _softmax_by_passes(scores, mask, scale)
    return cast(Tensor, _MaskedSoftmax.apply(scores, mask, scale))


def _softmax_by_passes(scores: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """In place: torch's own kernel on a CPU takes ten times as long for rows shorter than a vector of 16 numbers."""
    weights = scores.float() * scale
    if mask is not None:
        weights += torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, LOWEST)
    weights.sub_(weights.amax(-1, keepdim=True)).clamp_(min=FLOOR).exp_()
    if mask is not None:
        weights *= mask.float()  # where nothing may be attended, all have been lowest, and alike
    weights /= weights.sum(-1, keepdim=True).clamp_(min=TINY)
    return weights


class _MaskedSoftmax(torch.autograd.Function):
    """The same with its gradient written out: w (g - sum(g w))."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        weights = _softmax_by_passes(scores, mask, scale)
        ctx.save_for_backward(weights)
        ctx.scale, ctx.dtype = scale, scores.dtype
        return weights

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (weights,) = ctx.saved_tensors
        products = grad_outputs[0] * weights
        gradient = products.sub_(weights * products.sum(-1, keepdim=True)).mul_(ctx.scale)
        return gradient.to(ctx.dtype), None, None
