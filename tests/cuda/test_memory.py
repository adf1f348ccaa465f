"""The memory of a CUDA device: limits, prediction, and the largest batch size that fits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda_helpers import CUDA
from helpers import assert_succeeded, read_metrics

from transformer_mt.data.batches import Batch, BatchStream
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine, is_out_of_memory, release_memory
from transformer_mt.training import memory_estimate as memory
from transformer_mt.training.packed_batches import pack
from transformer_mt.training.train_step import loss_and_gradients
from transformer_mt.training.training_config import LossConfig

MIB = 1 << 20


@contextmanager
def limited_memory(n_bytes: int) -> Generator[None]:
    """Leave a process `n_bytes` more than it has allocated."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + n_bytes) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.fixture
def make_stream(make_corpus, small_tokenizers) -> Callable[[int], BatchStream]:
    rng = np.random.default_rng(1)
    corpus = make_corpus(*([[5] * n for n in rng.integers(1, 40, 4000)] for _ in range(2)))
    return lambda tokens: BatchStream.plain(corpus, small_tokenizers, tokens, 1)


@pytest.fixture
def try_batch(make_model: Callable[..., Transformer], small_tokenizers) -> Callable[[Batch], object]:
    src, tgt = small_tokenizers.src, small_tokenizers.tgt
    sizes = {"vocab": (src.vocab_size, tgt.vocab_size), "pad": (src.pad_id, tgt.pad_id)}
    model, loss = make_model(d_model=32, **sizes).train().to(CUDA), LossConfig()
    machine = Machine(CUDA, "bf16", 1)

    def try_batch(batch: Batch) -> object:
        return loss_and_gradients(model, pack([batch], src.pad_id, tgt.pad_id), machine=machine, loss=loss)

    return try_batch


def test_exhausted_memory_is_recognised_and_released() -> None:
    with limited_memory(64 * MIB), pytest.raises(RuntimeError) as error:
        torch.empty(65 * MIB, dtype=torch.uint8, device=CUDA)
    assert is_out_of_memory(error.value)
    release_memory(CUDA)
    torch.empty(65 * MIB, dtype=torch.uint8, device=CUDA)


def test_prediction_is_the_peak_of_the_largest_batch(make_stream, try_batch) -> None:
    stream, state = make_stream(300), torch.get_rng_state()
    before = torch.cuda.memory_allocated()
    prediction = memory.predict_memory(stream, try_batch, CUDA, step_bytes=1000)
    assert torch.equal(torch.get_rng_state(), state)
    assert prediction.n_bytes is not None
    torch.cuda.reset_peak_memory_stats()
    for batch in memory.select_most_expensive_batches(stream):
        try_batch(batch)
    assert prediction.n_bytes == pytest.approx(torch.cuda.max_memory_allocated() + 1000, rel=0.05)
    assert prediction.n_bytes > before + 1000
    assert prediction.fits


@pytest.mark.slow
def test_training_chooses_its_batch_size_and_samples_subwords(run_copy: Path, tmt) -> None:
    options = ("batches.tokens=auto", "tokenizer.sampling=0.1", "data.modifiers.typos=0.2")
    done = tmt("train", "--config", "tiny.yaml", "device=cuda", "name=auto", *options)
    assert_succeeded(done)
    assert "batches.tokens: auto is" in done.stderr
    assert read_metrics(run_copy.parent / "auto")["train/loss"]
