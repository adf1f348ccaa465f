"""Replayed passes give the same weights as passes that are computed one operator at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from fake_cuda.graph import record
from helpers import plain_torch, random_batch

from transformer_mt.data.batches import Batch
from transformer_mt.model.cuda_graphs import Capture
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training import packed_batches
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.packed_batches import PackedBatch, pack
from transformer_mt.training.train_step import BatchLoss, StepMetrics, TrainStep
from transformer_mt.training.training_config import LossConfig, OptimizerConfig

PAD, VOCABULARY = 0, 23


def make_batch(n_pairs: int, length: int) -> PackedBatch:
    return pack([random_batch(n_pairs, length, length, VOCABULARY, PAD)], PAD, PAD).pad(PAD, PAD, None)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[Batch]]:
    """Return the micro-batches of three steps: four of one size and a single one of another."""
    monkeypatch.setattr(packed_batches, "MIN_TOKEN_STEP", 128)
    monkeypatch.setattr(packed_batches, "MIN_SENTENCES", 16)
    torch.manual_seed(1)
    shapes = [[(3, 7)], [(5, 9), (4, 6)], [(2, 70), (6, 6)]]
    return [[make_batch(*shape) for shape in step] for step in shapes]


@pytest.fixture
def train(make_model: Callable[..., Transformer], steps: list[list[Batch]]) -> Callable[..., Any]:
    def train(capture: Capture | None) -> tuple[list[StepMetrics], dict[str, torch.Tensor]]:
        stack = {"n_layers": 1}
        dropout = {"residual": 0.2, "word": 0.1}
        model = make_model(rough=0.1, encoder=stack, decoder=stack, n_heads=2, dropout=dropout).train()
        step = TrainStep(
            model,
            make_optimizers(OptimizerConfig(), model),
            loss=LossConfig(),
            clip_norm=1.0,
            seed=1,
            machine=Machine(torch.device("cpu"), "fp32", 1),
            ranks=Ranks(),
            split_batch=lambda batch: cast(PackedBatch, batch).halve(0, 0),
            capture=capture,
        )
        with plain_torch():
            metrics = [step(number, 1e-3, batches) for number, batches in enumerate(steps, start=1)]
        return metrics, model.state_dict()

    return train


def replay_other_random_numbers(run: Callable[[], None]) -> Callable[[], None]:
    replay = record(run)

    def seed_and_replay() -> None:
        torch.manual_seed(5)
        replay()

    return seed_and_replay


def fail(run: Callable[[], None]) -> Callable[[], None]:
    raise RuntimeError("operation not permitted when stream is capturing")


def run_out_of_memory(run: Callable[[], None]) -> Callable[[], None]:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("capture", [replay_other_random_numbers, fail, run_out_of_memory])
def test_training_continues_without_graphs_after_a_warning(
    capture: Capture, train: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.testing.assert_close(train(capture), train(None), rtol=0, atol=0)
    assert capsys.readouterr().err.count("CUDA graphs") == 1


def test_a_batch_that_does_not_fit_beside_the_graphs_is_split(
    train: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = BatchLoss.forward

    def fail_for_long_sentences(self: BatchLoss, batch: Batch | None) -> dict[str, torch.Tensor]:
        if cast(PackedBatch, batch).packings.tgt.longest > 64 and cast(PackedBatch, batch).is_padded:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch)

    monkeypatch.setattr(BatchLoss, "forward", fail_for_long_sentences)
    expected, found = (train(capture) for capture in (None, record))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert [int(metrics["n_splits"]) for metrics in found[0]] == [0, 0, 1]
    assert capsys.readouterr().err.count("without CUDA graphs, more slowly: out of memory") == 1
