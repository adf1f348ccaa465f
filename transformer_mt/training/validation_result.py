"""Result of a validation, as the trainer logs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ValidationResult(NamedTuple):
    """Scores of one validation, with text and figures for the log."""

    scores: dict[str, float]  # loss, nll, ppl, bleu, chrf, and the share of degenerate output
    samples: list[str]  # blocks of lines for the log
    markdown: dict[str, str]  # name -> text for TensorBoard
    warning: str | None  # about degenerate output
    draw: Callable[[], dict[str, Figure]]  # draws the figures by name
