"""Ensemble decoding: the mean of the models' probabilities for each token. A single model is the usual case.

The models may differ in everything but their vocabularies.

`B` sentences, `b` sentences of one slice, `K` beams, `S` source length, `D` width, `V` vocabulary.
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

CPU_SLICE_ROWS = 256  # rows of log-probabilities computed together on a CPU, so that they stay in its cache


@dataclass(frozen=True)
class EnsembleCache:
    """The KV caches of all models."""

    caches: list[KVCache]

    def reorder(self, parents: Tensor) -> None:
        """Let beam k continue former beam parents[:, k]. [B, K]."""
        for cache in self.caches:
            cache.reorder(parents)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        for cache in self.caches:
            cache.select(rows)


class Ensemble:
    """One or more models on one device and in one precision."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = models
        weight = models[0].output.weight
        self.device = weight.device
        self.precision: Literal["fp32", "bf16"] = "bf16" if weight.dtype == torch.bfloat16 else "fp32"

    @property
    def max_positions(self) -> int | None:
        """Length of the longest sequence that all models can read; None: unlimited."""
        limits = (model.config.max_sequence_length for model in self.models)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def n_decoder_layers(self) -> int:
        """Decoder layers of the shallowest model."""
        return min(model.config.decoder.n_layers for model in self.models)

    def start(self, src: Tensor) -> EnsembleCache:
        """Encode the sources [B, S] and return the caches for `step`."""
        return EnsembleCache([model.start(src) for model in self.models])

    def step(self, tokens: Tensor, cache: EnsembleCache) -> Iterator[Tensor]:
        """Append the newest tokens to the cache and yield log-probabilities of the next. [B, K] -> slices of [b, K, V].

        On a CPU a slice has few sentences; elsewhere it is the whole batch.
        """
        states = [model.step(tokens, each) for model, each in zip(self.models, cache.caches, strict=True)]  # [B, K, D]
        size = max(1, CPU_SLICE_ROWS // tokens.size(1)) if self.device.type == "cpu" else len(tokens)
        for slices in zip(*(torch.split(model_states, size) for model_states in states), strict=True):
            pairs = zip(self.models, slices, strict=True)
            yield mean_log_probs([model.logits(part).log_softmax(-1) for model, part in pairs])


def mean_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the models' mean probability."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack([*log_probs]).logsumexp(0) - math.log(len(log_probs))
