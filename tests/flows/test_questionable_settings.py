"""Warnings before the first step about settings that will have no effect."""

from __future__ import annotations

import pytest

from transformer_mt.flows import configuration
from transformer_mt.flows.resolve import find_questionable_settings

QUICKSTART = configuration.find_preset("quickstart")


def find_keys(*overrides: str, n_batches: int = 200, longest: int = 100) -> list[str]:
    config = configuration.load(QUICKSTART, overrides)
    n_steps = config.train.last_step(n_batches / config.batches.accumulate)
    return [key for key, _ in find_questionable_settings(config, n_batches, longest, n_steps)]


@pytest.mark.parametrize(
    "overrides",
    [
        ("schedule.kind=inverse_sqrt", "schedule.warmup_steps=6000"),
        ("schedule.kind=cosine", "schedule.total_steps=9000"),
        ("schedule.kind=linear", "schedule.decay_steps=50"),
        ("batches.tokens=99",),
        ("batches.accumulate=201", "train.log_every=1"),
        ("validation.every=26 epochs",),
        ("validation.patience=11",),
        ("model.dropout.attention=0.95",),
        ("loss.label_smoothing=0.99",),
        ("model.max_positions=99",),
    ],
)
def test_a_setting_without_effect_is_named(overrides: tuple[str, ...]) -> None:
    limits = ("train.max_steps=5000", "validation.every=500", "schedule.warmup_steps=10", "model.positions=sinusoidal")
    key = overrides[-1].partition("=")[0] if overrides[0] != "batches.accumulate=201" else "batches.accumulate"
    assert key not in find_keys(*limits)
    assert key in find_keys(*limits, *overrides)


def test_the_quickstart_and_a_training_without_end_have_no_such_setting() -> None:
    assert find_keys() == []
    assert find_keys("train.max_steps=null", "schedule.kind=inverse_sqrt") == []
