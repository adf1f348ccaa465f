"""Worker processes sample the same subwords as this process, for any number of them, and may be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import active_children

import pytest
import torch
from helpers import make_modified_stream

from transformer_mt.data.batch_plan import StreamPosition
from transformer_mt.data.batches import BatchModifier, BatchStream
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.system.device import Machine
from transformer_mt.tools.augmentation import subword_sampling
from transformer_mt.tools.augmentation.modifiers import ModifierConfig, make_modify
from transformer_mt.tools.augmentation.subword_sampling import PairSampler, SubwordSampler, count_sampling_workers

TEXTS = ["the lazy dog sleeps", "a quick fox jumps", "over it", "dogs and foxes are friends", "so it is"] * 16


@pytest.fixture
def sample(small_tokenizers: TokenizerPair) -> PairSampler:
    sampler = SubwordSampler(small_tokenizers.src, 0.3, 1, 99)
    return PairSampler(sampler, sampler)


@pytest.fixture
def stream(
    make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair, sample: PairSampler
) -> BatchStream:
    """Batches of up to 40 modified pairs with subword sampling."""
    ids = small_tokenizers.src.encode(TEXTS)
    modify = make_modify(ModifierConfig(upper=0.3, typos=0.5))
    return make_modified_stream(
        make_corpus(ids, ids[::-1]), BatchModifier(small_tokenizers, 400, 1, 99, modify, sample)
    )


def take(stream: BatchStream) -> list[torch.Tensor]:
    """Return the tensors of the first batches."""
    batches, _ = stream.take(StreamPosition(), 12)
    return [tensor for batch in batches for tensor in (batch.src, batch.tgt_in, batch.labels)]


def assert_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(*pair) for pair in zip(left, right, strict=True))


def test_workers_sample_the_same_subwords_and_end(stream: BatchStream, sample: PairSampler) -> None:
    expected = take(stream)
    with sample.use_workers(0):
        assert_equal(take(stream), expected)
        assert not active_children()
    with sample.use_workers(2):
        assert_equal(take(stream), expected)
        assert len(active_children()) == 2
    assert not active_children()
    assert_equal(take(stream), expected)


def test_training_continues_after_a_worker_was_killed(
    stream: BatchStream, sample: PairSampler, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = take(stream)
    with sample.use_workers(1):
        take(stream)
        for process in active_children():
            os.kill(int(process.pid or 0), signal.SIGKILL)
            process.join()
        assert_equal(take(stream), expected)
        assert capsys.readouterr().err.count("a process that samples subwords ended unexpectedly") == 1
        assert_equal(take(stream), expected)


@pytest.mark.parametrize(
    ("device", "cores", "processes", "expected"),
    [("cpu", 64, 1, 0), ("cuda", 8, 1, 7), ("cuda", 8, 4, 1), ("cuda", 1, 1, 0), ("cuda", 99, 1, 16)],
)
def test_each_process_of_a_gpu_uses_its_share_of_the_cores(
    device: str, cores: int, processes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subword_sampling, "count_available_cores", lambda: cores)
    monkeypatch.setattr(subword_sampling, "local_world_size", lambda: processes)
    assert count_sampling_workers(Machine(torch.device(device), "fp32", 1)) == expected
