"""The layers of encoder and decoder (Vaswani et al. 2017, section 3).

`B` batch, `S` source length, `T` target length, `D` width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from transformer_mt.model.attention import KeysValues, MultiHeadAttention
from transformer_mt.model.config import ModelConfig
from transformer_mt.model.dropout import Dropout
from transformer_mt.model.kv_cache import LayerKVCache
from transformer_mt.model.linear import Linear, PackedLinear
from transformer_mt.model.norms import make_norm

# --- the feed-forward -------------------------------------------------------------------------------------------------


class Gated(nn.Module):
    """activation(x W) * (x V), a gated linear unit (Shazeer 2020)."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, gate: Tensor, value: Tensor) -> Tensor:
        return self.activation(gate) * value


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2, at each position alone. [B, L, D] -> [B, L, D]"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation, n_inputs = make_activation(config.activation)
        self.inner = PackedLinear(config.d_model, n_inputs * [config.d_ff], config.feed_forward_bias)
        self.dropout = Dropout(config.dropout.activation)
        self.outer = Linear(config.d_ff, config.d_model, config.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(self.activation(*self.inner.project(x))))


def make_activation(name: str) -> tuple[nn.Module, int]:
    """The function that `activation` names, and how many projections of the input it takes."""
    plain = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}
    gated = {"geglu": nn.GELU, "swiglu": nn.SiLU}
    return (plain[name](), 1) if name in plain else (Gated(gated[name]()), 2)


# --- residual connections ---------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A residual connection around a sub-layer; its kinds own the order of norm, sub-layer and sum."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout.residual)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        raise NotImplementedError


class PreNorm(Residual):
    """x + sublayer(norm(x)) (Xiong et al. 2020): the sum stays as it is, so a stack ends with a norm of its own."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


class PostNorm(Residual):
    """norm(x + sublayer(x)), as in the paper."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + self.dropout(sublayer(x)))


class SublayerNorm(Residual):
    """x + norm(sublayer(x)) (OLMo 2, 2024): the sum is not normalised here either."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(self.norm(sublayer(x)))


def make_residual(config: ModelConfig) -> Residual:
    """The residual connection that `norm_position` names."""
    return {"pre": PreNorm, "post": PostNorm, "sublayer": SublayerNorm}[config.norm_position](config)


def make_final_norm(config: ModelConfig) -> nn.Module:
    """The norm that ends a stack; post-norm has none to add."""
    return nn.Identity() if config.norm_position == "post" else make_norm(config)


# --- layers -----------------------------------------------------------------------------------------------------------


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, is_self=True)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList([make_residual(config) for _ in range(2)])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]"""
        around_attention, around_feed_forward = self.residuals

        def attend_to_self(h: Tensor) -> Tensor:
            queries, own = self.self_attention.project(h)
            return self.self_attention(queries, own, mask)

        return around_feed_forward(around_attention(x, attend_to_self), self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, cross-attention over the source, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, is_self=True)
        self.cross_attention = MultiHeadAttention(config, is_self=False)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList([make_residual(config) for _ in range(3)])

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        memory: KeysValues,
        memory_mask: Tensor,
        past: LayerKVCache | None = None,
        at: slice | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; with a past, x holds what is new, and the mask says what it sees of all there is."""
        around_attention, around_cross_attention, around_feed_forward = self.residuals

        def attend_to_self(h: Tensor) -> Tensor:
            queries, new = self.self_attention.project(h, at)
            return self.self_attention(queries, past.append(new) if past else new, mask)

        def attend_to_source(h: Tensor) -> Tensor:
            return self.cross_attention(self.cross_attention.queries(h), memory, memory_mask)

        x = around_attention(x, attend_to_self)
        x = around_cross_attention(x, attend_to_source)
        return around_feed_forward(x, self.feed_forward)
