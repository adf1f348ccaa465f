"""Mixtures of several sources of training pairs: which source each batch comes from.

A batch has pairs of one source. Its source is drawn at random with the weights of the current stage, so the mixture is
a pure function of (seed, number of the batch). The batches of a source come in the order of its own epochs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.data_config import DataConfig

MIXTURE_STREAM = 0x6D6978  # separates these random numbers from others with the same seed


@dataclass(frozen=True)
class Mixture:
    """The probabilities of the sources in each stage, and the source of each batch. `K` sources."""

    seed: int
    stages: Sequence[tuple[float, NDArray[np.float64]]]  # number of the first batch after the stage; probabilities [K]

    def probabilities(self, number: int) -> NDArray[np.float64]:
        """Return the probabilities of the sources for batch `number`, counted from 0. [K]."""
        return next(weights for end, weights in self.stages if number < end)

    def choose(self, number: int) -> int:
        """Return the source of batch `number`."""
        value = np.random.default_rng([self.seed, number, MIXTURE_STREAM]).random()
        ends: list[float] = np.cumsum(self.probabilities(number)).tolist()
        return bisect_right(ends, value * ends[-1])


def make_mixture(
    data: DataConfig, n_batches: Sequence[int], *, seed: int, max_steps: int | None, accumulate: int
) -> Mixture:
    """Return the mixture of the training sources, which must be a list. `n_batches` has the batches of each source.

    Without weights, the probability of a source is proportional to `(n_batches * repeat) ** (1 / temperature)`.
    `accumulate` is the number of batches per step.
    """
    assert isinstance(data.train, tuple)
    sources = data.train
    counts = np.array([n * source.repeat for n, source in zip(n_batches, sources, strict=True)])
    weights = [
        float(count) if source.weight is None else source.weight
        for count, source in zip(counts ** (1 / data.temperature), sources, strict=True)
    ]
    parts: list[tuple[float, NDArray[np.float64]]] = []
    for stage in data.stages:
        last = stage.last_step(max_steps)
        values = [stage.weights.get(source.name, 0.0) for source in sources]
        parts.append((math.inf if last is None else last * accumulate, _normalized(values)))
    return Mixture(seed, [*parts, (math.inf, _normalized(weights))])


def _normalized(weights: Sequence[float]) -> NDArray[np.float64]:
    return np.array(weights) / sum(weights)
