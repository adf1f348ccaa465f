"""The number of kernels that the host launches. Small kernels take less time than their launches.

The counts are those of the fake device, which knows a few operators that start several kernels. When both were counted,
they were 3 % (padded), 17 % (packed) and 11 % (search) below those of an H100. Each budget is a few percent above the
present count, so that an unnecessary operator per layer exceeds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import CUDA, count_launches, fake_device_only
from helpers import random_batch

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.batches import Batch
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import Ensemble, prepare_for_inference
from transformer_mt.decoding.logits_processors import MinLength
from transformer_mt.decoding.search import BeamState, beam_candidates, beam_search
from transformer_mt.flows.trainer_setup import make_train_step
from transformer_mt.model import linear as chunked_logits
from transformer_mt.model.transformer import Transformer, VocabularySize
from transformer_mt.system.device import Machine, configure_process
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.packed_batches import pack
from transformer_mt.training.saved_state import ExponentialMovingAverage
from transformer_mt.training.training_config import OptimizerConfig

pytestmark = fake_device_only
BASE = Path(__file__).resolve().parents[2] / "configs" / "papers" / "wmt14_en_de_base.yaml"
SMALL = ["model.d_model=64", "model.d_ff=96", "model.n_heads=4"]
N_IDS, PAD = 103, 100
POSITIONS = 16


@pytest.fixture(scope="module")
def base() -> Config:
    """The base model of the paper with all its layers, but narrow."""
    config = configuration.load(BASE, SMALL)
    configure_process(Machine(CUDA, "bf16", 1))
    return config


def make_base_model(config: Config) -> Transformer:
    vocabulary = VocabularySize(N_IDS, PAD)
    return Transformer(config.model, vocabulary, vocabulary).to(CUDA)


def count_launches_of_step(config: Config, batches: list[Batch], n_chunks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the launches of the second step, with as many chunks of logits per batch as the real sizes need."""
    n_labels = max(batch.n_tgt for batch in batches)
    monkeypatch.setitem(chunked_logits.CHUNK_BYTES, "cuda", 2 * N_IDS * math.ceil(n_labels / n_chunks))
    step = make_train_step(config, Machine(CUDA, "bf16", 1), Ranks(), make_base_model(config), lambda batch: [batch])
    batches = [batch.pin_memory() for batch in batches]
    step(1, 1e-3, batches)
    return count_launches(lambda: step(2, 1e-3, batches))


def test_a_packed_step_of_the_base_model_has_few_launches(base: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four batches of 6,250 target tokens in one pass; the logits of 25,000 labels and 37,000 ids need 7 chunks."""
    batches = [random_batch(4, 9, 12 + i, N_IDS, PAD) for i in range(4)]
    assert count_launches_of_step(base, [pack(batches, PAD, PAD)], 7, monkeypatch) <= 1125


@pytest.mark.slow
def test_a_padded_step_of_the_base_model_has_few_launches(base: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four batches of 6,250 target tokens in four passes, with 2 chunks of logits each."""
    batches = [random_batch(4, 9, 12, N_IDS, PAD) for _ in range(4)]
    assert count_launches_of_step(base, batches, 2, monkeypatch) <= 4450


@pytest.mark.parametrize("n_beams", [1, 4])
def test_a_position_of_the_search_has_few_launches(base: Config, n_beams: int) -> None:
    model = prepare_for_inference(make_base_model(base), "bf16")
    src = torch.randint(PAD, (6, 20)).to(CUDA)
    with torch.inference_mode():
        limits = torch.full((len(src),), POSITIONS, device=CUDA)
        beams = BeamState(limits, n_beams, N_IDS - 2, N_IDS - 1, DecodingConfig(beam=n_beams).length_normalise)
        ensemble = Ensemble([model])
        cache, processors = ensemble.start(src), [MinLength(POSITIONS, N_IDS - 1)]
        launches = count_launches(lambda: beam_search(ensemble.step, cache, beams, beam_candidates, processors))
    assert launches <= 190 * POSITIONS


def make_deep_model(make_model: Callable[..., Transformer], n_layers: int) -> Transformer:
    model = make_model(encoder={"n_layers": n_layers}, decoder={"n_layers": n_layers}).to(CUDA)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


@pytest.mark.parametrize(("kind", "budget"), [("adam", 20), ("adamw", 25), ("muon", 150)])
def test_optimizers_launch_few_kernels_at_any_depth(make_model, kind: Any, budget: int) -> None:
    model = make_deep_model(make_model, 6)
    optimizers = make_optimizers(OptimizerConfig(kind=kind, weight_decay=0.1 if kind != "adam" else 0.0), model)
    for optimizer in optimizers:
        optimizer.grad_scale, optimizer.found_inf = torch.ones((), device=CUDA), torch.zeros((), device=CUDA)  # pyright: ignore
        optimizer.step()  # creates the state
    assert count_launches(lambda: [optimizer.step() for optimizer in optimizers]) <= budget


def test_the_average_launches_few_kernels_at_any_depth(make_model) -> None:
    ema = ExponentialMovingAverage(make_deep_model(make_model, 6), 0.9)
    is_taken = torch.tensor(True, device=CUDA)
    assert count_launches(lambda: ema.update(3, is_taken)) <= 15
