"""Result of a validation, as the trainer logs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from transformer_mt.data.behaviour_tests import BehaviourResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_LISTED = 3  # failed behaviour tests in one line


class ValidationResult(NamedTuple):
    """Scores of one validation, with text and figures for the log."""

    scores: dict[str, float]  # loss, nll, ppl, bleu, chrf, and the share of degenerate output
    samples: list[str]  # blocks of lines for the log
    markdown: dict[str, str]  # name -> text for TensorBoard
    warning: str | None  # about degenerate output
    tests: Sequence[BehaviourResult]  # of the behaviour tests
    draw: Callable[[], dict[str, Figure]]  # draws the figures by name

    def describe_failed_tests(self) -> str | None:
        """Return a sentence about the behaviour tests that failed, or None."""
        failed = [f"{test.title}: {test.problem}" for test in self.tests if test.problem]
        if not failed:
            return None
        more = f"; and {len(failed) - N_LISTED} more" if len(failed) > N_LISTED else ""
        return f"{len(failed)} of {len(self.tests)} behaviour tests fail ({'; '.join(failed[:N_LISTED])}{more})"

    def find_rejection(
        self, initial_scores: dict[str, float], gate: dict[str, float], *, expect_all: bool
    ) -> str | None:
        """Return why a checkpoint with these scores cannot be the best one, or None."""
        for source, limit in gate.items():
            key = "bleu" if source == "all" else f"bleu/{source}"
            loss = initial_scores.get(key, math.nan) - self.scores[key]
            if loss > limit:
                return f"validation.gate: {source} lost {loss:.2f} BLEU, more than {limit:g}"
        return self.describe_failed_tests() if expect_all else None
