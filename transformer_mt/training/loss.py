"""Which loss training minimises, of one pass of each batch through the model or of two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from transformer_mt.config.section import Section, section_error

if TYPE_CHECKING:
    from transformer_mt.data.batches import Batch
    from transformer_mt.model.transformer import Transformer
    from transformer_mt.training.cross_entropy import Loss

SIMCUT_WEIGHT, R_DROP_WEIGHT = 3.0, 5.0  # the papers' alpha, for small corpora

BatchLoss = Callable[["Transformer", "Batch"], "Loss"]
"""A loss of one batch, with all its settings."""


class LossConfig(Section):
    """The training loss."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """probability mass spread evenly over the vocabulary"""
    consistency: Literal["none", "simcut", "rdrop"] = "none"
    """two passes of each batch are to predict alike: simcut (the second with tokens cut off) or rdrop (by dropout)"""
    consistency_weight: float | None = Field(default=None, ge=0)
    """the papers' alpha, by which the divergence of the two is multiplied; null: 3 for simcut, 5 for rdrop"""
    cutoff: float = Field(default=0.05, ge=0, lt=1)
    """simcut: rate of the tokens, of source and target, that have no embedding in the second pass"""

    @model_validator(mode="after")
    def _weight_has_its_divergence(self) -> LossConfig:
        if self.consistency_weight is not None and self.consistency == "none":
            raise section_error(
                "consistency_weight", "with one pass nothing diverges: set consistency, or leave this null"
            )
        return self

    def problem(self, is_dropping: bool) -> str | None:
        """What is wrong where two passes would be the same, given whether the model drops anything."""
        if is_dropping or self.consistency == "none" or (self.consistency == "simcut" and self.cutoff > 0):
            return None
        return f"{self.consistency} compares two passes, the same ones without dropout: raise a rate of model.dropout"


def make_loss(config: LossConfig) -> BatchLoss:
    """The loss, as it is configured."""
    from transformer_mt.training.consistency import Shares, two_pass_loss
    from transformer_mt.training.cross_entropy import batch_loss

    alpha, smoothing = config.consistency_weight, config.label_smoothing
    if config.consistency == "simcut":
        shares = Shares((1.0, 0.0), (SIMCUT_WEIGHT if alpha is None else alpha, 0.0))
        return partial(two_pass_loss, shares=shares, smoothing=smoothing, cutoff=config.cutoff)
    if config.consistency == "rdrop":
        quarter = (R_DROP_WEIGHT if alpha is None else alpha) / 4
        return partial(two_pass_loss, shares=Shares((0.5, 0.5), (quarter, quarter)), smoothing=smoothing, cutoff=0.0)
    return partial(batch_loss, smoothing=smoothing)
