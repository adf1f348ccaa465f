"""Kernels that the host launches. Small kernels take less time than their launches, so fewer are faster.

The counts are those of the fake device. They are compared with each other, never with fixed numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import CUDA, count_launches, fake_device_only
from helpers import random_batch

from transformer_mt.data.batches import Batch
from transformer_mt.flows import configuration
from transformer_mt.flows.train import make_train_step
from transformer_mt.model.transformer import Transformer, VocabularySize
from transformer_mt.system.device import Machine, configure_process
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.packed_batches import pack
from transformer_mt.training.training_config import OptimizerConfig

pytestmark = fake_device_only
BASE = Path(__file__).resolve().parents[2] / "configs" / "papers" / "wmt14_en_de_base.yaml"
SMALL = ["model.d_model=64", "model.d_ff=96", "model.n_heads=4", "model.encoder.n_layers=2", "model.decoder.n_layers=2"]
N_IDS, PAD = 103, 100


def count_launches_of_step(batches: list[Batch]) -> int:
    """Count the launches of the second step of a small model."""
    config, machine, vocabulary = configuration.load(BASE, SMALL), Machine(CUDA, "bf16", 1), VocabularySize(N_IDS, PAD)
    configure_process(machine)
    model = Transformer(config.model, vocabulary, vocabulary).to(CUDA)
    step = make_train_step(config, machine, Ranks(), model, lambda batch: [batch])
    batches = [batch.pin_memory() for batch in batches]
    step(1, 1e-3, batches)
    return count_launches(lambda: step(2, 1e-3, batches))


def test_a_packed_step_launches_less_than_half_of_the_kernels_of_four_passes() -> None:
    batches = [random_batch(4, 9, 12 + i, N_IDS, PAD) for i in range(4)]
    assert 2 * count_launches_of_step([pack(batches, PAD, PAD)]) < count_launches_of_step(batches)


def make_deep_model(make_model: Callable[..., Transformer], n_layers: int) -> Transformer:
    model = make_model(encoder={"n_layers": n_layers}, decoder={"n_layers": n_layers}).to(CUDA)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_optimizers_launch_far_fewer_kernels_than_there_are_parameters(make_model, kind: Any) -> None:
    model = make_deep_model(make_model, 6)
    optimizers = make_optimizers(OptimizerConfig(kind=kind, weight_decay=0.1 if kind != "adam" else 0.0), model)
    for optimizer in optimizers:
        optimizer.grad_scale, optimizer.found_inf = torch.ones((), device=CUDA), torch.zeros((), device=CUDA)  # pyright: ignore
        optimizer.step()  # creates the state
    n_parameters = len([*model.parameters()])
    assert count_launches(lambda: [optimizer.step() for optimizer in optimizers]) < n_parameters
