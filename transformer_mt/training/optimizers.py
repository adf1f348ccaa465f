"""The optimisers, and which parameters each of them, and weight decay, is for."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field, model_validator

from transformer_mt.config.section import Section, section_error
from transformer_mt.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from transformer_mt.training.ema import Average

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """Adam (Kingma & Ba 2015), with or without weight decay, Muon (Jordan et al. 2024), schedule-free AdamW (Defazio et
    al. 2024), and a mean of the weights."""

    kind: Literal["adam", "adamw", "muon", "schedule_free"] = "adam"
    """adam; adamw: decays the weights too; muon: for the layers' matrices, else adam; schedule_free: adamw, no curve"""
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """decay of the running mean of the gradient (schedule_free: the mean's share in what trains), and of its square"""
    eps: float = Field(default=1e-9, ge=1e-30)
    """added to the root of the mean square"""
    weight_decay: float = Field(default=0.0, ge=0)
    """not of adam: share, times the learning rate, that a step takes of the layers' matrices and of an untied output"""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """longest gradient; a longer one is scaled down; null: as it is"""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """a running mean of the weights (0.999: over about 1,000 steps) is what is validated and saved; null: no mean"""

    @model_validator(mode="after")
    def _decay_has_its_optimizer(self) -> OptimizerConfig:
        if self.weight_decay and self.kind == "adam":
            raise section_error(
                "weight_decay", "adam would divide it by the gradients' size: set kind: adamw, or leave 0"
            )
        return self

    @model_validator(mode="after")
    def _schedule_free_has_a_mean(self) -> OptimizerConfig:
        if self.kind == "schedule_free" and self.ema_decay is not None:
            raise section_error("ema_decay", "schedule_free is a mean of the weights itself: set null")
        if self.kind == "schedule_free" and not self.betas[0]:
            raise section_error(
                "betas", "the first is the mean's share of the weights in schedule_free: set it above 0"
            )
        return self

    @property
    def copies(self) -> int:
        """Numbers that are kept for each weight besides it, at most: two moments, and one more for a mean."""
        return 2 + (self.ema_decay is not None or self.kind == "schedule_free")

    def check_packages(self) -> None:
        """Raise `UserError` for one that has to be installed first."""
        if self.kind != "schedule_free":
            return
        found = find_spec("schedulefree")
        if found is None or found.origin is None:  # a mere folder of that name
            raise UserError("optimizer.kind: schedule_free needs one more package: pip install schedulefree")


def make_optimizers(
    config: OptimizerConfig, model: nn.Module, precision: Literal["fp32", "bf16"] = "fp32"
) -> list[torch.optim.Optimizer]:
    """Fused Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019) for all parameters, or for those that Muon
    leaves; or schedule-free AdamW for all. `precision`: of Muon's iterations. The learning rate is set before a step.

    So may be `grad_scale` and `found_inf`, fp32 tensors without dimensions: a step divides the gradients by the one, in
    place or not, and changes no weight, moment or count where the other is 1; it must be 0 or 1.
    """
    import torch

    matrices = layer_matrices(model) if config.kind == "muon" else {}
    groups = parameter_groups(model, config.weight_decay, set(matrices))
    if config.kind == "schedule_free":
        from transformer_mt.training.schedule_free import ScheduleFree

        return [ScheduleFree(groups, config.betas, config.eps)]
    from transformer_mt.training.muon import Muon

    kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
    adam = kind(groups, lr=0.0, betas=config.betas, eps=config.eps, fused=True)
    return [Muon(matrices, config.weight_decay, in_bf16=precision == "bf16"), adam] if matrices else [adam]


def make_average(
    config: OptimizerConfig, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> Average | None:
    """What is validated and saved in place of the weights themselves, if anything is."""
    if config.kind == "schedule_free":
        from transformer_mt.training.schedule_free import ScheduleFree, ScheduleFreeAverage

        (optimizer,) = (each for each in optimizers if isinstance(each, ScheduleFree))
        return ScheduleFreeAverage(model, optimizer)
    if config.ema_decay:
        from transformer_mt.training.ema import MovingAverage

        return MovingAverage(model, config.ema_decay)
    return None


def layer_matrices(model: nn.Module) -> dict[torch.Tensor, list[int]]:
    """The matrices of the layers, each with the rows of the projections that are packed into it."""
    from transformer_mt.model.linear import Linear, rows

    found: dict[torch.Tensor, list[int]] = {}
    for name, module in cast("Iterator[tuple[str, nn.Module]]", model.named_modules()):
        if ".layers." in name and isinstance(module, Linear):
            found[module.weight] = rows(module)
    return found


def parameter_groups(
    model: nn.Module, weight_decay: float, elsewhere: Container[torch.Tensor] = ()
) -> list[dict[str, list[nn.Parameter] | float]]:
    """The parameters that decay, and those that do not; all in one group where none does; `elsewhere`: in none."""
    decaying: list[nn.Parameter] = []
    staying: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():  # a shared one once, under its first name: that of an embedding
        if parameter not in elsewhere:
            (decaying if weight_decay and decays(name, parameter) else staying).append(parameter)
    groups = ((decaying, weight_decay), (staying, 0.0))
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Matrices of the layers and an output projection of its own do; biases, gains, embeddings and positions do not."""
    return parameter.dim() == 2 and ".embedding." not in name
