"""Optimizer settings, and the choice of the parameters that Muon updates and that weight decay applies to."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field, model_validator

from transformer_mt.config.section import Section, section_error

if TYPE_CHECKING:
    import torch
    from torch import nn

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """Adam (Kingma & Ba 2015), AdamW or Muon (Jordan et al. 2024), gradient clipping and weight averaging."""

    kind: Literal["adam", "adamw", "muon"] = "adam"
    """adam; adamw: Adam with decoupled weight decay; muon: Muon for the matrices of the layers, Adam for the rest"""
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    """decay rates of Adam's running means of the gradient and of its square"""
    eps: float = Field(default=1e-9, ge=1e-30)
    """added to the denominator of Adam's update"""
    weight_decay: float = Field(default=0.0, ge=0)
    """decoupled weight decay (adamw, muon) of the layers' matrices and of an untied output projection"""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """maximum norm of the gradient; null: no clipping"""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """decay of an exponential moving average of the weights, which is validated and saved; null: no average"""

    @model_validator(mode="after")
    def _weight_decay_needs_adamw_or_muon(self) -> OptimizerConfig:
        if self.weight_decay and self.kind == "adam":
            raise section_error(
                "weight_decay", "adam would divide it by the gradients' size: set kind: adamw, or leave 0"
            )
        return self

    @property
    def state_copies(self) -> int:
        """Return the number of values stored per weight in addition to it: two moments, and the average if any."""
        return 2 + (self.ema_decay is not None)


def make_optimizers(
    config: OptimizerConfig, model: nn.Module, precision: Literal["fp32", "bf16"] = "fp32"
) -> list[torch.optim.Optimizer]:
    """Return fused Adam or AdamW for all parameters, or Muon and AdamW for disjoint sets of parameters.

    `precision` applies to Muon's iterations. The caller sets the learning rate before each step, and may set two scalar
    fp32 tensors: `step` divides the gradients by `grad_scale`, and changes no weight or state if `found_inf` is 1.
    """
    import torch

    from transformer_mt.training.muon import Muon

    matrices = list_layer_matrices(model) if config.kind == "muon" else {}
    groups = group_parameters(model, config.weight_decay, excluded=set(matrices))
    adam_class = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
    adam = adam_class(groups, lr=0.0, betas=config.betas, eps=config.eps, fused=True)
    return [Muon(matrices, config.weight_decay, in_bf16=precision == "bf16"), adam] if matrices else [adam]


def list_layer_matrices(model: nn.Module) -> dict[torch.Tensor, list[int]]:
    """Return the weight matrices of the layers, each with the number of rows of every projection fused into it."""
    from transformer_mt.model.linear import Linear, projection_widths

    found: dict[torch.Tensor, list[int]] = {}
    for name, module in cast("Iterator[tuple[str, nn.Module]]", model.named_modules()):
        if ".layers." in name and isinstance(module, Linear):
            found[module.weight] = projection_widths(module)
    return found


def group_parameters(
    model: nn.Module, weight_decay: float, excluded: Container[torch.Tensor] = ()
) -> list[dict[str, list[nn.Parameter] | float]]:
    """Split the parameters into a group with weight decay and one without, and omit empty groups."""
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():  # a tied parameter appears once, as an embedding
        if parameter not in excluded:
            (decayed if weight_decay and is_decayed(name, parameter) else others).append(parameter)
    groups = ((decayed, weight_decay), (others, 0.0))
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


def is_decayed(name: str, parameter: nn.Parameter) -> bool:
    """Tell whether weight decay applies: to matrices, but not to biases, gains, embeddings and positions."""
    return parameter.dim() == 2 and ".embedding." not in name
