"""Models that predict together: of each token the mean of their probabilities counts. One alone is the usual case.

They may differ in all but their vocabularies. `B` sentences, `b` a part of them, `K` branches of each, `S` source
length, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from transformer_mt.model.kv_cache import KVCache
from transformer_mt.model.transformer import Transformer

ROWS = 256  # of scores that are worked out together on a CPU


@dataclass(frozen=True)
class Caches:
    """What each model remembers of the sentences that are searched."""

    each: list[KVCache]

    def reorder(self, parents: Tensor) -> None:
        """From now on branch k goes on from what was branch parents[:, k]. [B, K]"""
        for cache in self.each:
            cache.reorder(parents)

    def select(self, rows: Tensor) -> None:
        """Keep these sentences, in this order. rows: [B']"""
        for cache in self.each:
            cache.select(rows)


class Ensemble:
    """One model or several, on one device and in one precision."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = models
        self.device = models[0].output.weight.device
        self.precision: Literal["fp32", "bf16"] = "bf16" if models[0].output.weight.dtype == torch.bfloat16 else "fp32"

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that all of them can read; None: any."""
        return min(
            (model.config.max_sequence_length for model in self.models if model.config.max_sequence_length is not None),
            default=None,
        )

    @property
    def n_decoder_layers(self) -> int:
        """Of the shallowest model."""
        return min(model.config.decoder.n_layers for model in self.models)

    def start(self, src: Tensor) -> Caches:
        """What step-by-step decoding begins with. [B, S]"""
        return Caches([model.start(src) for model in self.models])

    def step(self, tokens: Tensor, caches: Caches) -> Iterator[Tensor]:
        """Log-probabilities of what follows the newest tokens, [B, K] -> [b, K, V]: on a CPU of few sentences at a
        time, so that they stay in its cache."""
        states = [model.step(tokens, cache) for model, cache in zip(self.models, caches.each, strict=True)]
        size = max(1, ROWS // tokens.size(1)) if self.device.type == "cpu" else len(tokens)
        for parts in zip(*(torch.split(of_one, size) for of_one in states), strict=True):
            pairs = zip(self.models, parts, strict=True)
            yield mean([model.logits(part).log_softmax(-1) for model, part in pairs])


def mean(log_probabilities: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities, of which several models have given the logarithms."""
    if len(log_probabilities) == 1:
        return log_probabilities[0]
    return torch.stack([*log_probabilities]).logsumexp(0) - math.log(len(log_probabilities))
