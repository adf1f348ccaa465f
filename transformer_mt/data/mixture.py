"""Mixtures of several sources of training pairs: which source each batch comes from.

A batch has pairs of one source. Its source is drawn at random with the weights of the current stage, so the mixture is
a pure function of (seed, number of the batch). The batches of a source come in the order of its own epochs.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, WithJsonSchema

from transformer_mt.config.section import Section
from transformer_mt.data.sources import TrainSource

_UNTIL = re.compile(r"([1-9][0-9_]*)(?: *steps?)?|([0-9]+(?:\.[0-9]+)?) *%")
RNG_STREAM = 0x6D6978  # separates these random numbers from others with the same seed


def _normalize_until(value: object) -> object:
    if value is None:
        return None
    match = _UNTIL.fullmatch(str(value).strip())
    if match is None or (match[2] and not 0 < float(match[2]) < 100):
        raise ValueError(f'"{value}" is neither a step (5000) nor a share of train.max_steps (40%)')
    return f"{float(match[2]):g}%" if match[2] else str(int(match[1]))


Until = Annotated[
    str | None,
    BeforeValidator(_normalize_until),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": _UNTIL.pattern}]}),
]
"""Last step of a stage: a number of steps such as `5000`, or a share of the training such as `40%`."""


class Stage(Section):
    """Part of the training in which the sources have other weights."""

    until: Until = None
    """last step of the stage: a step (5000) or a share of train.max_steps (40%); null: the end of the training"""
    weights: dict[str, float] = Field(min_length=1)
    """weights of the sources by name; sources without one are not used"""

    def last_step(self, max_steps: int | None) -> int | None:
        """Return the last step, or None for the end of the training."""
        if self.until is None or not self.until.endswith("%"):
            return None if self.until is None else int(self.until)
        assert max_steps is not None
        return max(1, round(float(self.until[:-1]) / 100 * max_steps))


def find_mixture_problem(
    sources: Sequence[TrainSource], stages: Sequence[Stage], temperature: float
) -> tuple[str, str] | None:
    """Return the key of the first contradiction between named sources and stages, and a message, or None."""
    names = [source.name for source in sources]
    return next(chain(_find_source_problems(sources, temperature), _find_stage_problems(names, stages)), None)


def _find_source_problems(sources: Sequence[TrainSource], temperature: float) -> Iterator[tuple[str, str]]:
    names = [source.name for source in sources]
    weights = [source.weight for source in sources]
    for number, source in enumerate(sources):
        if source.name in names[:number]:
            yield f"train.{number}.name", f"{source.name} is the name of an earlier source: choose another one"
        if source.weight is None and any(weight is not None for weight in weights):
            yield f"train.{number}", "has no weight, but other sources have: give each source a weight, or none"
        if source.weight is not None and source.repeat != 1:
            yield f"train.{number}.repeat", "has no effect with weights: remove it, or the weights"
    if weights and all(weight == 0 for weight in weights):
        yield "train", "all weights are 0: raise one"
    if temperature != 1 and (not sources or weights[0] is not None):
        yield "temperature", "has an effect only on several sources without weights: remove it, or the weights"


def _find_stage_problems(names: Sequence[str], stages: Sequence[Stage]) -> Iterator[tuple[str, str]]:
    if stages and not names:
        yield "stages", "need several sources: make data.train a list of named sources"
        return
    for number, stage in enumerate(stages):
        key = f"stages.{number}"
        for name, weight in stage.weights.items():
            if name not in names:
                yield f"{key}.weights.{name}", f"no source has this name; the sources are {', '.join(names)}"
            if not 0 <= weight < math.inf:
                yield f"{key}.weights.{name}", f"{weight} is not a weight: write 0 or more"
        if not any(stage.weights.values()):
            yield f"{key}.weights", "all weights are 0: raise one"
        if stage.until is None and number + 1 < len(stages):
            yield f"stages.{number + 1}", "never starts, because the stage before it has no end: add until there"


def find_unreachable_stage(stages: Sequence[Stage], max_steps: int | None) -> tuple[int, str] | None:
    """Return the number of the first stage that never starts or has no definite end, and a message, or None."""
    start = 0
    for number, stage in enumerate(stages):
        if max_steps is None and (stage.until or "").endswith("%"):
            return number, "a share needs train.max_steps: set it, or write a step"
        if max_steps is not None and start >= max_steps:
            return number, f"never starts, because training ends at step {max_steps:,} (train.max_steps)"
        last = stage.last_step(max_steps)
        if last is not None and last <= start:
            return number, f"ends at step {last:,}, but the stage before it ends at step {start:,}: raise until"
        start = math.inf if last is None else last
    return None


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
        value = np.random.default_rng([self.seed, number, RNG_STREAM]).random()
        ends: list[float] = np.cumsum(self.probabilities(number)).tolist()
        return bisect_right(ends, value * ends[-1])


def make_mixture(
    sources: Sequence[TrainSource],
    stages: Sequence[Stage],
    n_batches: Sequence[int],
    *,
    temperature: float,
    seed: int,
    max_steps: int | None,
    accumulate: int,
) -> Mixture:
    """Return the mixture of sources with these numbers of batches.

    Without weights, the probability of a source is proportional to `(n_batches * repeat) ** (1 / temperature)`.
    `accumulate` is the number of batches per step.
    """
    counts = np.array([n * source.repeat for n, source in zip(n_batches, sources, strict=True)])
    weights = [
        float(count) if source.weight is None else source.weight
        for count, source in zip(counts ** (1 / temperature), sources, strict=True)
    ]
    parts: list[tuple[float, NDArray[np.float64]]] = []
    for stage in stages:
        last = stage.last_step(max_steps)
        values = [stage.weights.get(source.name, 0.0) for source in sources]
        parts.append((math.inf if last is None else last * accumulate, _normalized(values)))
    return Mixture(seed, [*parts, (math.inf, _normalized(weights))])


def _normalized(weights: Sequence[float]) -> NDArray[np.float64]:
    return np.array(weights) / sum(weights)
