"""Means of the weights over the steps of a training, which are validated and saved in their place."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn


class Average(Protocol):
    """A mean of a model's parameters; shared ones are there once.

    A checkpoint is made within `swapped`: then the model's weights are the mean, beside the raw ones.
    """

    def update(self, step: int, taken: Tensor) -> None:
        """Take in the weights after a step, counted from 1; where that was not `taken`, nothing changes."""
        ...

    def swapped(self) -> AbstractContextManager[dict[str, Tensor]]:
        """Within, the model has the mean, and after it its own weights again, to the bit: these are yielded, by name.
        The parameters stay where they are in memory; what they hold changes."""
        ...

    def load(self, raw: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint: the model, which has read the mean, gets the raw weights. The optimisers have read
        their states."""
        ...


class MovingAverage:
    """An exponential moving average (Polyak & Juditsky 1992; Tarvainen & Valpola 2017)."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.parameters, self.decay = dict(model.named_parameters()), decay
        self.others = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int, taken: Tensor) -> None:
        """Take in the weights after a step.

        The decay is min(decay, (1 + step) / (10 + step)), as TensorFlow's ExponentialMovingAverage has it with
        `num_updates`: a mean of about the last tenth of a short run, in which the first weights do not linger.
        `taken` is not looked at on the CPU, which would have to wait for a GPU.
        """
        share = (1 - min(self.decay, (1 + step) / (10 + step))) * taken
        for mean, weight in zip(self.others.values(), self.parameters.values(), strict=True):
            mean.lerp_(weight, share)

    @contextmanager
    def swapped(self) -> Generator[dict[str, Tensor]]:
        """They change places, one parameter at a time, which takes no memory."""
        self._swap()
        try:
            yield self.others
        finally:
            self._swap()

    @torch.no_grad()
    def load(self, raw: Mapping[str, Tensor]) -> None:
        for name, other in self.others.items():
            other.copy_(raw[name])
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, other in zip(self.parameters.values(), self.others.values(), strict=True):
            held = parameter.clone()
            parameter.copy_(other)
            other.copy_(held)
