"""The schema of the model's section.

`D` is d_model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from transformer_mt.config.section import Section, section_error

OWN_KEYS = ("n_heads", "n_kv_heads", "d_ff", "layer_drop")


class DropoutConfig(Section):
    """Dropout rates while training."""

    embedding: float = Field(default=0.1, ge=0, lt=1)
    """on the sum of embeddings and positions"""
    residual: float = Field(default=0.1, ge=0, lt=1)
    """on the output of each sub-layer"""
    attention: float = Field(default=0.0, ge=0, lt=1)
    """on the attention weights"""
    activation: float = Field(default=0.0, ge=0, lt=1)
    """on the inner layer of the feed-forward"""
    word: float = Field(default=0.0, ge=0, lt=1)
    """on tokens as a whole: each keeps its embedding or has none; not rescaled"""


class OwnDropoutConfig(Section):
    """Dropout rates of one stack, where they are not the model's."""

    embedding: float | None = Field(default=None, ge=0, lt=1)
    """null: as model.dropout; so with the others"""
    residual: float | None = Field(default=None, ge=0, lt=1)
    """on the output of each sub-layer"""
    attention: float | None = Field(default=None, ge=0, lt=1)
    """on the attention weights"""
    activation: float | None = Field(default=None, ge=0, lt=1)
    """on the inner layer of the feed-forward"""
    word: float | None = Field(default=None, ge=0, lt=1)
    """on whole words"""


class StackConfig(Section):
    """One stack of layers, and in what it differs from the other."""

    n_layers: int = Field(default=3, ge=1, le=1000)
    """layers of this stack"""
    n_heads: int | None = Field(default=None, ge=1)
    """null: as model.n_heads; so with the keys below"""
    n_kv_heads: int | None = Field(default=None, ge=1)
    """heads of keys and values"""
    d_ff: int | None = Field(default=None, ge=1, le=1048576)
    """width of the feed-forward's inner layer"""
    layer_drop: float | None = Field(default=None, ge=0, lt=1)
    """rate at which whole layers are left out"""
    dropout: OwnDropoutConfig = OwnDropoutConfig()
    """dropout rates"""


class ModelConfig(Section):
    """The encoder-decoder Transformer."""

    d_model: int = Field(default=256, ge=2, le=65536)
    """width of embeddings and layers"""
    d_ff: int = Field(default=1024, ge=1, le=1048576)
    """width of the feed-forward's inner layer; of each of the two halves where it is gated"""
    n_heads: int = Field(default=4, ge=1)
    """attention heads; they share d_model"""
    n_kv_heads: int | None = Field(default=None, ge=1)
    """heads of keys and values, each shared by n_heads / n_kv_heads queries; 1: multi-query; null: as n_heads"""
    encoder: StackConfig = StackConfig()
    """the source's stack"""
    decoder: StackConfig = StackConfig()
    """the target's stack"""
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    """sinusoidal or learned: added to the embeddings; rotary: turns queries and keys of self-attention; none"""
    max_positions: int = Field(default=512, ge=2, le=1048576)
    """of learned positions: the longest sequence there is"""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """layernorm; rmsnorm: without mean and bias"""
    norm_position: Literal["pre", "post", "sublayer"] = "pre"
    """pre: before each sub-layer; post: after each sum, as in the paper; sublayer: on its output, before the sum"""
    norm_eps: float = Field(default=1e-5, gt=0)
    """added to the variance (or mean square) in normalisation"""
    qk_norm: bool = False
    """normalise the queries and keys of each head"""
    embedding_norm: bool = False
    """normalise the sum of embeddings and positions"""
    scale_embeddings: bool = True
    """multiply token embeddings by sqrt(d_model)"""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """one matrix for source, target and output (all; needs a joint vocabulary), for the last two (decoder), or none"""
    activation: Literal["relu", "gelu", "silu", "geglu", "swiglu"] = "relu"
    """of the feed-forward: relu, gelu, silu; geglu and swiglu are gated: activation(x W) * (x V)"""
    feed_forward_bias: bool = True
    """biases in the feed-forward"""
    attention_bias: bool = True
    """biases of queries, keys and values"""
    attention_output_bias: bool = True
    """bias of the projection after the heads"""
    init: Literal["xavier", "depth_scaled", "normal"] = "xavier"
    """of matrices: xavier, Glorot uniform; depth_scaled, that over the root of the layer's depth; normal, N(0, 0.02)"""
    dropout: DropoutConfig = DropoutConfig()
    """dropout rates"""
    layer_drop: float = Field(default=0.0, ge=0, lt=1)
    """rate at which whole layers are left out while training"""

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def longest(self) -> int | None:
        """The longest sequence the model can read; None: any."""
        return self.max_positions if self.positions == "learned" else None

    @property
    def drops(self) -> bool:
        """Whether dropout makes two passes differ; layers are left out of whole batches alike."""
        return any(rate for stack in (self.encoder, self.decoder) for _, rate in self.of(stack).dropout)

    def of(self, stack: StackConfig) -> ModelConfig:
        """The configuration as one stack has it: what it sets itself stands in place of what both share."""
        own = {key: value for key in OWN_KEYS if (value := getattr(stack, key)) is not None}
        dropout = self.dropout.model_copy(update=stack.dropout.model_dump(exclude_none=True))
        return self.model_copy(update={**own, "dropout": dropout})

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelConfig:
        for name, stack in (("encoder.", self.encoder), ("decoder.", self.decoder)):
            for key, what in self.of(stack)._misfits():
                raise section_error(f"{name}{key}" if getattr(stack, key) is not None else key, what)
        return self

    def _misfits(self) -> Iterator[tuple[str, str]]:
        """Which number of heads does not fit, and which would."""
        heads, kv_heads, rotary = self.n_heads, self.kv_heads, self.positions == "rotary"
        fits = [n for n in _divisors(self.d_model) if n <= 64 and (not rotary or self.d_model // n % 2 == 0)]
        would = f"; {', '.join(map(str, fits))} would" if fits else "; an even d_model is needed"
        if self.d_model % heads:
            yield "n_heads", f"{heads} does not divide d_model {self.d_model}{would}"
        elif rotary and self.d_head % 2:
            yield "n_heads", f"rotary positions turn pairs, and a head of {self.d_head} is of odd width{would}"
        elif heads % kv_heads:
            fits = ", ".join(map(str, _divisors(heads)))
            yield "n_kv_heads", f"{kv_heads} does not divide n_heads {heads}; {fits} would"


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
