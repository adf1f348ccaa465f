"""Multi-head attention (Vaswani et al. 2017, section 3.2), one class for self- and cross-attention.

`B` batch, `T` queries, `S` keys, `D` width, `H` heads, `E` = D / H width of a head.
A mask is bool, True means "may be attended", and its shape broadcasts to [B, H, T, S].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Which keys are real. [B, S] -> [B, 1, 1, S]"""
    return (ids != pad_id)[:, None, None, :]


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Position t sees positions up to t. [1, 1, T, T]"""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]


class KeysValues(NamedTuple):
    """What is attended to, split into heads."""

    keys: Tensor  # [B, H, S, E]
    values: Tensor  # [B, H, S, E]


class MultiHeadAttention(nn.Module):
    """Attention of queries from `x` over keys and values that `project` made from a memory.

    For self-attention the memory is `x` itself; for cross-attention it is the encoder's output; a decoder that works
    step by step keeps the projected keys and values and passes them in again.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)  # two projections in one product
        self.output = nn.Linear(d_model, d_model)

    def project(self, memory: Tensor) -> KeysValues:
        """Keys and values of a memory. [B, S, D] -> 2 x [B, H, S, E]"""
        keys, values = self.key_value(memory).chunk(2, dim=-1)
        return KeysValues(self._split(keys), self._split(values))

    def forward(self, x: Tensor, memory: KeysValues, mask: Tensor | None) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        queries = self._split(self.query(x))  # [B, H, T, E]
        context = attend(queries, memory, mask, self.dropout if self.training else 0.0)
        return self.output(context.transpose(1, 2).flatten(2))

    def explain(self, x: Tensor, memory: KeysValues, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same without dropout, step by step, and the weights. [B, T, D] -> [B, T, D], [B, H, T, S]"""
        context, weights = attend_explicitly(self._split(self.query(x)), memory, mask)
        return self.output(context.transpose(1, 2).flatten(2)), weights

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)  # [B, L, D] -> [B, H, L, E]


def attend(queries: Tensor, memory: KeysValues, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(E)) V by the fastest way there is. [B, H, T, E] -> [B, H, T, E]"""
    if queries.device.type == "cpu" and queries.dtype == torch.bfloat16:
        # for sentences, torch's fused kernel takes 2 to 7 times as long here as the products one by one
        return attend_explicitly(queries, memory, mask, dropout)[0]
    return F.scaled_dot_product_attention(queries, *memory, attn_mask=mask, dropout_p=dropout)


def attend_explicitly(
    queries: Tensor, memory: KeysValues, mask: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same step by step, with the weights. [B, H, T, E] -> [B, H, T, E], [B, H, T, S]

    The softmax is in fp32. A query that may attend to nothing gets zeros, as from the fused kernel.
    """
    scores = (queries @ memory.keys.transpose(-2, -1)).float() / math.sqrt(queries.size(-1))  # [B, H, T, S]
    if mask is None:
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~mask, 0.0)
    return F.dropout(weights, dropout).to(memory.values.dtype) @ memory.values, weights
