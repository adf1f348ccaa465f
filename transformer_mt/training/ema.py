"""Exponential moving average of the weights, which is validated and saved in their place."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# `torch._foreach_*` changes all tensors of a list in one operation; torch has no public name for it.

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from transformer_mt.training.saved_state import check_tensor


class ExponentialMovingAverage:
    """Exponential moving average of a model's parameters (Polyak & Juditsky 1992; Tarvainen & Valpola 2017).

    A tied parameter is averaged once.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.parameters, self.decay = dict(model.named_parameters()), decay
        self.shadow = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int, is_taken: Tensor) -> None:
        """Update the average after `step`, counted from 1, unless the bool `is_taken` is False.

        The decay is min(decay, (1 + step) / (10 + step)), like TensorFlow's ExponentialMovingAverage with
        `num_updates`, so the initial weights fade quickly even in a short run.
        """
        share = (1 - min(self.decay, (1 + step) / (10 + step))) * is_taken  # reading `is_taken` would synchronise
        averages = list(self.shadow.values())
        changes = torch._foreach_sub(list(self.parameters.values()), averages)
        torch._foreach_mul_(changes, share)  # `_foreach_lerp_` needs the share as a number
        torch._foreach_add_(averages, changes)

    @contextmanager
    def average_parameters(self) -> Generator[dict[str, Tensor]]:
        """Give the model the averaged weights inside the `with` block, and yield the raw weights by name.

        Parameters and averages exchange their values in place, so no second copy is allocated.
        """
        self._swap()
        try:
            yield self.shadow
        finally:
            self._swap()

    @torch.no_grad()
    def load_raw_weights(self, raw: Mapping[str, Tensor]) -> None:
        """Resume from a checkpoint: the model holds the average, and gets the raw weights.

        Raises `ValueError`, `KeyError` or `TypeError` for weights of another model.
        """
        for name, tensor in self.shadow.items():
            tensor.copy_(check_tensor(name, raw[name], tensor))
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, shadow in zip(self.parameters.values(), self.shadow.values(), strict=True):
            weight = parameter.clone()
            parameter.copy_(shadow)
            shadow.copy_(weight)
