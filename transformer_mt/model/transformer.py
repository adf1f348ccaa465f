"""The encoder-decoder Transformer (Vaswani et al. 2017).

`B` batch, `S` source length, `T` target length, `L` either, `D` model width, `H` heads, `V` vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from transformer_mt.model.attention import Mask, MultiHeadAttention, causal_mask, padding_mask
from transformer_mt.model.layers import (
    Dropout,
    FeedForward,
    Linear,
    initialise,
    make_final_norm,
    make_residual,
)
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.packing import PackedMask, Packing, PackingPair
from transformer_mt.model.positions import Positions, Rotation, make_positions, make_rotary


class Vocabulary(Protocol):
    """Properties of a vocabulary that the model needs."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        ...

    @property
    def pad_id(self) -> int:
        """Id of the padding symbol."""
        ...


class VocabularySize(NamedTuple):
    """A `Vocabulary` without tokens, for models that see only ids."""

    vocab_size: int
    pad_id: int


class Embedding(nn.Module):
    """Token embeddings plus positions.

    Token embeddings are initialised to N(0, 1 / D), and that of padding is always zero. `tokens` shares those of the
    other language.
    """

    def __init__(self, vocabulary: Vocabulary, config: ModelConfig, tokens: nn.Embedding | None = None) -> None:
        super().__init__()
        self.pad_id = vocabulary.pad_id
        self.tokens = tokens or make_token_embedding(vocabulary, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.positions = make_positions(config)

    def forward(self, ids: Tensor, positions: Positions | None = None) -> Tensor:
        """Embed ids at `positions`, by default from 0. [B, L] -> [B, L, D]."""
        return self.positions(self.tokens(ids) * self.scale, positions)


def make_token_embedding(vocabulary: Vocabulary, d_model: int) -> nn.Embedding:
    """Build and initialise the token embeddings of a language."""
    tokens = nn.Embedding(vocabulary.vocab_size, d_model, vocabulary.pad_id)
    nn.init.normal_(tokens.weight, std=d_model**-0.5)
    tokens.weight.data[vocabulary.pad_id] = 0
    return tokens


# --- layers and stacks ------------------------------------------------------------------------------------------------


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


class Stack(nn.Module):
    """Base class of encoder and decoder: embedding, layers, and a final norm."""

    def __init__(
        self, config: ModelConfig, n_layers: int, make_layer: Callable[[ModelConfig], nn.Module], embedding: Embedding
    ) -> None:
        super().__init__()
        self.embedding, self.rotary = embedding, make_rotary(config)
        self.word_dropout = config.dropout.word
        self.dropout = Dropout(config.dropout.embedding)
        self.layers = nn.ModuleList([make_layer(config) for _ in range(n_layers)])
        for layer in self.layers:
            initialise(layer)
        self.norm = make_final_norm(config)

    def embed(self, ids: Tensor, positions: Positions | None = None) -> Tensor:
        """Embed ids with dropout. [B, L] -> [B, L, D].

        Word dropout replaces tokens by padding, so only their position remains. The others are not rescaled.
        """
        if self.training and self.word_dropout:
            dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(dropped, self.embedding.pad_id)
        return self.dropout(self.embedding(ids, positions))

    def make_rotation(self, positions: Positions | None, length: int) -> Rotation | None:
        """Return the rotation of queries and keys at these positions, if the model has rotary positions."""
        return None if self.rotary is None else self.rotary(positions, length)


class Encoder(Stack):
    """The encoder, from source ids to states."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__(config.for_stack(config.encoder), config.encoder.n_layers, EncoderLayer, embedding)

    def forward(self, src: Tensor, mask: Mask, packing: Packing | None = None) -> Tensor:
        """Encode source ids. [B, S], [B, 1, 1, S] -> [B, S, D]."""
        x, rotation = self.embed(src, packing), self.make_rotation(packing, src.size(1))
        for layer in self.layers:
            x = layer(x, mask, rotation)
        return self.norm(x)


class Decoder(Stack):
    """The decoder, from target ids and the encoded source to states."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__(config.for_stack(config.decoder), config.decoder.n_layers, DecoderLayer, embedding)

    def forward(self, tgt_in: Tensor, src_states: Tensor, src_mask: Mask, packing: Packing | None = None) -> Tensor:
        """Decode all positions at once (teacher forcing). [B, T], [B, S, D] -> [B, T, D].

        The causal mask also hides padding from real tokens, because padding is on the right.
        """
        x, rotation = self.embed(tgt_in, packing), self.make_rotation(packing, tgt_in.size(1))
        mask = PackedMask(packing, packing, True) if packing else causal_mask(tgt_in.size(1), tgt_in.device)
        for layer in self.layers:
            x = layer(x, mask, src_states, src_mask, rotation)
        return self.norm(x)


class Transformer(nn.Module):
    """The encoder-decoder model with its output projection.

    `forward` returns decoder states [B, T, D], and `logits` projects states to the vocabulary. They are separate
    because the training loss never holds all logits at once.
    """

    def __init__(self, config: ModelConfig, src: Vocabulary, tgt: Vocabulary) -> None:
        super().__init__()
        self.config, self.src_pad, self.tgt_pad = config, src.pad_id, tgt.pad_id
        self.is_compiled = False
        tgt_embedding = Embedding(tgt, config)
        src_embedding = Embedding(src, config, tgt_embedding.tokens if config.tie_embeddings == "all" else None)
        self.encoder = Encoder(config, src_embedding)
        self.decoder = Decoder(config, tgt_embedding)
        self.output = Linear(config.d_model, tgt.vocab_size, config.output_bias)
        if config.tie_embeddings == "none":
            initialise(self.output)
        else:
            self.output.weight = tgt_embedding.tokens.weight
            if config.output_bias:
                nn.init.zeros_(self.output.bias)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(find_part(name) not in config.freeze)

    def forward(self, src: Tensor, tgt_in: Tensor, packings: PackingPair | None = None) -> Tensor:
        """Compute decoder states with teacher forcing. [B, S], [B, T] -> [B, T, D].

        `packings` are those of packed sources and targets, where B is 1.
        """
        if packings is None:
            return self.decoder(tgt_in, *self.encode(src))
        src_states = self.encoder(src, PackedMask(packings.src, packings.src), packings.src)
        return self.decoder(tgt_in, src_states, PackedMask(packings.tgt, packings.src), packings.tgt)

    def compile_layers(self, backend: str | Callable[..., object] = "inductor", *, fullgraph: bool = False) -> None:
        """Compile each layer for batches of any size. Equal layers share the code, and a copy is not compiled.

        What cannot be compiled runs as plain PyTorch; with `fullgraph` it is an error.
        """
        self.is_compiled = True
        for stack in (self.encoder, self.decoder):
            for layer in stack.layers:
                layer.compile(dynamic=True, fullgraph=fullgraph, backend=backend)

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """Return encoder states and padding mask of the source. [B, S] -> [B, S, D], [B, 1, 1, S]."""
        mask = padding_mask(src, self.src_pad)
        return self.encoder(src, mask), mask

    def logits(self, states: Tensor) -> Tensor:
        """Project decoder states to fp32 logits; the one of padding is -inf. [..., D] -> [..., V]."""
        logits = self.output(states).float()
        logits.select(-1, self.tgt_pad).fill_(-math.inf)
        return logits


def find_part(name: str) -> str:
    """Return the part of the model (`model.freeze`) that a parameter belongs to. A shared matrix is an embedding."""
    stack, inner, kind, *_ = *name.split("."), ""
    if inner == "embedding":
        return "positions" if kind == "positions" else "embeddings"
    return {"output.weight": "output", "output.bias": "output_bias"}.get(name, stack)


# --- chunks of logits -------------------------------------------------------------------------------------------------

CHUNK_BYTES = {"cpu": 1 << 23, "cuda": 1 << 28}
"""Maximum size of a chunk of logits, by device type: on a CPU, about the size of its caches."""
DEFAULT_CHUNK_BYTES = 1 << 25


def non_pad_indices(labels: Tensor, pad_id: int, n_labels: int) -> Tensor:
    """Return the flat indices of the `n_labels` labels that are not padding. [B, T] -> [N].

    The caller passes `n_labels`, so that a GPU need not synchronise to count them.
    """
    is_real = labels.flatten() != pad_id  # [B * T]
    if labels.device.type == "mps":  # MPS has `nonzero_static` only from torch 2.12 on
        return is_real.nonzero()[:, 0]
    return torch.nonzero_static(is_real, size=n_labels)[:, 0]


def chunk_rows(device: torch.device, row_bytes: int) -> int:
    """Return the number of rows of a chunk, at least 1."""
    return max(1, CHUNK_BYTES.get(device.type, DEFAULT_CHUNK_BYTES) // row_bytes)


# --- attention weights ------------------------------------------------------------------------------------------------


@torch.no_grad()
def cross_attention_weights(model: Transformer, src: Tensor, tgt_in: Tensor) -> list[Tensor]:
    """Compute the weights of the cross-attention in each layer.

    The model is in evaluation mode. The last dimension sums to 1. [B, S], [B, T] -> n_layers x [B, H, T, S].
    The pass runs on a copy of the modules, which shares the tensors, because other threads may use the model.
    """
    assert not model.training
    twin = copy.deepcopy(model, {id(each): each for each in chain(model.parameters(), model.buffers())})
    modules = [layer.cross_attention for layer in cast("Iterable[DecoderLayer]", twin.decoder.layers)]
    for module in modules:
        module.record_weights()
    twin(src, tgt_in)
    return [cast(Tensor, module.weights) for module in modules]
