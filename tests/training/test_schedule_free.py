"""The package's optimiser, as the trainer drives it, against the paper's three sequences."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import kill_drill
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from transformer_mt.config import root as configuration
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline import train as pipeline
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training import optimizers as optim
from transformer_mt.training.optimizers import OptimizerConfig, make_average, make_optimizers
from transformer_mt.training.schedule_free import ScheduleFree, ScheduleFreeAverage

MakeModel = Callable[..., Transformer]
RATES = (0.01, 0.03, 0.03, 0.02)  # it warms up; half of it, as behind a return to a checkpoint


class Sequences:
    """Defazio et al. 2024, algorithm 1 and section 4.4, of one parameter, in double precision."""

    def __init__(self, config: OptimizerConfig, weight: Tensor, decay: float) -> None:
        self.config, self.decay, self.step, self.highest, self.weights = config, decay, 0, 0.0, 0.0
        self.x = self.z = weight.detach().double().clone()
        self.square = torch.zeros_like(self.x)

    @property
    def y(self) -> Tensor:
        share = self.config.betas[0]
        return (1 - share) * self.z + share * self.x

    def update(self, gradient: Tensor, rate: float) -> None:
        (_, beta2), y, gradient = self.config.betas, self.y, gradient.double()
        self.step += 1
        self.square = beta2 * self.square + (1 - beta2) * gradient**2
        length = (self.square / (1 - beta2**self.step)).sqrt() + self.config.eps
        self.z = self.z - rate * (gradient / length + self.decay * y)
        self.highest = max(self.highest, rate)
        self.weights += self.highest**2
        share = self.highest**2 / self.weights
        self.x = (1 - share) * self.x + share * self.z


def make_parts(
    model: Transformer, decay: float = 0.1
) -> tuple[ScheduleFree, ScheduleFreeAverage, dict[str, Sequences]]:
    config = OptimizerConfig(kind="schedule_free", weight_decay=decay, eps=1e-6)
    optimizers = make_optimizers(config, model)
    average = make_average(config, model, optimizers)
    (optimizer,) = optimizers
    assert isinstance(optimizer, ScheduleFree) and isinstance(average, ScheduleFreeAverage)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    oracles = {name: Sequences(config, p, decays[id(p)]) for name, p in model.named_parameters()}
    return optimizer, average, oracles


def step(model: Transformer, optimizer: ScheduleFree, rate: float, scale: float = 1.0, bad: bool = False) -> None:
    """As `Updater.move` does it."""
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(float(bad))
    optimizer.step()


def weights(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert all(torch.equal(left[name], right[name]) for name in left.keys() | right.keys())


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_a_step_is_its_formula(make_model: MakeModel, decay: float, scale: float) -> None:
    model = make_model(rough=0.3)
    optimizer, average, oracles = make_parts(model, decay)
    for rate in RATES:
        state = torch.get_rng_state()
        gradients = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
        torch.set_rng_state(state)
        step(model, optimizer, rate, scale)
        for name, oracle in oracles.items():
            oracle.update(gradients[name] / scale, rate)
            torch.testing.assert_close(weights(model)[name].double(), oracle.y, atol=1e-5, rtol=1e-4)
        with average.swapped():
            for name, oracle in oracles.items():
                torch.testing.assert_close(weights(model)[name].double(), oracle.x, atol=1e-5, rtol=1e-4)


def test_a_step_that_is_not_taken_changes_nothing(make_model: MakeModel) -> None:
    """And the one after it is the next one: as if it had not been."""
    model, other = make_model(rough=0.3), make_model(rough=0.3)
    other.load_state_dict(model.state_dict())
    for each, bad in ((model, False), (other, True)):
        optimizer, _, _ = make_parts(each)
        torch.manual_seed(1)
        step(each, optimizer, 0.01)
        state, before = torch.get_rng_state(), weights(each)
        if bad:
            step(each, optimizer, 0.5, bad=True)
            assert_equal(weights(each), before)
        torch.set_rng_state(state)
        step(each, optimizer, 0.02)
    assert_equal(weights(model), weights(other))


def test_the_mean_goes_and_comes_to_the_bit(make_model: MakeModel) -> None:
    """Also behind an exception, and before the first step."""
    model = make_model(rough=0.3)
    optimizer, average, _ = make_parts(model)
    before, places = weights(model), [parameter.data_ptr() for parameter in model.parameters()]
    with average.swapped():
        assert_equal(weights(model), before)
    for rate in RATES:
        step(model, optimizer, rate)
    raw = weights(model)
    with pytest.raises(ZeroDivisionError), average.swapped() as swapped_out:
        assert_equal(swapped_out, raw)
        mean = weights(model)
        assert not any(torch.equal(mean[name], weight) for name, weight in raw.items())
        raise ZeroDivisionError
    assert_equal(weights(model), raw)
    assert places == [parameter.data_ptr() for parameter in model.parameters()]
    step(model, optimizer, 0.01)  # it trains


def test_a_run_in_two_goes_is_a_run_in_one(tmp_path: Path) -> None:
    """Bit for bit, though the one in two goes makes the mean once more, to validate and save it."""

    def train(name: str, max_steps: int) -> RunFolder:
        config = configuration.load(
            configuration.builtin_path("quickstart"),
            [
                *(f"runs_dir={tmp_path / name}", f"data.cache_dir={tmp_path / 'cache'}", "threads=1", "precision=fp32"),
                *("optimizer={kind: schedule_free, weight_decay: 0.1, ema_decay: null}", "batches.tokens=256"),
                *("schedule={kind: constant, warmup_steps: 4, total_steps: null}", f"train.max_steps={max_steps}"),
                *("model={d_model: 16, d_ff: 16, n_heads: 2, encoder: {n_layers: 1}, decoder: {n_layers: 1}}",),
                *("train.save_every=3", "validation.every=5", "validation.patience=null", "keep.last=9"),
                "decoding={max_length_factor: 0, max_length_offset: 3}",
            ],
        )
        pipeline.train(config)
        return RunFolder(tmp_path / name / str(config.name))

    whole = train("whole", 10)
    train("parts", 4)
    parts = train("parts", 10)
    left, right = (kill_drill.checkpoint(run.checkpoint("last")) for run in (parts, whole))
    for each in (left, right):
        del each["state"]["progress"]  # which knows of the validation at step 4
    assert list(kill_drill.differences(left, right)) == []


def test_what_it_does_without() -> None:
    with pytest.raises(ValidationError, match="a mean of the weights itself: set null"):
        OptimizerConfig(kind="schedule_free", ema_decay=0.9)
    with pytest.raises(ValidationError, match="set it above 0"):
        OptimizerConfig(kind="schedule_free", betas=(0.0, 0.9))
    with pytest.raises(UserError, match=r"schedule\.kind: optimizer\.kind schedule_free needs no curve: set constant"):
        configuration.load(configuration.builtin_path("quickstart"), ["optimizer.kind=schedule_free"])


def test_without_its_package_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is made."""
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    overrides = [f"runs_dir={tmp_path}", "optimizer.kind=schedule_free", "schedule.kind=constant"]
    with pytest.raises(UserError, match="needs one more package: pip install schedulefree"):
        pipeline.train(configuration.load(configuration.builtin_path("quickstart"), overrides))
    assert not [*tmp_path.glob("*/config.yaml")]


def test_a_folder_of_its_name_is_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes one for a package without files where the working folder is on its path, as with `python -m`."""
    monkeypatch.setattr(optim, "find_spec", lambda name: ModuleSpec(name, None))
    with pytest.raises(UserError, match="pip install schedulefree"):
        OptimizerConfig(kind="schedule_free").check_packages()
    OptimizerConfig(kind="adam").check_packages()
