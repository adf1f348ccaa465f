"""Trials before the first step: they find the worst batch, say what it takes, and leave no trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline import train as pipeline
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training import memory
from transformer_mt.training.cross_entropy import batch_loss

CPU = torch.device("cpu")
MakeStream = Callable[[int], BatchStream]


@pytest.fixture(scope="module")
def make_stream(make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair) -> MakeStream:
    dice = np.random.default_rng(1)
    sides = ([[5] * n for n in dice.integers(1, 40, 600)] for _ in range(2))
    corpus = make_corpus(*sides)
    return lambda tokens: BatchStream(corpus, small_tokenizers, tokens, 1)


class Device:
    """A device on which batches of more than `limit` padded tokens run out of memory."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, batch: Batch) -> None:
        if cells(batch) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")


def cells(batch: Batch) -> int:
    """Padded tokens."""
    return batch.src.numel() + batch.labels.numel()


def attended(batch: Batch) -> int:
    """Scores of one head: of the encoder, of the decoder, and between them."""
    s, t = batch.src.size(1), batch.labels.size(1)
    return len(batch.src) * (s * s + s * t + t * t)


def most_cells(stream: BatchStream) -> int:
    batches, _ = stream.take(StreamPosition(3), len(stream))
    return max(map(cells, batches))


def fits(make_stream: MakeStream, device: Device) -> Callable[[int], bool]:
    return lambda tokens: memory.measure(memory.heaviest(make_stream(tokens)), device, CPU) is not None


# --- the worst batch --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [50, 300, 2000])
def test_no_batch_of_any_epoch_is_heavier(make_stream: MakeStream, tokens: int) -> None:
    stream = make_stream(tokens)
    worst = memory.heaviest(stream)
    batches, _ = stream.take(StreamPosition(5), 2 * len(stream))
    for cost in (cells, attended):
        assert max(map(cost, worst)) == max(map(cost, batches))


