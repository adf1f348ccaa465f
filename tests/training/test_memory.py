"""Prediction of peak memory, its lack of side effects, and `batches.tokens: auto`."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import assert_succeeded

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.model.transformer import Transformer
from transformer_mt.training import memory_estimate as memory
from transformer_mt.training.loss import compute_losses
from transformer_mt.training.training_config import LossConfig

CPU = torch.device("cpu")
MakeStream = Callable[[int], BatchStream]


@pytest.fixture(scope="module")
def make_stream(make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair) -> MakeStream:
    rng = np.random.default_rng(1)
    sides = ([[5] * n for n in rng.integers(1, 40, 600)] for _ in range(2))
    corpus = make_corpus(*sides)
    return lambda tokens: BatchStream.plain(corpus, small_tokenizers, tokens, 1)


class Device:
    """A device on which batches of more than `limit` padded tokens run out of memory."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, batch: Batch) -> None:
        if cells(batch) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")


def cells(batch: Batch) -> int:
    """Count tokens, with padding."""
    return batch.src.numel() + batch.labels.numel()


def attention_scores(batch: Batch) -> int:
    """Count attention scores per head: of encoder, decoder and cross-attention."""
    s, t = batch.src.size(1), batch.labels.size(1)
    return len(batch.src) * (s * s + s * t + t * t)


def most_cells(stream: BatchStream) -> int:
    batches, _ = stream.take(StreamPosition(3), len(stream.plan))
    return max(map(cells, batches))


# --- prediction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [50, 300, 2000])
def test_most_expensive_batches_cost_most_in_every_epoch(make_stream: MakeStream, tokens: int) -> None:
    stream = make_stream(tokens)
    batches = memory.select_most_expensive_batches(stream)
    all_batches, _ = stream.take(StreamPosition(5), 2 * len(stream.plan))
    for cost in (cells, attention_scores):
        assert max(map(cost, batches)) == max(map(cost, all_batches))


