"""A filter by the losses of a trained model, for `tmt repair`. It is not part of `data.filters`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from transformer_mt.tools.quality.corpus_filters import UnrelatedFilter
from transformer_mt.tools.quality.filter_base import (
    Block,
    Filter,
    FilterContext,
    FilterFunction,
)
from transformer_mt.tools.quality.signals import LengthModel

HIGH_EXCESS = 2.5  # nats per target token: a pair with a larger excess loss is removed
MODERATE_EXCESS = 0.3  # nats: a pair with a larger excess is removed if there is a second reason
MAX_LENGTH_DEVIATIONS = 3.5  # standard deviations of the logarithmic length ratio


class LedgerFilter(Filter):
    """Remove pairs by the losses of a model.

    A pair with a high excess loss is removed. One with a moderate excess loss is removed if its lengths are unusual, as
    those of incomplete translations, or if the filter `unrelated` finds it. For a pair that the model has not seen,
    `unrelated` decides alone.
    """

    name: ClassVar[str] = "ledger"
    _excess: NDArray[np.float32] = PrivateAttr()

    @classmethod
    def from_excess(cls, excess: NDArray[np.float32]) -> LedgerFilter:
        """Make the filter from the excess loss of each row of the unfiltered corpus; NaN: not seen. [N]."""
        made = cls()
        made._excess = excess
        return made

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Learn lexicons, and measure the spread of the length ratios."""
        find_unrelated = UnrelatedFilter().make_function(context)
        sample = context.sample()
        lengths = LengthModel.fit(sample)
        ratios = np.array([lengths.log_ratio(*pair) for pair in sample])
        middle = float(np.median(ratios))
        deviation = 1.4826 * float(np.median(np.abs(ratios - middle)))  # robust: outliers do not widen it

        def is_unusual(src: str, tgt: str) -> bool:
            return abs(lengths.log_ratio(src, tgt) - middle) > MAX_LENGTH_DEVIATIONS * deviation

        def apply(block: Block) -> dict[int, str]:
            unrelated = find_unrelated(block)
            reasons: dict[int, str] = {}
            for i, (src, tgt) in enumerate(block.pairs()):
                excess = float(self._excess[block.rows[i]])
                loss_reason = f"excess loss {excess:.1f}"
                if np.isnan(excess) and i in unrelated:
                    reasons[i] = unrelated[i]
                elif excess > HIGH_EXCESS:
                    reasons[i] = loss_reason
                elif excess > MODERATE_EXCESS and i in unrelated:
                    reasons[i] = f"{loss_reason}, {unrelated[i]}"
                elif excess > MODERATE_EXCESS and is_unusual(src, tgt):
                    reasons[i] = f"{loss_reason}, length ratio {lengths.ratio(src, tgt):.1f}"
            return reasons

        return apply
