"""Training passes that are replayed as CUDA graphs: as without graphs, and with fewer launches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kill_drill
import pytest
import torch
from cuda_helpers import CUDA, IS_FAKE, count_launches, fake_device_only, list_waits, real_gpu_only, relative_difference
from helpers import assert_succeeded, random_batch

from transformer_mt.data.batches import Batch
from transformer_mt.model.cuda_graphs import Capture, CudaCapture
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine, precision_dtype
from transformer_mt.training import packed_batches
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.packed_batches import pack
from transformer_mt.training.train_step import TrainStep
from transformer_mt.training.training_config import LossConfig, OptimizerConfig

PAD, VOCABULARY = 0, 23
VARIANTS: list[dict[str, Any]] = [
    {"positions": "sinusoidal", "norm_position": "post", "output_bias": True},
    {"positions": "rotary", "n_kv_heads": 1, "norm": "rmsnorm", "activation": "swiglu"},
    {"positions": "learned", "tie_embeddings": "none"},
]
DROPOUT = {"residual": 0.1, "attention": 0.1, "word": 0.1}


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad to fewer tokens, because the fake device is slow."""
    monkeypatch.setattr(packed_batches, "MIN_TOKEN_STEP", 128)
    monkeypatch.setattr(packed_batches, "MIN_SENTENCES", 16)


@pytest.fixture(autouse=True)
def replays_only(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Fail if a training continues without graphs."""
    yield
    assert "without CUDA graphs" not in capfd.readouterr().err


def make_batches(*shapes: tuple[int, int]) -> list[Batch]:
    """Return padded batches in page-locked memory."""
    batches = [pack([random_batch(n, length, length, VOCABULARY, PAD)], PAD, PAD) for n, length in shapes]
    return [batch.pad(PAD, PAD, None).pin_memory() for batch in batches]


def make_step(model: Transformer, precision: Any, capture: Capture | None) -> TrainStep:
    return TrainStep(
        model,
        make_optimizers(OptimizerConfig(), model, precision_dtype(precision)),
        loss=LossConfig(),
        clip_norm=1.0,
        seed=1,
        machine=Machine(CUDA, precision, 1),
        ranks=Ranks(),
        split_batch=lambda batch: [batch],
        capture=capture,
    )


@pytest.fixture
def model(make_model: Callable[..., Transformer]) -> Transformer:
    return make_model(rough=0.1, d_model=32, n_heads=2, dropout=DROPOUT).train().to(CUDA)


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """On the fake device, the results are the same to the bit."""
    assert relative_difference(found, expected) <= (0 if IS_FAKE else 1e-3)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow), "fp16"])
@pytest.mark.parametrize(
    "variant",
    [pytest.param(each, id=each["positions"], marks=pytest.mark.slow if i else ()) for i, each in enumerate(VARIANTS)],
)
@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=[real_gpu_only, pytest.mark.slow])])
def test_replayed_steps_equal_plain_steps(
    is_compiled: bool, variant: dict[str, Any], precision: Any, make_model: Callable[..., Transformer]
) -> None:
    """A replay reads the random seed, the weights and the scale of the loss of its step."""
    plain = make_model(rough=0.1, d_model=32, n_heads=2, dropout=DROPOUT, **variant).train().to(CUDA)
    graphed = copy.deepcopy(plain)
    if is_compiled:
        plain.compile_layers()
        graphed.compile_layers()
    expected_step, step = make_step(plain, precision, None), make_step(graphed, precision, CudaCapture(CUDA))
    groups = [make_batches(*shapes) for shapes in ([(3, 7)], [(5, 9), (4, 6)], [(2, 70), (6, 6)], [(3, 66)])]
    for number, batches in enumerate(groups, start=1):
        expected, found = (each(number, 1e-3, batches) for each in (expected_step, step))
        assert_close([*found.values()], [*expected.values()])
        for each in (expected_step, step):
            if each.loss_scale is not None:
                each.loss_scale.value.mul_(2)
    assert_close([*graphed.parameters()], [*plain.parameters()])


def test_a_replayed_step_neither_waits_nor_launches_many_kernels(model: Transformer) -> None:
    step, batches = make_step(model, "bf16", CudaCapture(CUDA)), make_batches((3, 7), (5, 9), (4, 6))
    for number, batch in enumerate(batches, start=1):
        step(number, 1e-3, [batch])
    assert list_waits(lambda: step(4, 1e-3, batches)) == []


@fake_device_only
def test_a_replayed_step_launches_less_than_a_third_of_the_kernels(model: Transformer) -> None:
    batches = make_batches((3, 7), (5, 9), (4, 6))
    counts: list[int] = []
    for capture in (CudaCapture(CUDA), None):
        step = make_step(model, "bf16", capture)
        step(1, 1e-3, batches)
        counts.append(count_launches(lambda step=step: step(2, 1e-3, batches)))
    assert 3 * counts[0] < counts[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("compile=off", "train.cuda_graphs=true"),
        pytest.param(("compile=layers", "train.cuda_graphs=true"), marks=real_gpu_only),
        pytest.param(("compile=layers", "train.cuda_graphs=false"), marks=real_gpu_only),
    ],
    ids=", ".join,
)
def test_a_resumed_training_equals_an_uninterrupted_one(settings: tuple[str, ...], run_copy: Path, tmt) -> None:
    """In fp16, with packed batches. It is stopped at a step with a validation, where both runs save."""
    command = ("train", "--config", "tiny.yaml", "device=cuda", "precision=fp16", "batches.accumulate=2", *settings)
    sizes = ("model.d_model=32", "model.dropout.attention=0.1", "model.dropout.word=0.1")
    for name, steps in (("whole", 12), ("resumed", 8), ("resumed", 12)):
        done = tmt(*command, *sizes, f"name={name}", f"train.max_steps={steps}")
        assert_succeeded(done)
        assert "without CUDA graphs" not in done.stderr
    whole, resumed = (
        kill_drill.checkpoint(RunFolder(run_copy.parent / name).find_checkpoint("12")) for name in ("whole", "resumed")
    )
    assert list(kill_drill.differences(resumed, whole)) == []
