"""Sums over the training steps between two log entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from transformer_mt.training.train_step import StepMetrics


@dataclass
class LogWindow:
    """Sums over the steps since the last log entry."""

    loss: float = 0.0
    nll: float = 0.0
    consistency: float = 0.0
    n_src: float = 0.0
    n_tgt: float = 0.0
    n_padded: float = 0.0
    grad_norm: float = 0.0  # of the last step
    seconds: float = 0.0
    seconds_waiting: float = 0.0  # for batches; part of `seconds`
    source_nll: dict[str, float] = field(default_factory=dict[str, float])  # by name of the source of a mixture
    source_n_tgt: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def from_checkpoint(cls, saved: dict[str, Any]) -> LogWindow:
        """Restore the sums from a checkpoint. Raises `ValueError` or `TypeError` for anything else."""
        window = TypeAdapter(LogWindow).validate_python(asdict(cls(**saved)))
        if window.source_nll.keys() != window.source_n_tgt.keys():
            raise ValueError("the sums of the sources are incomplete")
        return window

    def add(self, metrics: StepMetrics[float], source_names: Sequence[str]) -> None:
        """Add the sums of one step."""
        for name, nll, n_tgt in zip(source_names, metrics.source_nll, metrics.source_n_tgt, strict=True):
            self.source_nll[name] = self.source_nll.get(name, 0.0) + nll
            self.source_n_tgt[name] = self.source_n_tgt.get(name, 0.0) + n_tgt
        self.loss += metrics.loss
        self.nll += metrics.nll
        self.consistency += metrics.consistency
        self.n_src += metrics.n_src
        self.n_tgt += metrics.n_tgt
        self.n_padded += metrics.n_padded

    def source_scalars(self) -> dict[str, float]:
        """Return the loss of each source of a mixture, and its share of the target tokens."""
        scalars: dict[str, float] = {}
        for name, n_tgt in self.source_n_tgt.items():
            scalars[f"train/nll/{name}"] = self.source_nll[name] / (n_tgt or math.nan)
            scalars[f"train/share/{name}"] = n_tgt / (self.n_tgt or math.nan)
        return scalars
