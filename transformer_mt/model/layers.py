"""The layers of encoder and decoder (Vaswani et al. 2017, section 3).

`B` batch, `S` source length, `T` target length, `L` either, `D` model width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from transformer_mt.model.attention import Mask, MultiHeadAttention
from transformer_mt.model.linear_and_norm import Dropout, FusedLinear, Linear, make_norm
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.positions import Rotation

Sublayer = Callable[[Tensor], Tensor]
"""Self-attention, cross-attention or feed-forward. [B, L, D] -> [B, L, D]"""

# --- feed-forward -----------------------------------------------------------------------------------------------------


class GatedActivation(nn.Module):
    """activation(x W) * (x V), a gated linear unit (Shazeer 2020)."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, gate: Tensor, value: Tensor) -> Tensor:
        """Multiply the value by the activated gate."""
        return self.activation(gate) * value


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2, at each position independently."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation, n_inputs = make_activation(config.activation)
        self.inner = FusedLinear(config.d_model, n_inputs * [config.d_ff], config.feed_forward_bias)
        self.dropout = Dropout(config.dropout.activation)
        self.outer = Linear(config.d_ff, config.d_model, config.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position. [B, L, D] -> [B, L, D]."""
        return self.outer(self.dropout(self.activation(*self.inner.project(x))))


def make_activation(name: str) -> tuple[nn.Module, int]:
    """Build the activation `name`; also return how many projections of the input it takes."""
    plain = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}
    gated = {"geglu": nn.GELU, "swiglu": nn.SiLU}
    return (plain[name](), 1) if name in plain else (GatedActivation(gated[name]()), 2)


# --- residual connections ---------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A residual connection around a sub-layer. Subclasses define the order of norm, sub-layer and sum."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout.residual)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Apply the sub-layer and add its input. [B, L, D] -> [B, L, D]."""
        raise NotImplementedError


class PreNorm(Residual):
    """x + sublayer(norm(x)) (Xiong et al. 2020). The sum is not normalised, so a final norm follows the stack."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Normalise the input of the sub-layer."""
        return x + self.dropout(sublayer(self.norm(x)))


class PostNorm(Residual):
    """norm(x + sublayer(x)), as in the paper."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Normalise the sum."""
        return self.norm(x + self.dropout(sublayer(x)))


def make_residual(config: ModelConfig) -> Residual:
    """Build the residual connection that `norm_position` names."""
    return {"pre": PreNorm, "post": PostNorm}[config.norm_position](config)


def make_final_norm(config: ModelConfig) -> nn.Module:
    """Build the norm at the end of a stack. With post-norm, the last layer has already normalised."""
    return nn.Identity() if config.norm_position == "post" else make_norm(config)


# --- layers -----------------------------------------------------------------------------------------------------------


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList([make_residual(config) for _ in range(2)])

    def forward(self, x: Tensor, mask: Mask, rotation: Rotation | None = None) -> Tensor:
        """Apply both sub-layers. [B, S, D] -> [B, S, D]."""
        attention_residual, feed_forward_residual = self.residuals

        def attend_to_self(h: Tensor) -> Tensor:
            return self.self_attention(*self.self_attention.project(h, rotation), mask)

        x = attention_residual(x, attend_to_self)
        return feed_forward_residual(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, cross-attention over the source, and feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.cross_attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList([make_residual(config) for _ in range(3)])

    def forward(
        self, x: Tensor, mask: Mask, src_states: Tensor, src_mask: Mask, rotation: Rotation | None = None
    ) -> Tensor:
        """Apply the three sub-layers. [B, T, D], [B, S, D] -> [B, T, D]."""
        self_residual, cross_residual, feed_forward_residual = self.residuals

        def attend_to_self(h: Tensor) -> Tensor:
            return self.self_attention(*self.self_attention.project(h, rotation), mask)

        def attend_to_source(h: Tensor) -> Tensor:
            queries = self.cross_attention.project_queries(h)
            return self.cross_attention(queries, self.cross_attention.project_keys_values(src_states), src_mask)

        x = self_residual(x, attend_to_self)
        x = cross_residual(x, attend_to_source)
        return feed_forward_residual(x, self.feed_forward)
