"""Frozen parts of the model: they keep every bit, and need neither gradients nor optimizer state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Tmt, assert_succeeded
from pydantic import ValidationError
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.optimizers import ExponentialMovingAverage, make_optimizers
from transformer_mt.training.train_step import TrainStep
from transformer_mt.training.training_config import LossConfig, OptimizerConfig

MakeModel = Callable[..., Transformer]
FULL = {"positions": "learned", "output_bias": True, "embedding_norm": True}
NAMES = {  # the start of the names of the parameters of each part
    "embeddings": tuple(f"{stack}.embedding.{part}" for stack in ("encoder", "decoder") for part in ("tokens", "norm")),
    "positions": ("encoder.embedding.positions", "decoder.embedding.positions"),
    "encoder": ("encoder.layers", "encoder.norm"),
    "decoder": ("decoder.layers", "decoder.norm"),
    "output": ("output.weight",),
    "output_bias": ("output.bias",),
}


def make_batch() -> Batch:
    tgt = torch.randint(4, 23, (3, 5))
    return Batch(torch.randint(4, 23, (3, 6)), tgt, tgt.roll(-1, 1), n_src=18, n_tgt=15)


def make_step(model: Transformer, kind: Any, precision: Any = "fp32") -> TrainStep:
    return TrainStep(
        model.train(),
        make_optimizers(OptimizerConfig(kind=kind), model),
        loss=LossConfig(),
        clip_norm=1.0,
        seed=1,
        machine=Machine(torch.device("cpu"), precision, 1),
        ranks=Ranks(),
        split_batch=lambda batch: [batch],
    )


@pytest.mark.parametrize("kind", ["adam", "muon"])
@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@pytest.mark.parametrize(
    "parts",
    [("embeddings",), ("positions", "output_bias"), ("encoder", "embeddings"), ("decoder",), ("encoder", "decoder")],
)
def test_frozen_parts_keep_every_bit_and_have_no_state(
    make_model: MakeModel, parts: tuple[str, ...], tie: str, kind: str
) -> None:
    model = make_model(freeze=parts, tie_embeddings=tie, **FULL)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters(remove_duplicate=False)}
    prefixes = [prefix for part in parts for prefix in NAMES[part]]
    if "embeddings" in parts and tie != "none":  # the output shares the matrix
        prefixes.append("output.weight")
    frozen = {name for name in before if name.startswith(tuple(prefixes))}
    step, average = make_step(model, kind), ExponentialMovingAverage(model, 0.5)
    for number in (1, 2):
        step.compute_gradients(number, [make_batch()])
        parameters = dict(model.named_parameters(remove_duplicate=False))
        assert all((parameters[name].grad is None) == (name in frozen) for name in before)
        step.zero_grad()
        step(number, 0.01, [make_batch()])
        average.update(number, torch.tensor(True))
    for name, weight in model.named_parameters(remove_duplicate=False):
        assert torch.equal(weight, before[name]) == (name in frozen), name
        assert weight.requires_grad == (name not in frozen)
    trained = dict(model.named_parameters()).keys() - frozen
    ids = {id(weight): name for name, weight in model.named_parameters()}
    with_state = [ids[id(weight)] for optimizer in step.optimizers for weight in optimizer.state]
    assert sorted(with_state) == sorted(trained)
    assert average.shadow.keys() == trained


def gradients(model: Transformer, precision: Any, batch: Batch) -> dict[str, Tensor | None]:
    make_step(model, "adam", precision).compute_gradients(1, [batch])
    return {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "parts", [("embeddings",), ("embeddings", "encoder"), ("decoder",), ("output_bias", "encoder")]
)
def test_gradients_of_the_other_parts_are_those_of_the_whole_model(
    make_model: MakeModel, parts: tuple[str, ...], precision: str
) -> None:
    batch = make_batch()
    found = gradients(make_model(freeze=parts, rough=0.1, **FULL), precision, batch)
    wanted = gradients(make_model(rough=0.1, **FULL), precision, batch)
    for name, gradient in found.items():
        if gradient is not None:
            torch.testing.assert_close(gradient, wanted[name])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": ["positions"]}, "this model has no positions: choose from embeddings, encoder, decoder"),
        ({"freeze": ["output"]}, "this model has no output"),
        ({"freeze": ["output_bias"]}, "this model has no output_bias"),
        ({"freeze": ["decoder", "encoder", "embeddings"]}, "nothing is left to train"),
        ({"freeze": ["layers"]}, "Input should be 'embeddings'"),
    ],
)
def test_parts_that_do_not_exist_and_all_parts_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig.model_validate(settings)


def test_a_resumed_run_with_frozen_parts_equals_an_uninterrupted_one(in_tiny: Path, tmt: Tmt) -> None:
    """Also its averages. The optimizer state in the checkpoint has no frozen weight."""
    settings = ("precision=fp32", "model.freeze=[embeddings, encoder]", "optimizer.ema_decay=0.9", "validation.every=2")
    command = ("train", "--config", "tiny.yaml", *settings)
    assert_succeeded(tmt(*command, "name=frozen-whole", "train.max_steps=6"))
    for steps in (2, 6):
        done = tmt(*command, "name=frozen", f"train.max_steps={steps}")
        assert_succeeded(done)
    whole, resumed = (RunFolder(in_tiny / "runs" / name).find_checkpoint("6") for name in ("frozen-whole", "frozen"))
    state, other = (checkpoints.load_state(info) for info in (whole, resumed))
    assert (whole.path / "model.safetensors").read_bytes() == (resumed.path / "model.safetensors").read_bytes()
    (adam,), (other_adam,) = state["optimizers"], other["optimizers"]
    assert adam["state"].keys() == other_adam["state"].keys()
    for index, moments in adam["state"].items():
        assert all(torch.equal(value, other_adam["state"][index][key]) for key, value in moments.items())
    names = state["raw_weights"].keys()
    assert names and all(name.startswith("decoder.") and ".embedding." not in name for name in names)
    assert "frozen)" in tmt(*command, "name=frozen-log", "train.max_steps=1").stderr
