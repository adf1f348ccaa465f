"""The mean of the weights against a plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transformer_mt.model.transformer import Transformer
from transformer_mt.training.ema import MovingAverage

MakeModel = Callable[..., Transformer]
TAKEN, SKIPPED = torch.tensor(True), torch.tensor(False)


def disturb(model: Transformer) -> None:
    """What a step of an optimiser would do."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def weights(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def train(model: Transformer, ema: MovingAverage, steps: range) -> None:
    for step in steps:
        disturb(model)
        ema.update(step, TAKEN)


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@pytest.mark.parametrize("decay", [0.5, 0.9, 0.9999])
def test_the_mean_is_that_of_a_plain_loop(make_model: MakeModel, tie: str, decay: float) -> None:
    """Tied weights are averaged once a step, as the others are: twice would leave them with a faster mean."""
    model = make_model(tie_embeddings=tie, rough=0.3)
    ema, mean = MovingAverage(model, decay), {k: v.double() for k, v in weights(model).items()}
    for step in range(1, 30):
        disturb(model)
        ema.update(step, TAKEN)
        keep = min(decay, (1 + step) / (10 + step))
        mean = {name: keep * mean[name] + (1 - keep) * weight.double() for name, weight in weights(model).items()}
    with ema.swapped():
        for name, weight in weights(model).items():
            torch.testing.assert_close(weight.double(), mean[name], atol=1e-6, rtol=1e-5)
        assert (model.output.weight is model.decoder.embedding.tokens.weight) == (tie != "none")


def test_the_first_weights_do_not_linger(make_model: MakeModel) -> None:
    """After 30 steps their share is the product of (1 + s) / (10 + s): 4e-8, where 0.9999 alone keeps 99.7 %."""
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    ema = MovingAverage(model, 0.9999)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for step in range(1, 31):
        ema.update(step, TAKEN)
    with ema.swapped():
        share = math.prod((1 + step) / (10 + step) for step in range(1, 31))
        assert max(float(weight.max()) for weight in weights(model).values()) == pytest.approx(share, rel=1e-4)


def test_a_constant_is_its_own_mean(make_model: MakeModel) -> None:
    model = make_model(rough=0.3)
    ema, before = MovingAverage(model, 0.9), weights(model)
    for step in range(1, 20):
        ema.update(step, TAKEN)
    with ema.swapped():
        assert_equal(weights(model), before)


def test_a_step_that_was_skipped_does_not_move_it(make_model: MakeModel) -> None:
    model = make_model(rough=0.3)
    ema = MovingAverage(model, 0.9)
    train(model, ema, range(1, 5))
    disturb(model)  # so that there is something to take in
    before = {name: mean.clone() for name, mean in ema.others.items()}
    ema.update(5, SKIPPED)
    assert_equal(ema.others, before)
    ema.update(5, TAKEN)
    assert not any(torch.equal(mean, before[name]) for name, mean in ema.others.items() if mean.any())


def test_the_raw_weights_come_back_also_after_an_exception(make_model: MakeModel) -> None:
    model = make_model(rough=0.3)
    ema = MovingAverage(model, 0.9)
    train(model, ema, range(1, 5))
    raw, places = weights(model), [parameter.data_ptr() for parameter in model.parameters()]
    with ema.swapped():
        mean = weights(model)
    assert_equal(weights(model), raw)
    with pytest.raises(ZeroDivisionError), ema.swapped() as swapped_out:
        assert_equal(weights(model), mean)
        assert_equal(swapped_out, raw)
        raise ZeroDivisionError
    assert_equal(weights(model), raw)
    assert places == [parameter.data_ptr() for parameter in model.parameters()]


def test_the_model_computes_with_what_it_has(make_model: MakeModel) -> None:
    """Nothing that a model has worked out from the old weights survives the swap."""
    model = make_model(rough=0.3)
    ema = MovingAverage(model, 0.9)
    train(model, ema, range(1, 5))
    src, tgt = torch.randint(1, 23, (2, 5)), torch.randint(1, 23, (2, 4))
    before = model(src, tgt)
    with ema.swapped():
        inside, twin = model(src, tgt), make_model()
        twin.load_state_dict(model.state_dict())
        assert torch.equal(inside, twin(src, tgt))
        assert not torch.allclose(inside, before)
    assert torch.equal(model(src, tgt), before)


def test_what_a_checkpoint_holds_goes_on_to_the_bit(make_model: MakeModel) -> None:
    """The weights file has the mean, the state the raw weights: 4 steps, save, load, 4 steps are 8."""
    model = make_model(rough=0.3)
    ema = MovingAverage(model, 0.9)
    train(model, ema, range(1, 5))
    with ema.swapped() as swapped_out:
        saved, raw = weights(model), {name: weight.clone() for name, weight in swapped_out.items()}
    other = make_model()
    fresh = MovingAverage(other, 0.9)
    other.load_state_dict(saved, strict=False)
    fresh.load(raw)
    for one, its in ((model, ema), (other, fresh)):
        torch.manual_seed(5)
        train(one, its, range(5, 9))
    assert_equal(weights(other), weights(model))
    assert_equal(fresh.others, ema.others)
