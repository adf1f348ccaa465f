"""Averaged weights, and checks of a saved training state, because a checkpoint may come from a stranger.

An optimizer does not compare its state with its parameters: the fused ones read past the end of a tensor that is too
small.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# `torch._foreach_*` changes all tensors of a list in one operation; torch has no public name for it.

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from transformer_mt.training.optimizers import Muon

MUON_STATE = {"momentum"}
ADAM_STATE = {"step", "exp_avg", "exp_avg_sq"}


def check_tensor(name: str, saved: object, like: Tensor) -> Tensor:
    """Return a saved tensor if it can replace `like`. Raises `ValueError` for another shape, type or layout."""
    if type(saved) is not Tensor or saved.layout != torch.strided or saved.device.type != "cpu":
        raise ValueError(f"{name} is not a tensor")
    if saved.shape != like.shape or saved.dtype != like.dtype or not saved.is_contiguous():
        shape, dtype = list(saved.shape), str(saved.dtype).removeprefix("torch.")
        raise ValueError(f"{name} has shape {shape} and type {dtype} instead of {list(like.shape)} and {like.dtype}")
    return saved


def load_optimizers(optimizers: Sequence[torch.optim.Optimizer], saved: object) -> None:
    """Restore the state of the optimizers. Their settings stay, because those of a run do not change.

    Raises `ValueError`, `KeyError` or `TypeError` for a state of other optimizers or parameters.
    """
    if not isinstance(saved, list) or len(cast(list[object], saved)) != len(optimizers):
        raise ValueError("it is the state of other optimizers")
    for optimizer, state in zip(optimizers, cast(list[Mapping[str, Mapping[int, object]]], saved), strict=True):
        names = MUON_STATE if isinstance(optimizer, Muon) else ADAM_STATE
        groups = optimizer.state_dict()["param_groups"]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments = {index: _check_moments(value, parameters[index], names) for index, value in state["state"].items()}
        optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _check_moments(saved: object, parameter: Tensor, names: set[str]) -> dict[str, Tensor]:
    """Return the state of a parameter. `step` is a number of type fp32, and the others have the parameter's shape."""
    if not isinstance(saved, dict) or cast(dict[object, object], saved).keys() != names:
        raise ValueError("it is the state of another optimizer")
    moments = cast(dict[str, object], saved)
    return {name: check_tensor(name, moments[name], torch.zeros(()) if name == "step" else parameter) for name in names}


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
