"""The self-test of `tmt doctor` learns with the real training step, and reports when it cannot."""

from __future__ import annotations

import math

import pytest
import torch

from transformer_mt.cli import doctor as self_test
from transformer_mt.cli.doctor import SelfTestResult, learn_to_reverse
from transformer_mt.system.device import resolve_machine


def test_a_batch_holds_the_digits_and_their_reverse() -> None:
    batch = self_test.make_batch(torch.Generator().manual_seed(0))
    assert torch.equal(batch.src[:, :-1].flip(1), batch.labels[:, :-1])
    assert torch.equal(batch.tgt_in[:, 1:], batch.labels[:, :-1])
    assert (batch.labels[:, -1] == self_test.EOS).all()


def test_training_stops_at_its_time_limit() -> None:
    result = learn_to_reverse(resolve_machine("cpu", "fp32", 1), time_limit=0.0)
    assert result.steps == 1
    assert not result.is_learnt


def test_a_loss_that_is_not_finite_counts_as_no_training() -> None:
    assert not SelfTestResult(1, math.nan, 0.0, 1.0).beats_guessing
    assert SelfTestResult(1, 2.0, 0.0, 1.0).beats_guessing


@pytest.mark.slow
def test_reversing_digits_is_learnt_in_less_than_300_steps() -> None:
    result = learn_to_reverse(resolve_machine("cpu", "fp32", 1), time_limit=120.0)
    assert result.is_learnt
    assert result.steps < 300
