"""The layers of encoder and decoder (Vaswani et al. 2017, section 3; norm order after Xiong et al. 2020).

`B` batch, `S` source length, `T` target length, `D` width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from transformer_mt.model.attention import KeysValues, MultiHeadAttention
from transformer_mt.model.cache import Past
from transformer_mt.model.config import ModelConfig


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, at each position alone. [B, L, D] -> [B, L, D]"""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.activation = nn.ReLU()
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(self.activation(self.inner(x))))


class Residual(nn.Module):
    """A residual connection around a sub-layer; its kinds own the order of norm, sub-layer and sum."""

    def __init__(self, d_model: int, norm_eps: float, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        raise NotImplementedError


class PreNorm(Residual):
    """x + sublayer(norm(x)): the residual stream is never normalised, so a stack ends with a norm of its own."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


class PostNorm(Residual):
    """norm(x + sublayer(x)), as in the paper."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + self.dropout(sublayer(x)))


def make_residual(config: ModelConfig) -> Residual:
    """The residual connection that `norm_position` names."""
    kind = {"pre": PreNorm, "post": PostNorm}[config.norm_position]
    return kind(config.d_model, config.norm_eps, config.dropout.residual)


def make_final_norm(config: ModelConfig) -> nn.Module:
    """The norm that ends a stack; post-norm has none to add."""
    return nn.LayerNorm(config.d_model, eps=config.norm_eps) if config.norm_position == "pre" else nn.Identity()


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config.d_model, config.n_heads, config.dropout.attention)
        self.feed_forward = FeedForward(config.d_model, config.d_ff, config.dropout.activation)
        self.residuals = nn.ModuleList([make_residual(config) for _ in range(2)])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]"""
        around_attention, around_feed_forward = self.residuals
        attention = self.self_attention

        def attend_to_self(h: Tensor) -> Tensor:
            return attention(h, attention.project(h), mask)

        return around_feed_forward(around_attention(x, attend_to_self), self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, cross-attention over the source, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config.d_model, config.n_heads, config.dropout.attention)
        self.cross_attention = MultiHeadAttention(config.d_model, config.n_heads, config.dropout.attention)
        self.feed_forward = FeedForward(config.d_model, config.d_ff, config.dropout.activation)
        self.residuals = nn.ModuleList([make_residual(config) for _ in range(3)])

    def forward(
        self, x: Tensor, mask: Tensor | None, memory: KeysValues, memory_mask: Tensor, past: Past | None = None
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; with a past, x holds the new positions only and attends to the past as well."""
        around_attention, around_cross_attention, around_feed_forward = self.residuals
        attention = self.self_attention

        def attend_to_self(h: Tensor) -> Tensor:
            projected = attention.project(h)
            return attention(h, projected if past is None else past.append(projected), mask)

        def attend_to_source(h: Tensor) -> Tensor:
            return self.cross_attention(h, memory, memory_mask)

        x = around_attention(x, attend_to_self)
        x = around_cross_attention(x, attend_to_source)
        return around_feed_forward(x, self.feed_forward)
