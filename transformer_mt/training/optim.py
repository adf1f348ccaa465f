"""The optimiser, and which parameters its weight decay falls on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from transformer_mt.settings import Section, refusal

if TYPE_CHECKING:
    import torch
    from torch import nn

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """Adam (Kingma & Ba 2015), with or without weight decay, and a mean of the weights."""

    kind: Literal["adam", "adamw"] = "adam"
    """adam; adamw: with weight decay, apart from the gradient"""
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """decay of the running mean of the gradient and of its square"""
    eps: float = Field(default=1e-9, gt=0)
    """added to the root of the mean square"""
    weight_decay: float = Field(default=0.0, ge=0)
    """of adamw: share of the layers' matrices, times the learning rate, that a step takes away; embeddings keep all"""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """longest gradient; a longer one is scaled down; null: as it is"""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """a running mean of the weights (0.999: over about 1,000 steps) is what is validated and saved; null: no mean"""

    @model_validator(mode="after")
    def _decay_has_its_optimizer(self) -> OptimizerConfig:
        if self.weight_decay and self.kind != "adamw":
            raise refusal("weight_decay", "adam would divide it by the gradients' size: set kind: adamw, or leave 0")
        return self

    @property
    def copies(self) -> int:
        """Numbers that are kept for each weight besides it: Adam's two moments, and one more for a running mean."""
        return 2 + (self.ema_decay is not None)


def make_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Fused Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019); the learning rate is set before each step.

    So may be `grad_scale` and `found_inf`, fp32 tensors without dimensions: a step divides the gradients by the one, in
    place, and changes no weight, moment or count where the other is 1; it must be 0 or 1.
    """
    import torch

    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.kind]
    groups = parameter_groups(model, config.weight_decay)
    return kind(groups, lr=0.0, betas=config.betas, eps=config.eps, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, list[nn.Parameter] | float]]:
    """The parameters that decay, and those that do not; all in one group where none does."""
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():  # a shared one once, under its first name: that of an embedding
        (decaying if weight_decay and decays(name, parameter) else others).append(parameter)
    groups = ((decaying, weight_decay), (others, 0.0))
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Matrices of the layers and an output projection of its own do; biases, gains, embeddings and positions do not."""
    return parameter.dim() == 2 and ".embedding." not in name
