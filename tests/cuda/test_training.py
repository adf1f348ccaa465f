"""Training on a CUDA device: as on the CPU, and without waits of the host."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import CPU, CUDA, IS_FAKE, compute, real_gpu_only, relative_difference
from helpers import assert_succeeded, random_batch, read_metrics

from transformer_mt.data.batches import Batch
from transformer_mt.model.attention import KeysValues, fused_attention
from transformer_mt.model.cuda_kernels import packed_attention
from transformer_mt.model.packing import PackedMask, Packing
from transformer_mt.model.positions import INITIAL_LENGTH
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.packed_batches import PackedBatch, pack
from transformer_mt.training.train_step import TrainStep
from transformer_mt.training.training_config import LossConfig, OptimizerConfig

PAD, VOCABULARY = 0, 23  # 23: the output projection needs unused columns
NO_DROPOUT = {"residual": 0.0, "embedding": 0.0}
VARIANTS: list[dict[str, Any]] = [
    {"positions": "sinusoidal", "norm_position": "post"},
    {"positions": "rotary", "n_kv_heads": 1, "norm": "rmsnorm", "activation": "swiglu"},
    {"positions": "learned", "tie_embeddings": "none"},
]


def make_batch(n_pairs: int, src_length: int, tgt_length: int) -> Batch:
    return random_batch(n_pairs, src_length, tgt_length, VOCABULARY, PAD)


def make_wide_model(make_model: Callable[..., Transformer], **settings: Any) -> Transformer:
    """Return a model with heads of width 16 in training mode."""
    return make_model(rough=0.1, d_model=32, n_heads=2, **settings).train()


@pytest.mark.parametrize(
    ("precision", "limit"),
    [("fp32", 1e-3), pytest.param("bf16", 1e-1, marks=pytest.mark.slow), ("fp16", 2e-2)],
    ids=["fp32", "bf16", "fp16"],
)
@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["positions"])
def test_loss_and_gradients_are_those_of_the_cpu(
    variant: dict[str, Any], is_packed: bool, precision: Any, limit: float, make_model
) -> None:
    model = make_wide_model(make_model, dropout=NO_DROPOUT, **variant)
    batch = make_batch(5, 9, 12)
    expected = compute(model, batch, CPU, "fp32")
    given = pack([batch], PAD, PAD) if is_packed else batch
    found = compute(copy.deepcopy(model).to(CUDA), given, CUDA, precision)
    assert relative_difference(found, expected) < limit


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_table_of_positions_grows_on_the_device(positions: str, make_model) -> None:
    model = make_wide_model(make_model, positions=positions, dropout=NO_DROPOUT)
    ids = torch.randint(1, VOCABULARY, (1, INITIAL_LENGTH + 3))
    expected = copy.deepcopy(model)(ids, ids[:, :2])
    found = model.to(CUDA)(ids.to(CUDA), ids[:, :2].to(CUDA))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)


@real_gpu_only
@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
def test_compiled_layers_compute_the_same(is_packed: bool, make_model) -> None:
    plain = make_wide_model(make_model, dropout=NO_DROPOUT).to(CUDA)
    compiled = copy.deepcopy(plain)
    compiled.compile_layers()
    for shape in ((4, 7, 9), (5, 12, 8), (3, 20, 31)):
        batch = make_batch(*shape)
        if is_packed:
            batch = pack([batch, make_batch(2, 5, 6)], PAD, PAD)
        expected = compute(plain, batch, CUDA, "bf16")
        assert relative_difference(compute(compiled, batch, CUDA, "bf16"), expected) < 2e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_packed_attention_equals_attention_with_the_dense_mask(dtype: torch.dtype, is_causal: bool) -> None:
    packing = Packing.from_lengths([3, 70, 1, 12]).map_tensors(lambda tensor: tensor.to(CUDA))
    mask = PackedMask(packing, packing, is_causal)
    queries, keys, values = (torch.randn(1, n_heads, 86, 16, device=CUDA, dtype=dtype) for n_heads in (4, 2, 2))
    expected = fused_attention(queries, KeysValues(keys, values), mask.to_dense())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(packed_attention(queries, keys, values, mask), expected, atol=tolerance, rtol=tolerance)


def measure_least_memory() -> int:
    """Return the least memory in use within a second, because the thread of the backward pass frees its part later."""
    measured: list[int] = []
    for _ in range(50):
        measured.append(torch.cuda.memory_allocated())
        time.sleep(0.02)
    return min(measured)


def make_train_step(model: Transformer, kind: Any = "adam", allocated: list[int] | None = None) -> TrainStep:
    """Return a train step. The memory that stays in use at each split of a batch is appended to `allocated`."""

    def split_batch(batch: Batch) -> list[Batch]:
        assert isinstance(batch, PackedBatch)
        if allocated is not None:
            allocated.append(measure_least_memory())
        return batch.halve(0, 0)

    return TrainStep(
        model,
        make_optimizers(OptimizerConfig(kind=kind), model),
        loss=LossConfig(),
        clip_norm=1.0,
        seed=1,
        machine=Machine(CUDA, "bf16", 1),
        ranks=Ranks(),
        split_batch=split_batch,
    )


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.7, 0.95], ids=["forward", "backward"])
def test_a_batch_without_memory_is_split(share: float, make_model) -> None:
    """The memory runs out in the forward or in the backward pass. The halves start without the graph of the whole."""
    sizes = {"n_layers": 2} if IS_FAKE else {"n_layers": 6}
    model = make_wide_model(make_model, dropout=NO_DROPOUT, d_ff=1024 if IS_FAKE else 4096, encoder=sizes).to(CUDA)
    batch = pack([make_batch(64, 32, 32) if IS_FAKE else make_batch(512, 64, 64)], PAD, PAD)
    whole = copy.deepcopy(model)
    gc.collect()  # what is freed during a step would change the memory that it needs
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    expected = make_train_step(whole)(1, 1e-3, [batch])
    needed = torch.cuda.max_memory_allocated() - before
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + share * needed) / total)
    before, allocated = torch.cuda.memory_allocated(), list[int]()
    try:
        metrics = make_train_step(model, allocated=allocated)(1, 1e-3, [batch])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert metrics["n_splits"] >= 1
    torch.testing.assert_close(metrics["nll"], expected["nll"], rtol=1e-3, atol=0)
    torch.testing.assert_close(metrics["grad_norm"], expected["grad_norm"], rtol=2e-2, atol=0)
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    assert allocated[0] - before < 0.3 * needed + gradients


@pytest.mark.slow
@real_gpu_only
def test_fp16_reaches_the_loss_of_bf16(tmp_path: Path, tmt) -> None:
    """200 steps of the quickstart. A GPU before Ampere emulates bf16."""
    final: dict[str, float] = {}
    for precision in ("bf16", "fp16"):
        settings = (f"name={precision}", f"runs_dir={tmp_path}", f"precision={precision}", "train.max_steps=200")
        assert_succeeded(tmt("train", *settings, "device=cuda", "validation.every=200 steps", "data.test={}"))
        final[precision] = float(read_metrics(tmp_path / precision)["valid/loss"][200])
    assert final["fp16"] == pytest.approx(final["bf16"], rel=0.01)
