"""Muon (Jordan et al. 2024): each matrix moves along its momentum with all singular values made nearly equal.

`R` rows, `C` columns of a matrix, `N` matrices of one shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of x, x^3 and x^5: after so many iterations most singular values are between 0.7 and 1.2, and none is above."""
RMS = 0.2
"""Root mean square of a move at a learning rate of 1: about that of Adam's, so that one learning rate suits both (Liu
et al. 2025, Muon is Scalable for LLM Training, section 2.2)."""


class Muon(torch.optim.Optimizer):
    """Moves matrices alone; the learning rate is set before each step.

    As torch's fused Adam does it, a step divides the gradients by `grad_scale`, and changes nothing where `found_inf`
    is 1; neither is read, since a GPU would have to be waited for.
    """

    def __init__(self, matrices: Mapping[Tensor, Sequence[int]], weight_decay: float, in_bf16: bool) -> None:
        """matrices: with the rows of each of the projections that are packed into one; these move one by one. in_bf16:
        whether its iterations are in bf16, which is good enough for them."""
        groups = [{"params": [matrix], "rows": [*rows]} for matrix, rows in matrices.items()]
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})
        self.in_bf16 = in_bf16
        self.grad_scale, self.found_inf = torch.ones(()), torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step; there is no closure."""
        taken = 1 - self.found_inf
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for group in self.param_groups:
            matrix = cast(Tensor, group["params"][0])
            if "momentum" not in self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
            momentum: Tensor = self.state[matrix]["momentum"]
            gradient = cast(Tensor, matrix.grad).div(self.grad_scale).masked_fill(taken == 0, 0.0)
            momentum.lerp_(gradient, (1 - MOMENTUM) * taken)
            direction = gradient.lerp(momentum, MOMENTUM) * taken  # Nesterov's
            matrix.mul_(1 - group["lr"] * group["weight_decay"] * taken)
            for pair in zip(*(of.split_with_sizes(group["rows"]) for of in (matrix, direction)), strict=True):
                by_shape[pair[0].shape].append(pair)
        for shape, pairs in by_shape.items():
            length = self.param_groups[0]["lr"] * RMS * max(shape) ** 0.5
            moves = orthogonal(torch.stack([direction for _, direction in pairs]), self.in_bf16)
            for (weight, _), move in zip(pairs, moves, strict=True):
                weight.add_(move, alpha=-length)


def orthogonal(matrices: Tensor, in_bf16: bool) -> Tensor:
    """U V^T of each U S V^T, nearly, by Newton-Schulz iterations; of zeros, zeros. [N, R, C] -> [N, R, C]"""
    is_tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if is_tall else matrices
    x = F.normalize(x.flatten(1), eps=torch.finfo(x.dtype).tiny).view_as(x)
    if in_bf16:
        x = x.bfloat16()
    of_1, of_3, of_5 = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = of_1 * x + torch.baddbmm(gram, gram, gram, beta=of_3, alpha=of_5) @ x
    return (x.mT if is_tall else x).to(matrices.dtype)
