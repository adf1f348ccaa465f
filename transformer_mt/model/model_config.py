"""Configuration section `model`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from transformer_mt.config.section import Section, section_error

Part = Literal["embeddings", "positions", "encoder", "decoder", "output", "output_bias"]
STACK_KEYS = ("n_heads", "n_kv_heads", "d_ff")


class DropoutConfig(Section):
    """Dropout rates in training."""

    embedding: float = Field(default=0.1, ge=0, lt=1)
    """on the sum of embeddings and positions"""
    residual: float = Field(default=0.1, ge=0, lt=1)
    """on the output of each sub-layer"""
    attention: float = Field(default=0.0, ge=0, lt=1)
    """on the attention weights"""
    activation: float = Field(default=0.0, ge=0, lt=1)
    """on the inner layer of the feed-forward"""
    word: float = Field(default=0.0, ge=0, lt=1)
    """word dropout: rate at which whole tokens lose their embedding; the others are not rescaled"""


class StackConfig(Section):
    """One stack of layers. Null values are taken from the model section."""

    n_layers: int = Field(default=3, ge=1, le=1000)
    """number of layers"""
    n_heads: int | None = Field(default=None, ge=1)
    """attention heads; null here and below: as in model"""
    n_kv_heads: int | None = Field(default=None, ge=1)
    """key/value heads"""
    d_ff: int | None = Field(default=None, ge=1, le=1048576)
    """width of the feed-forward's inner layer"""


class ModelConfig(Section):
    """The encoder-decoder Transformer."""

    d_model: int = Field(default=256, ge=2, le=65536)
    """width of embeddings and layers"""
    d_ff: int = Field(default=1024, ge=1, le=1048576)
    """inner width of the feed-forward; of each of the two halves if it is gated"""
    n_heads: int = Field(default=4, ge=1)
    """attention heads; each has width d_model / n_heads"""
    n_kv_heads: int | None = Field(default=None, ge=1)
    """key/value heads, each shared by n_heads / n_kv_heads query heads; 1: multi-query; null: as n_heads"""
    encoder: StackConfig = StackConfig()
    """stack that reads the source"""
    decoder: StackConfig = StackConfig()
    """stack that writes the target"""
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    """sinusoidal, learned: added to the embeddings; rotary: rotates queries and keys of self-attention; none"""
    max_positions: int = Field(default=512, ge=2, le=1048576)
    """for positions: learned: the maximum sequence length"""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """layernorm, or rmsnorm (without mean and bias)"""
    norm_position: Literal["pre", "post"] = "pre"
    """pre: before each sub-layer; post: after the sum, as in the paper"""
    norm_eps: float = Field(default=1e-5, gt=0)
    """added to the variance (or mean square) in normalisation"""
    scale_embeddings: bool = True
    """multiply token embeddings by sqrt(d_model)"""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """all: source, target and output share a matrix (needs tokenizer.joint); decoder: target and output; none"""
    activation: Literal["relu", "gelu", "silu", "geglu", "swiglu"] = "relu"
    """of the feed-forward: relu, gelu, silu, or gated, activation(x W) * (x V): geglu, swiglu"""
    feed_forward_bias: bool = True
    """biases in the feed-forward"""
    attention_bias: bool = True
    """biases of the query, key and value projections"""
    attention_output_bias: bool = True
    """bias of the projection after the heads"""
    output_bias: bool = False
    """bias of the output projection, one number for each target token"""
    freeze: tuple[Part, ...] = ()
    """parts that are not trained: embeddings (with a tied output), positions, encoder, decoder, output, output_bias"""
    dropout: DropoutConfig = DropoutConfig()
    """dropout rates"""

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.d_model // self.n_heads

    @property
    def max_sequence_length(self) -> int | None:
        """Maximum sequence length that learned positions allow; None: no limit."""
        return self.max_positions if self.positions == "learned" else None

    def for_stack(self, stack: StackConfig) -> ModelConfig:
        """Return the configuration of one stack: its own values replace the shared ones."""
        own = {key: value for key in STACK_KEYS if (value := getattr(stack, key)) is not None}
        return self.model_copy(update=own)

    @model_validator(mode="after")
    def _check_freeze(self) -> ModelConfig:
        found: dict[Part, bool] = {
            "embeddings": True,
            "encoder": True,
            "decoder": True,
            "positions": self.positions == "learned",
            "output": self.tie_embeddings == "none",
            "output_bias": self.output_bias,
        }
        parts = [part for part, exists in found.items() if exists]
        for part in self.freeze:
            if part not in parts:
                raise section_error("freeze", f"this model has no {part}: choose from {', '.join(parts)}")
        if set(parts) <= {*self.freeze}:
            raise section_error("freeze", "nothing is left to train: leave out a part")
        return self

    @model_validator(mode="after")
    def _check_heads(self) -> ModelConfig:
        for name, stack in (("encoder.", self.encoder), ("decoder.", self.decoder)):
            if error := self.for_stack(stack)._head_error():
                key, message = error
                raise section_error(f"{name}{key}" if getattr(stack, key) is not None else key, message)
        return self

    def _head_error(self) -> tuple[str, str] | None:
        """Return the key and the message of a number of heads that does not fit, or None."""
        is_rotary = self.positions == "rotary"
        allowed = [n for n in _divisors(self.d_model) if n <= 64 and (not is_rotary or self.d_model // n % 2 == 0)]
        hint = f"use {', '.join(map(str, allowed))}" if allowed else "use an even d_model"
        if self.d_model % self.n_heads:
            return "n_heads", f"{self.n_heads} does not divide d_model {self.d_model}; {hint}"
        if is_rotary and self.d_head % 2:
            return "n_heads", f"rotary positions need heads of even width, not {self.d_head}; {hint}"
        if self.n_heads % self.kv_heads:
            hint = f"use {', '.join(map(str, _divisors(self.n_heads)))}"
            return "n_kv_heads", f"{self.kv_heads} does not divide n_heads {self.n_heads}; {hint}"
        return None


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
