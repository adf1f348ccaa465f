"""Checks of a saved training state before it is used, because a checkpoint may come from a stranger.

An optimizer does not compare its state with its parameters: the fused ones read past the end of a tensor that is too
small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from transformer_mt.training.muon import Muon

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
