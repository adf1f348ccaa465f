"""Optimizers: Adam, AdamW and Muon; validation of their saved state.

`R` rows, `C` columns of a matrix, `N` matrices of one shape.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# `torch._foreach_*` changes all tensors of a list in one operation; torch has no public name for it.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.layers import Linear, projection_widths
from transformer_mt.training.training_config import OptimizerConfig


def make_optimizers(
    config: OptimizerConfig, model: nn.Module, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Return fused Adam or AdamW for all trained parameters, or Muon and AdamW for disjoint sets of parameters.

    Muon computes its iterations in `dtype`. The caller sets the learning rate before each step, and may set two scalar
    fp32 tensors: `step` divides the gradients by `grad_scale`, and changes no weight or state if `found_inf` is 1.
    """
    matrices = list_layer_matrices(model) if config.kind == "muon" else {}
    groups = group_parameters(model, config.weight_decay, excluded=set(matrices))
    adam_class = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
    adam = adam_class(groups, lr=0.0, betas=config.betas, eps=config.eps, fused=True)
    return [Muon(matrices, config.weight_decay, dtype), adam] if matrices else [adam]


def list_trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen. A tied one appears once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def list_layer_matrices(model: nn.Module) -> dict[Tensor, list[int]]:
    """Return the trained matrices of the layers, each with the number of rows of every projection fused into it."""
    found: dict[Tensor, list[int]] = {}
    for name, module in cast("Iterator[tuple[str, nn.Module]]", model.named_modules()):
        if ".layers." in name and isinstance(module, Linear) and module.weight.requires_grad:
            found[module.weight] = projection_widths(module)
    return found


def group_parameters(
    model: nn.Module, weight_decay: float, excluded: Container[Tensor] = ()
) -> list[dict[str, list[nn.Parameter] | float]]:
    """Split the trained parameters into a group with weight decay and one without, and omit empty groups.

    Matrices decay, but not biases, gains, embeddings and positions.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():  # a tied parameter appears once, as an embedding
        if parameter.requires_grad and parameter not in excluded:
            is_decayed = weight_decay and parameter.dim() == 2 and ".embedding." not in name
            (decayed if is_decayed else others).append(parameter)
    groups = ((decayed, weight_decay), (others, 0.0))
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


# --- Muon -------------------------------------------------------------------------------------------------------------

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Factors of x, x^3 and x^5. They bring most singular values between 0.7 and 1.2, and none above."""
UPDATE_RMS = 0.2
"""Root mean square of an update at a learning rate of 1. It is close to Adam's, so both can share a learning rate (Liu
et al. 2025, Muon is Scalable for LLM Training, section 2.2)."""


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): update each matrix by its momentum, with all singular values nearly equal.

    It is for matrices only, and the caller sets the learning rate before each step. `torch.optim.Muon` is not used. It
    cannot skip a step without synchronising (it has neither `grad_scale` nor `found_inf`), treats fused projections as
    one matrix, and always iterates in bf16, which took 20 times as long on a CPU without native bf16. Apart from the
    bf16 rounding, its update with `match_rms_adamw` is the same.

    As in torch's fused Adam, `step` divides the gradients by `grad_scale`, and changes nothing if `found_inf` is 1.
    It does not read these tensors on the CPU, which would synchronise with a GPU.
    """

    def __init__(self, matrices: Mapping[Tensor, Sequence[int]], weight_decay: float, dtype: torch.dtype) -> None:
        """Create the optimizer.

        `matrices` maps each matrix to the row counts of the projections fused into it, which are updated separately.
        The iterations have the given `dtype`; bf16 is accurate enough.
        """
        groups = [{"params": [matrix], "rows": [*rows]} for matrix, rows in matrices.items()]
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})
        self.dtype = dtype
        self.grad_scale, self.found_inf = torch.ones(()), torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all matrices. A closure is not supported."""
        is_skipped, is_taken = self.found_inf != 0, 1 - self.found_inf  # 1.0 or 0.0
        rate, decay = self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
        for group in self.param_groups:
            matrix = cast(Tensor, group["params"][0])
            if "momentum" not in self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
            fused = matrix, cast(Tensor, matrix.grad), self.state[matrix]["momentum"]
            for projection in zip(*(tensor.split_with_sizes(group["rows"]) for tensor in fused), strict=True):
                by_shape[projection[0].shape].append(projection)
        for shape, projections in by_shape.items():
            weights, gradients, momenta = zip(*projections, strict=True)
            gradient = torch.stack(gradients).div_(self.grad_scale).masked_fill_(is_skipped, 0.0)  # [N, R, C]
            momentum = torch.stack(momenta).lerp_(gradient, (1 - MOMENTUM) * is_taken)
            torch._foreach_copy_(momenta, momentum.unbind())
            direction = gradient.lerp_(momentum, MOMENTUM).mul_(is_taken)  # Nesterov momentum
            updates = orthogonalize(direction, self.dtype)
            torch._foreach_mul_(weights, 1 - rate * decay * is_taken)
            torch._foreach_add_(weights, updates.unbind(), alpha=-rate * UPDATE_RMS * max(shape) ** 0.5)


def orthogonalize(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Approximate U V^T for each matrix U S V^T by Newton-Schulz iterations; 0 stays 0. [N, R, C] -> [N, R, C]."""
    is_tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if is_tall else matrices
    x = F.normalize(x.flatten(1), eps=torch.finfo(x.dtype).tiny).view_as(x)
    x = x.to(dtype)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype).contiguous()


# --- saved state ------------------------------------------------------------------------------------------------------
# A checkpoint may come from a stranger, and an optimizer does not compare its state with its parameters: the fused ones
# read past the end of a tensor that is too small.

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
