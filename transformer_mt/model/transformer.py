"""The encoder-decoder Transformer (Vaswani et al. 2017).

`B` batch, `S` source length, `T` target length, `L` either, `D` width, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from transformer_mt.model.attention import KeysValues, causal_mask, padding_mask
from transformer_mt.model.config import ModelConfig
from transformer_mt.model.dropout import Dropout
from transformer_mt.model.kv_cache import KVCache
from transformer_mt.model.layers import DecoderLayer, EncoderLayer, make_final_norm
from transformer_mt.model.linear import Linear, initialise
from transformer_mt.model.norms import make_norm
from transformer_mt.model.positions import make_positions


class Vocabulary(Protocol):
    """What the model has to know of a language."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def pad_id(self) -> int: ...


class Embedding(nn.Module):
    """Token embeddings and positions. [B, L] -> [B, L, D]

    Embeddings begin as N(0, 1 / D); that of padding is zero and stays zero. `tokens` shares those of another language.
    """

    def __init__(self, vocabulary: Vocabulary, config: ModelConfig, tokens: nn.Embedding | None = None) -> None:
        super().__init__()
        self.pad_id = vocabulary.pad_id
        self.tokens = tokens or make_token_embedding(vocabulary, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.positions = make_positions(config)
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()

    def forward(self, ids: Tensor, at: slice | None = None) -> Tensor:
        """`at` are the positions of the columns (see positions.py)."""
        return self.norm(self.positions(self.tokens(ids) * self.scale, at))


def make_token_embedding(vocabulary: Vocabulary, d_model: int) -> nn.Embedding:
    """A vector for each entry of the vocabulary."""
    tokens = nn.Embedding(vocabulary.vocab_size, d_model, vocabulary.pad_id)
    nn.init.normal_(tokens.weight, std=d_model**-0.5)
    tokens.weight.data[vocabulary.pad_id] = 0
    return tokens


class Stack(nn.Module):
    """What encoder and decoder share: embedded ids, layers of which some may be left out, a norm at the end."""

    def __init__(
        self, config: ModelConfig, n_layers: int, make_layer: Callable[[ModelConfig], nn.Module], embedding: Embedding
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.word_dropout, self.layer_drop = config.dropout.word, config.layer_drop
        self.dropout = Dropout(config.dropout.embedding)
        self.layers = nn.ModuleList([make_layer(config) for _ in range(n_layers)])
        for depth, layer in enumerate(self.layers, start=1):
            initialise(layer, config, depth)
        self.norm = make_final_norm(config)

    def embed(self, ids: Tensor, at: slice | None = None) -> Tensor:
        """[B, L] -> [B, L, D]; of a word that is dropped the position is left, and the others are not rescaled."""
        if self.training and self.word_dropout:
            dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(dropped, self.embedding.pad_id)
        return self.dropout(self.embedding(ids, at))

    def active_layers(self) -> Iterator[tuple[int, nn.Module]]:
        """The layers that take part, with their numbers: in training each may be left out (Fan et al. 2020)."""
        for i, layer in enumerate(self.layers):
            if not (self.training and self.layer_drop and torch.rand(()).item() < self.layer_drop):
                yield i, layer


class Encoder(Stack):
    """Source ids to states."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__(config.of(config.encoder), config.encoder.n_layers, EncoderLayer, embedding)

    def forward(self, src: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, S] -> [B, S, D]; without a mask, padding is masked."""
        if mask is None:
            mask = padding_mask(src, self.embedding.pad_id)
        x = self.embed(src)
        for _, layer in self.active_layers():
            x = layer(x, mask)
        return self.norm(x)


class Decoder(Stack):
    """Target ids so far, and the source's states, to states."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__(config.of(config.decoder), config.decoder.n_layers, DecoderLayer, embedding)

    def project(self, memory: Tensor) -> list[KeysValues]:
        """Keys and values of the source's states for each layer's cross-attention. [B, S, D]"""
        return [layer.cross_attention.keys_values(memory) for layer in self.layers if isinstance(layer, DecoderLayer)]

    def forward(self, tgt_in: Tensor, memory: Sequence[KeysValues], memory_mask: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]

        The causal mask alone serves: padding stands on the right, behind every position that counts.
        """
        x, mask = self.embed(tgt_in), causal_mask(tgt_in.size(1), tgt_in.device)
        for i, layer in self.active_layers():
            x = layer(x, mask, memory[i], memory_mask)
        return self.norm(x)

    def step(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """One position more, for each branch. [B, K] -> [B, K, D]"""
        at, mask = cache.append_step(tokens.size(1))
        x = self.embed(tokens, at)
        for layer, memory, past in zip(self.layers, cache.memory, cache.past, strict=True):
            x = layer(x, mask, memory, cache.memory_mask, past, at)
        return self.norm(x)


class Transformer(nn.Module):
    """`decode(encode(src))`.

    `forward` ends with the decoder's states [B, T, D]; `logits` projects states on the vocabulary. They are apart
    because the training loss never needs all logits at once.
    """

    def __init__(self, config: ModelConfig, src: Vocabulary, tgt: Vocabulary) -> None:
        super().__init__()
        self.config, self.src_pad, self.tgt_pad = config, src.pad_id, tgt.pad_id
        tgt_embedding = Embedding(tgt, config)
        src_embedding = Embedding(src, config, tgt_embedding.tokens if config.tie_embeddings == "all" else None)
        self.encoder = Encoder(config, src_embedding)
        self.decoder = Decoder(config, tgt_embedding)
        self.output = Linear(config.d_model, tgt.vocab_size, bias=False)
        if config.tie_embeddings == "none":
            initialise(self.output, config)
        else:
            self.output.weight = tgt_embedding.tokens.weight

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """[B, S], [B, T] -> [B, T, D]"""
        return self.decode(tgt_in, *self.encode(src))

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """The source's states and their mask. [B, S] -> [B, S, D], [B, 1, 1, S]"""
        mask = padding_mask(src, self.src_pad)
        return self.encoder(src, mask), mask

    def decode(self, tgt_in: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """[B, T], [B, S, D], [B, 1, 1, S] -> [B, T, D]"""
        return self.decoder(tgt_in, self.decoder.project(memory), memory_mask)

    def logits(self, states: Tensor) -> Tensor:
        """Scores of the vocabulary; the pad symbol can never be chosen. [..., D] -> [..., V]"""
        logits = self.output(states).float()
        logits[..., self.tgt_pad] = -math.inf
        return logits

    def start(self, src: Tensor) -> KVCache:
        """What step-by-step decoding begins with. [B, S]"""
        memory, mask = self.encode(src)
        return KVCache(self.decoder.project(memory), mask)

    def step(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """The decoder's states behind `tokens`, the newest of each branch, which the cache takes in.

        [B, K] -> [B, K, D]
        """
        return self.decoder.step(tokens, cache)
