"""Comparison of checkpoints by their scores."""

from __future__ import annotations

import pytest

from transformer_mt.runs.records import is_better


@pytest.mark.parametrize(("metric", "better"), [("loss", 1.0), ("bleu", 3.0), ("chrf", 3.0), ("chrf++", 3.0)])
def test_is_better(metric: str, better: float) -> None:
    assert is_better(metric, better, than=2.0)
    assert not is_better(metric, 4.0 - better, than=2.0)
    assert not is_better(metric, 2.0, than=2.0)
    assert is_better(metric, 2.0, than=float("nan"))
    assert not is_better(metric, float("nan"), than=2.0)
