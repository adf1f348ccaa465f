"""The encoder-decoder Transformer (Vaswani et al. 2017).

`B` batch, `S` source length, `T` target length, `D` width, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, cast

from torch import Tensor, nn

from transformer_mt.model.attention import KeysValues, MultiHeadAttention, causal_mask, padding_mask
from transformer_mt.model.cache import Cache, Past
from transformer_mt.model.config import ModelConfig
from transformer_mt.model.layers import DecoderLayer, EncoderLayer, make_final_norm
from transformer_mt.model.positions import SinusoidalPositions


class Vocabulary(Protocol):
    """What the model has to know of a language."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def pad_id(self) -> int: ...


class Embedding(nn.Module):
    """Token embeddings times sqrt(D), plus positions. [B, L] -> [B, L, D]"""

    def __init__(self, vocabulary: Vocabulary, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary.vocab_size, config.d_model, padding_idx=vocabulary.pad_id)
        self.positions = SinusoidalPositions(config.d_model)
        self.dropout = nn.Dropout(config.dropout.embedding)
        self.scale = math.sqrt(config.d_model)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """`start` is the position of the first column."""
        return self.dropout(self.tokens(ids) * self.scale + self.positions(start, ids.size(1)))


class Encoder(nn.Module):
    """Source ids to states."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList([EncoderLayer(config) for _ in range(config.encoder.n_layers)])
        self.norm = make_final_norm(config)

    def forward(self, src: Tensor, mask: Tensor) -> Tensor:
        """[B, S] -> [B, S, D]"""
        x = self.embedding(src)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """Target ids so far, and the source's states, to states."""

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.decoder.n_layers)])
        self.norm = make_final_norm(config)

    def project(self, memory: Tensor) -> list[KeysValues]:
        """Keys and values of the source's states for each layer's cross-attention. [B, S, D]"""
        return [cast(DecoderLayer, layer).cross_attention.project(memory) for layer in self.layers]

    def forward(
        self,
        tgt_in: Tensor,
        memory: Sequence[KeysValues],
        memory_mask: Tensor,
        past: Sequence[Past] | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, D]; with a past, `tgt_in` holds the one new position. [B, 1] -> [B, 1, D]

        The causal mask alone serves: padding stands on the right, behind every position that counts.
        """
        start = past[0].length if past else 0
        x = self.embedding(tgt_in, start)
        mask = None if past else causal_mask(tgt_in.size(1), tgt_in.device)
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, memory[i], memory_mask, past[i] if past else None)
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
        src_embedding = tgt_embedding if config.tie_embeddings == "all" else Embedding(src, config)
        self.encoder = Encoder(config, src_embedding)
        self.decoder = Decoder(config, tgt_embedding)
        self.output = nn.Linear(config.d_model, tgt.vocab_size, bias=False)
        initialise(self)
        if config.tie_embeddings != "none":
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

    def start(self, src: Tensor) -> Cache:
        """What step-by-step decoding begins with. [B, S]"""
        memory, mask = self.encode(src)
        return Cache(self.decoder.project(memory), mask, [Past() for _ in self.decoder.layers])

    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """The scores of the next token after `tokens`, which the cache takes in. [B] -> [B, V]"""
        states = self.decoder(tokens[:, None], cache.memory, cache.memory_mask, cache.past)
        return self.logits(states[:, 0])


def initialise(model: nn.Module) -> None:
    """Xavier uniform for each projection, also inside a packed matrix; N(0, 1/sqrt(D)) for embeddings; zero biases.

    The pad row of an embedding stays zero.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]: Linear(bias=False) has none
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            module.weight.data[module.padding_idx] = 0
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            for projection in module.key_value.weight.data.chunk(2):
                nn.init.xavier_uniform_(projection)
