"""Schedule-free AdamW (Defazio et al. 2024, The Road Less Scheduled, algorithm 1), as its authors' package has it.

A step moves z, along a gradient that is taken at y = (1 - beta1) z + beta1 x; x is the mean of all z, and what a user
wants. The model has y while it trains.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import schedulefree
import torch
from torch import Tensor, nn


class ScheduleFree(schedulefree.AdamWScheduleFree):
    """The learning rate is set before each step, and weighs what the step adds to the mean.

    As torch's fused Adam does it, a step divides the gradients by `grad_scale`, and changes nothing where `found_inf`
    is 1. The package's own step is taken or not, so `found_inf` is read, and a GPU is waited for.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, lr=0.0, betas=betas, eps=eps)
        self.grad_scale, self.found_inf = torch.ones(()), torch.zeros(())
        self.train()

    def step(self, closure: Any = None) -> None:
        """Take a step; there is no closure."""
        if self.found_inf:
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.grad_scale)
        super().step()


class ScheduleFreeAverage:
    """x, which its optimiser finds from y and z."""

    def __init__(self, model: nn.Module, optimizer: ScheduleFree) -> None:
        self.parameters, self.optimizer = dict(model.named_parameters()), optimizer

    def update(self, step: int, taken: Tensor) -> None:
        """Nothing: the optimiser's step has done it."""

    @contextmanager
    def swapped(self) -> Generator[dict[str, Tensor]]:
        """What y was is remembered: found again from x, it would be off by a rounding."""
        raw = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self.optimizer.eval()
        try:
            yield raw
        finally:
            self.load(raw)

    @torch.no_grad()
    def load(self, raw: Mapping[str, Tensor]) -> None:
        self.optimizer.train()
        for name, parameter in self.parameters.items():
            parameter.copy_(raw[name])
