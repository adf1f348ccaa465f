"""The moving average against a plain loop, and its exchange with the raw weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transformer_mt.model.transformer import Transformer
from transformer_mt.training.optimizers import ExponentialMovingAverage

MakeModel = Callable[..., Transformer]
TAKEN, SKIPPED = torch.tensor(True), torch.tensor(False)


def perturb(model: Transformer) -> None:
    """Change every weight, like an optimizer step."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def weights(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def train(model: Transformer, ema: ExponentialMovingAverage, steps: range) -> None:
    for step in steps:
        perturb(model)
        ema.update(step, TAKEN)


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@pytest.mark.parametrize("decay", [0.5, 0.9999])
def test_average_equals_a_plain_loop_with_tied_weights(make_model: MakeModel, tie: str, decay: float) -> None:
    model = make_model(tie_embeddings=tie, rough=0.3)
    ema, average = ExponentialMovingAverage(model, decay), {k: v.double() for k, v in weights(model).items()}
    for step in range(1, 30):
        perturb(model)
        ema.update(step, TAKEN)
        keep = min(decay, (1 + step) / (10 + step))
        average = {name: keep * average[name] + (1 - keep) * weight.double() for name, weight in weights(model).items()}
    with ema.average_parameters():
        for name, weight in weights(model).items():
            torch.testing.assert_close(weight.double(), average[name], atol=1e-6, rtol=1e-5)
        assert (model.output.weight is model.decoder.embedding.tokens.weight) == (tie != "none")


def test_skipped_step_leaves_the_average_unchanged(make_model: MakeModel) -> None:
    model = make_model(rough=0.3)
    ema = ExponentialMovingAverage(model, 0.9)
    train(model, ema, range(1, 5))
    perturb(model)
    before = {name: average.clone() for name, average in ema.shadow.items()}
    ema.update(5, SKIPPED)
    assert_equal(ema.shadow, before)
    ema.update(5, TAKEN)
    assert not any(torch.equal(average, before[name]) for name, average in ema.shadow.items() if average.any())


def test_raw_weights_return_in_place_after_an_exception(make_model: MakeModel) -> None:
    model = make_model(rough=0.3)
    ema = ExponentialMovingAverage(model, 0.9)
    train(model, ema, range(1, 5))
    raw, addresses = weights(model), [parameter.data_ptr() for parameter in model.parameters()]
    with ema.average_parameters():
        average = weights(model)
    assert_equal(weights(model), raw)
    with pytest.raises(ZeroDivisionError), ema.average_parameters() as yielded:
        assert_equal(weights(model), average)
        assert_equal(yielded, raw)
        raise ZeroDivisionError
    assert_equal(weights(model), raw)
    assert addresses == [parameter.data_ptr() for parameter in model.parameters()]
