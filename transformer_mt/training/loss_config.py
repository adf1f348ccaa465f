"""Settings of the training loss, and the choice of the function that computes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field, model_validator

from transformer_mt.config.section import Section, section_error

if TYPE_CHECKING:
    from torch import Tensor

    from transformer_mt.data.batches import Batch
    from transformer_mt.model.transformer import Transformer

SIMCUT_WEIGHT, R_DROP_WEIGHT = 3.0, 5.0  # the papers' alpha for small corpora

BatchLoss = Callable[["Transformer", "Batch"], "tuple[Tensor, Tensor, Tensor]"]
"""Computes sums over the labels of a batch: loss (with gradient), negative log-likelihood in nats, consistency loss."""


class LabelLoss(Protocol):
    """A `BatchLoss` that can also append the negative log-likelihoods of the labels to a list, in order."""

    def __call__(
        self, model: Transformer, batch: Batch, label_nll: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the sums of `BatchLoss`."""
        ...


class LossConfig(Section):
    """Cross-entropy with label smoothing, and optionally a consistency loss between two passes of each batch."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """probability mass that is spread evenly over the vocabulary"""
    consistency: Literal["none", "simcut", "rdrop"] = "none"
    """compare two passes of a batch: simcut (token cutoff in the second), rdrop (different dropout); none"""
    consistency_weight: float | None = Field(default=None, ge=0)
    """alpha of the papers, the weight of the divergence; null: 3 for simcut, 5 for rdrop"""
    cutoff: float = Field(default=0.05, ge=0, lt=1)
    """for simcut: rate of source and target tokens whose embedding is zeroed in the second pass"""

    @model_validator(mode="after")
    def _weight_needs_consistency(self) -> LossConfig:
        if self.consistency_weight is not None and self.consistency == "none":
            raise section_error(
                "consistency_weight", "it has no effect without a consistency loss: set consistency, or leave this null"
            )
        return self

    def find_problem(self, has_dropout: bool) -> str | None:
        """Return an error message if both passes would be the same, or None."""
        if has_dropout or self.consistency == "none" or (self.consistency == "simcut" and self.cutoff > 0):
            return None
        return f"{self.consistency} compares two passes, which are equal without dropout: raise a rate of model.dropout"


def make_loss(config: LossConfig) -> LabelLoss:
    """Return the configured loss function."""
    from transformer_mt.training.loss import PassWeights, batch_loss, two_pass_loss

    alpha, smoothing = config.consistency_weight, config.label_smoothing
    if config.consistency == "simcut":
        weights = PassWeights((1.0, 0.0), (SIMCUT_WEIGHT if alpha is None else alpha, 0.0))
        return partial(two_pass_loss, pass_weights=weights, smoothing=smoothing, cutoff=config.cutoff)
    if config.consistency == "rdrop":
        weight = (R_DROP_WEIGHT if alpha is None else alpha) / 4
        weights = PassWeights((0.5, 0.5), (weight, weight))
        return partial(two_pass_loss, pass_weights=weights, smoothing=smoothing, cutoff=0.0)
    return partial(batch_loss, smoothing=smoothing)
