"""Each configuration takes training steps on a CUDA device, in all precisions, without waits of the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import CUDA, list_waits
from helpers import random_batch

from transformer_mt.data.batches import Batch
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.resolve import can_pack
from transformer_mt.flows.train import make_train_step
from transformer_mt.model.transformer import Transformer, VocabularySize
from transformer_mt.system.device import Machine, configure_process
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.packed_batches import pack

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NAMES = [str(path.relative_to(CONFIGS)) for path in sorted(CONFIGS.rglob("*.yaml")) if path.name != "reference.yaml"]
SMALL = [
    "model.d_model=64",
    "model.d_ff=96",
    "model.n_heads=4",
    "model.encoder.n_layers=1",
    "model.decoder.n_layers=1",
]
N_IDS, PAD, N_PAIRS = 43, 40, 7
VARIANTS = {
    "muon": ["optimizer.kind=muon"],
    "weight decay": ["optimizer.kind=adamw", "optimizer.weight_decay=0.01", "optimizer.clip_norm=null"],
    "word dropout": ["model.dropout.word=0.1"],
    "attention dropout": ["model.dropout.attention=0.1", "model.dropout.activation=0.1"],
    "rotary": [
        "model.positions=rotary",
        "model.n_kv_heads=2",
        "model.norm=rmsnorm",
        "model.activation=swiglu",
    ],
    "learned positions": ["model.positions=learned"],
    "output bias": ["model.output_bias=true"],
    "untied": ["model.tie_embeddings=none"],
    "post-norm": ["model.norm_position=post"],
    "narrow heads": ["model.n_heads=16"],  # which no kernel can pack
}


def list_waits_of_second_step(config: Config, precision: Any, batches: list[Batch]) -> list[str]:
    """Take two training steps as the trainer does, and return the places where the second one waits."""
    machine, vocabulary = Machine(CUDA, precision, 1), VocabularySize(N_IDS, PAD)
    configure_process(machine)
    torch.manual_seed(1)
    model = Transformer(config.model, vocabulary, vocabulary).to(CUDA)
    step = make_train_step(config, machine, Ranks(), model, lambda batch: [batch])
    if step.loss_scale is not None:
        step.loss_scale.value.fill_(2.0**-5)  # some gradients overflow at the initial scale
    found: list[torch.Tensor] = []

    def take_step(number: int) -> None:
        found[:] = step(number, 1e-3, batches).values()

    take_step(1)
    waits = list_waits(lambda: take_step(2))
    assert all(number.device.type == "cuda" and number.isfinite() for number in found)
    return waits


def make_batches(config: Config, is_packed: bool) -> list[Batch]:
    torch.manual_seed(1)
    batches = [random_batch(N_PAIRS, 9, 12, N_IDS, PAD) for _ in range(2)]
    packed = [pack(batches, PAD, PAD)] if is_packed else batches
    return [batch.pin_memory() for batch in packed]


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    return configuration.load(CONFIGS / name, [*SMALL, *overrides])


def list_different_presets() -> list[str]:
    """Return the presets without those that differ from a former one only in sizes and data."""
    distinct: dict[str, str] = {}
    for name in NAMES:
        config = load(name)
        distinct.setdefault(repr((config.model, config.loss, config.optimizer)), name)
    return [*distinct.values()]


BASE = "papers/wmt14_en_de_base.yaml"
CASES = [
    *(pytest.param(name, [], id=name) for name in list_different_presets()),
    *(pytest.param(BASE, overrides, id=name) for name, overrides in VARIANTS.items()),
]


@pytest.mark.parametrize(("name", "overrides"), CASES)
def test_a_step_never_waits_for_the_device(name: str, overrides: list[str]) -> None:
    config = load(name, overrides)
    batches = make_batches(config, can_pack(config.model, CUDA))
    assert list_waits_of_second_step(config, "bf16", batches) == []


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("name", "overrides"), CASES)
def test_a_step_never_waits_in_any_precision_and_layout(
    name: str, overrides: list[str], is_packed: bool, precision: Any
) -> None:
    config = load(name, overrides)
    if is_packed and not can_pack(config.model, CUDA):
        pytest.skip("not packed")
    assert list_waits_of_second_step(config, precision, make_batches(config, is_packed)) == []
