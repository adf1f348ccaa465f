"""The schema of the model's section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from transformer_mt.settings import Section, refusal


class StackConfig(Section):
    """One stack of layers."""

    n_layers: int = Field(default=3, ge=1)
    """layers of this stack"""


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


class ModelConfig(Section):
    """The encoder-decoder Transformer."""

    d_model: int = Field(default=256, ge=2)
    """width of embeddings and layers"""
    d_ff: int = Field(default=1024, ge=1)
    """width of the feed-forward's inner layer"""
    n_heads: int = Field(default=4, ge=1)
    """attention heads; they share d_model"""
    encoder: StackConfig = StackConfig()
    """the source's stack"""
    decoder: StackConfig = StackConfig()
    """the target's stack"""
    norm_position: Literal["pre", "post"] = "pre"
    """pre: before each sub-layer, and one at the end of each stack; post: after each sum, as in the paper"""
    norm_eps: float = Field(default=1e-5, gt=0)
    """added to the variance in layer normalisation"""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """one matrix for source, target and output (all; needs a joint vocabulary), for the last two (decoder), or none"""
    dropout: DropoutConfig = DropoutConfig()
    """dropout rates"""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> ModelConfig:
        if self.d_model % self.n_heads:
            fits = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0 and n <= 64]
            raise refusal(
                "n_heads", f"{self.n_heads} does not divide d_model {self.d_model}; {', '.join(map(str, fits))} would"
            )
        return self