def test_weights_gradients_and_optimizer_state_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam keeps two values per trained weight."""
    free = memory.read_free_memory(CPU)
    assert 0 < free <= memory.read_memory_limit(CPU)
    monkeypatch.setattr(memory, "read_free_memory", lambda _: 4000)
    memory.check_weights_fit(1000, 1000, CPU)
    memory.check_weights_fit(3250, 250, CPU)
    for n_bytes, n_trained in ((1001, 1001), (3251, 250)):
        with pytest.raises(UserError, match=r"(?s)model: needs .* are free on cpu.*lower model.d_model"):
            memory.check_weights_fit(n_bytes, n_trained, CPU)


def test_prediction_measures_memory_that_is_freed_again(make_stream: MakeStream) -> None:
    stream = make_stream(300)
    (largest, *_) = memory.select_most_expensive_batches(stream)

    def allocate(_: Batch) -> None:
        torch.ones(1_000_000_000 // 4)

    gc.collect()
    before = memory.measure_peak([largest], lambda _: None, CPU)
    after = memory.measure_peak([largest], allocate, CPU)
    assert before is not None
    assert after is not None
    assert 800e6 < after - before < 1200e6  # other memory of the process may be freed in between
    message = memory.predict_memory(stream, lambda _: None, CPU).describe()
    shape = f"{len(largest.src)} x {largest.src.size(1)} x {largest.labels.size(1)}"
    assert f"(pairs x source x target: {shape}) takes " in message


def test_prediction_advises_if_the_largest_batch_does_not_fit(make_stream: MakeStream) -> None:
    stream = make_stream(300)
    for device, step_bytes in ((Device(most_cells(stream) - 1), 0), (Device(10**9), memory.read_memory_limit(CPU))):
        message = memory.predict_memory(stream, device, CPU, step_bytes).describe()
        assert re.search(r"does not fit into .* split.* lower batches\.tokens or data\.max_length", message)
    assert memory.predict_memory(stream, Device(most_cells(stream)), CPU).fits


# --- no side effects --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs_out", [False, True])
def test_trials_change_no_weight_and_no_random_number(
    runs_out: bool, make_stream: MakeStream, small_tokenizers: TokenizerPair, make_model: Callable[..., Transformer]
) -> None:
    def train(with_trial: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        src, tgt = small_tokenizers.src, small_tokenizers.tgt
        model = make_model(vocab=(src.vocab_size, tgt.vocab_size), pad=(src.pad_id, tgt.pad_id)).train()
        rng_state = torch.get_rng_state()

        def try_batch(batch: Batch) -> None:
            torch.autograd.grad(compute_losses(model, batch, LossConfig())["loss"], list(model.parameters()))
            assert not torch.equal(torch.get_rng_state(), rng_state), "dropout draws random numbers"
            if runs_out:
                raise torch.OutOfMemoryError

        if with_trial:
            assert memory.predict_memory(make_stream(300), try_batch, CPU).fits != runs_out
        assert torch.equal(torch.get_rng_state(), rng_state)
        assert all(parameter.grad is None for parameter in model.parameters())
        optimizer = torch.optim.Adam(model.parameters())
        for batch in make_stream(300).take(StreamPosition(), 3)[0]:
            optimizer.zero_grad()
            compute_losses(model, batch, LossConfig())["loss"].backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    assert all(map(torch.equal, train(with_trial=True), train(with_trial=False)))


# --- batches.tokens: auto ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [64, 127, 128, 999, 1000])
def test_search_stays_within_its_bounds(limit: int) -> None:
    tried: list[int] = []

    def fits(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= limit

    found = memory.find_largest_that_fits(fits, 64, 1000)
    assert limit * 15 / 16 - 1 <= found <= limit
    assert max(tried) <= 1000
    assert len(tried) < 15


def test_auto_fails_if_the_smallest_batch_does_not_fit(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "measure_peak", lambda *_: None)
    monkeypatch.setattr(memory, "read_memory_limit", lambda _: 1000)
    with pytest.raises(UserError, match="not even batches of 256 tokens fit"):
        memory.choose_batch_tokens(make_stream, lambda _: None, torch.device("cuda"))


def test_auto_fills_nine_tenths_of_a_gpu(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizer state counts, and an epoch keeps at least 50 batches."""

    def measure_peak(batches: list[Batch], *_: object) -> int:
        return max(map(cells, batches))

    def choose(**settings: int) -> int:
        return memory.choose_batch_tokens(make_stream, lambda _: None, torch.device("cuda"), **settings)

    monkeypatch.setattr(memory, "measure_peak", measure_peak)
    monkeypatch.setattr(memory, "MIN_TOKENS", 16)
    monkeypatch.setattr(memory, "read_memory_limit", lambda _: 1000)
    tokens = choose(step_bytes=500)
    assert most_cells(make_stream(tokens)) <= 400 < most_cells(make_stream(tokens + tokens // 16 + 2))
    monkeypatch.setattr(memory, "read_memory_limit", lambda _: 10**9)
    assert 50 <= len(make_stream(choose()).plan) <= 75


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_auto_is_4096_without_a_cuda_gpu(device: str, make_stream: MakeStream) -> None:
    def try_batch(_: Batch) -> None:
        raise AssertionError("no batch is tried")

    assert memory.choose_batch_tokens(make_stream, try_batch, torch.device(device)) == 4096


def test_resumed_run_keeps_the_resolved_batch_size(run_copy: Path, tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(steps: int) -> int | str:
        command = ("train", "--config", "tiny.yaml", "name=auto", "batches.tokens=auto", "data.test={}")
        assert_succeeded(tmt(*command, f"train.max_steps={steps}"))
        return configuration.load(run_copy.parent / "auto" / "config.yaml").batches.tokens

    monkeypatch.setattr(memory, "CPU_TOKENS", 320)
    assert resolve(1) == 320
    monkeypatch.setattr(memory, "CPU_TOKENS", 999)  # would be used if `auto` were resolved again
    assert resolve(2) == 320