def test_what_a_step_takes_is_told(make_stream: MakeStream) -> None:
    """Memory that is touched and given back is found in the peak, and what a step needs besides is added."""
    stream = make_stream(300)
    (worst, *_) = memory.heaviest(stream)

    def hungry(_: Batch) -> None:
        torch.ones(400_000_000 // 4)

    before = memory.measure([worst], lambda _: None, CPU)
    after = memory.measure([worst], hungry, CPU)
    assert before is not None
    assert after is not None
    assert 350e6 < after - before < 600e6
    said = memory.predict(stream, lambda _: None, CPU, besides=0)
    shape = f"{len(worst.src)} x {worst.src.size(1)} x {worst.labels.size(1)}"
    assert f"(pairs x source x target: {shape}) takes " in said


def test_what_does_not_fit_is_told_with_a_remedy(make_stream: MakeStream) -> None:
    stream = make_stream(300)
    for device, besides in ((Device(most_cells(stream) - 1), 0), (Device(10**9), memory.capacity(CPU))):
        said = memory.predict(stream, device, CPU, besides)
        assert re.search(r"does not fit into .* split.* lower batches\.tokens or data\.max_length", said)
    assert "does not fit" not in memory.predict(stream, Device(most_cells(stream)), CPU)


def test_another_error_is_not_taken_for_a_lack_of_memory(make_stream: MakeStream) -> None:
    def broken(_: Batch) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        memory.predict(make_stream(300), broken, CPU)


# --- no trace ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trial", ["predict", "rate", "out of memory"])
def test_a_trial_leaves_no_trace(trial: str, make_stream: MakeStream, small_tokenizers: TokenizerPair) -> None:
    """Weights, gradients and what is drawn afterwards are those of a run without trials, with dropout on."""

    def run(tried: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = make_model(small_tokenizers)
        drawn = torch.get_rng_state()

        def try_batch(batch: Batch) -> None:
            torch.autograd.grad(batch_loss(model, batch, 0.1).total, list(model.parameters()))
            assert not torch.equal(torch.get_rng_state(), drawn), "dropout draws"
            if trial == "out of memory":
                raise torch.OutOfMemoryError

        if tried and trial == "rate":
            memory.rate(make_stream(300), try_batch)
        elif tried and trial == "predict":
            memory.predict(make_stream(300), try_batch, CPU)
        elif tried:
            assert memory.measure(memory.heaviest(make_stream(300)), try_batch, CPU) is None
        assert torch.equal(torch.get_rng_state(), drawn)
        assert all(parameter.grad is None for parameter in model.parameters())
        optimizer = torch.optim.Adam(model.parameters())
        for batch in make_stream(300).take(StreamPosition(), 3)[0]:
            optimizer.zero_grad()
            batch_loss(model, batch, 0.1).total.backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    assert all(map(torch.equal, run(tried=True), run(tried=False)))


def make_model(tokenizers: TokenizerPair) -> Transformer:
    from transformer_mt.model.config import ModelConfig

    one = {"n_layers": 1}
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 32, "n_heads": 2, "encoder": one, "decoder": one}
    return Transformer(ModelConfig.model_validate(sizes), tokenizers.src, tokenizers.tgt).train()


# --- batches.tokens: auto ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [700, 1500, 4001, 16_000])
def test_the_largest_budget_that_fits(make_stream: MakeStream, limit: int) -> None:
    """With it no batch runs out; with a sixteenth more, one does."""
    fit = fits(make_stream, Device(limit))
    found = memory.largest(fit, 64, 2**18)
    assert most_cells(make_stream(found)) <= limit
    assert most_cells(make_stream(found + found // 16 + 64)) > limit


@pytest.mark.parametrize("limit", [64, 65, 100, 127, 128, 129, 999, 1000])
def test_the_search_stays_within_its_bounds(limit: int) -> None:
    tried: list[int] = []

    def fit(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= limit

    found = memory.largest(fit, 64, 1000)
    assert limit * 15 / 16 - 1 <= found <= limit
    assert max(tried) <= 1000
    assert len(tried) < 15


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_fits(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(memory, "measure", lambda *_: None)
    with pytest.raises(UserError, match="not even batches of 256 tokens fit"):
        memory.choose_budget(make_stream, lambda _: None, torch.device(device))


def test_a_gpu_is_filled_to_nine_tenths(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting what a step needs besides; and an epoch keeps its batches."""

    def measure(batches: list[Batch], *_: object) -> int:
        return max(map(cells, batches))

    monkeypatch.setattr(memory, "measure", measure)
    monkeypatch.setattr(memory, "LEAST", 16)
    monkeypatch.setattr(memory, "capacity", lambda _: 1000)
    found, _ = memory.choose_budget(make_stream, lambda _: None, torch.device("cuda"), besides=500)
    assert most_cells(make_stream(found)) <= 400 < most_cells(make_stream(found + found // 16 + 2))
    monkeypatch.setattr(memory, "capacity", lambda _: 10**9)
    found, _ = memory.choose_budget(make_stream, lambda _: None, torch.device("cuda"))
    assert 50 <= len(make_stream(found)) <= 75


RATES = {
    "the smallest of nearly equals": ({1: 50.0, 2: 80.0, 4: 96.0, 8: 100.0, 16: 99.0, 32: 98.0}, 4),
    "always faster": ({1: 1.0, 2: 2.0, 4: 3.0, 8: 4.0, 16: 5.0, 32: 6.0}, 32),
    "always slower": ({1: 9.0, 2: 2.0, 4: 1.0}, 1),
    "one slow in between": ({1: 5.0, 2: 1.0, 4: 9.0, 8: 8.0, 16: 8.0}, 4),
    "ever faster until one does not fit": ({1: 1.0, 2: 2.0, 4: 0.0}, 2),
}


@pytest.mark.parametrize(("rates", "best"), RATES.values(), ids=RATES)
def test_a_cpu_takes_the_smallest_budget_that_is_nearly_the_fastest(rates: dict[int, float], best: int) -> None:
    """What is not in `rates` must not be tried."""
    assert memory.fastest(lambda tokens: rates[tokens], 1, 32) == best


def test_a_cpu_budget_fits(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it would be the fastest with; memory that runs out ends the search, not the program."""
    monkeypatch.setattr(memory, "LEAST", 16)
    monkeypatch.setattr(memory, "LEAST_BATCHES", 2)
    monkeypatch.setattr(memory, "rate", lambda stream, _: most_cells(stream))
    found, _ = memory.choose_budget(make_stream, Device(500), CPU)
    assert most_cells(make_stream(found)) <= 500 < most_cells(make_stream(2 * found))


def test_a_rate_counts_labels(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch takes a second, but for the first time, which is not counted."""
    clock, tried = [0.0], list[Batch]()

    def slow(batch: Batch) -> None:
        clock[0] += 1.0 if any(batch.rows is seen.rows for seen in tried) else 100.0
        tried.append(batch)

    monkeypatch.setattr(memory.time, "perf_counter", lambda: clock[0])
    found = memory.rate(make_stream(300), slow)
    assert len(tried) == 6
    assert found == sum(batch.n_tgt for batch in tried[::2]) / 3


def test_a_cpu_budget_for_a_real_model(
    make_stream: MakeStream, small_tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_tokenizers)
    monkeypatch.setattr(memory, "LEAST", 64)
    found, why = memory.choose_budget(make_stream, lambda batch: batch_loss(model, batch, 0.1).total.backward(), CPU)
    assert found in (64, 128)  # twice as much leaves fewer than 50 batches
    assert why


def test_a_run_keeps_what_auto_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume asks for `auto` again and gets the same number; and a run that was given the number is the same run."""
    lines = [f"line {' '.join(str(i))} goes in\n" for i in range(400)]
    for name in ("t.en", "t.de"):
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")

    def train(name: str, steps: int, tokens: int | str) -> dict[str, torch.Tensor]:
        one = {"n_layers": 1}
        config: dict[str, Any] = {
            "name": name,
            "runs_dir": str(tmp_path),
            "threads": 1,
            "data": {
                "src_lang": "en",
                "tgt_lang": "de",
                "train": {"src": str(tmp_path / "t.en"), "tgt": str(tmp_path / "t.de")},
                "cache_dir": str(tmp_path / "cache"),
            },
            "tokenizer": {"vocab_size": 300},
            "batches": {"tokens": tokens},
            "model": {"d_model": 16, "d_ff": 32, "n_heads": 2, "encoder": one, "decoder": one},
            "train": {"max_steps": steps},
            "decoding": {"max_length_factor": 0, "max_length_offset": 3},
        }
        pipeline.train(Config.model_validate(config))
        return safetensors.torch.load_file(
            RunFolder(tmp_path / name).find_checkpoint("last").path / "model.safetensors"
        )

    monkeypatch.setattr(memory, "LEAST", 32)
    train("auto", 1, "auto")
    found = configuration.load(tmp_path / "auto" / "config.yaml").batches.tokens
    assert isinstance(found, int)
    monkeypatch.setattr(memory, "choose_budget", None)  # not asked again
    resumed = train("auto", 3, "auto")
    assert configuration.load(tmp_path / "auto" / "config.yaml").batches.tokens == found
    given = train("given", 3, found)
    assert resumed.keys() == given.keys()
    assert all(torch.equal(resumed[name], given[name]) for name in given)
