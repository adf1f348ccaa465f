"""Worker processes sample the same subwords as this process, for any number of them, and may be killed."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing import active_children

import pytest
import torch

from transformer_mt.data import loader
from transformer_mt.data.batches import BatchStream, StreamPosition
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.loader import Prefetcher, count_sampling_workers, open_sampling_workers
from transformer_mt.data.tokenizers.subword_sampling import SubwordSampler
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.system.device import Machine
from transformer_mt.tools.augmentation.modifier_config import ModifierConfig
from transformer_mt.tools.augmentation.modifiers import make_modify

TEXTS = ["the lazy dog sleeps", "a quick fox jumps", "over it", "dogs and foxes are friends", "so it is"] * 16
START = StreamPosition()


@pytest.fixture
def stream(make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair) -> BatchStream:
    """Batches of up to 40 modified pairs with subword sampling."""
    ids = small_tokenizers.src.encode(TEXTS)
    sampler = SubwordSampler(small_tokenizers.src, 0.3, 1, 99)
    modify = make_modify(ModifierConfig(upper=0.3, typos=0.5))
    return BatchStream(make_corpus(ids, ids[::-1]), small_tokenizers, 400, 1, (sampler, sampler), modify=modify)


def take(stream: BatchStream, count: int) -> list[torch.Tensor]:
    """Return the tensors of the first batches, built by a prefetcher."""
    with Prefetcher(stream, count) as prefetcher:
        return [
            tensor for batch in prefetcher.take(START).batches for tensor in (batch.src, batch.tgt_in, batch.labels)
        ]


def assert_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(*pair) for pair in zip(left, right, strict=True))


def test_workers_sample_the_same_subwords_and_end(stream: BatchStream) -> None:
    expected = take(stream, 12)
    with open_sampling_workers(stream, 2):
        assert_equal(take(stream, 12), expected)
        assert len(active_children()) == 2
    assert not active_children()
    assert_equal(take(stream, 12), expected)


def test_training_continues_after_a_worker_was_killed(stream: BatchStream, capsys: pytest.CaptureFixture[str]) -> None:
    expected = take(stream, 12)
    with open_sampling_workers(stream, 1):
        take(stream, 1)
        for process in active_children():
            os.kill(int(process.pid or 0), signal.SIGKILL)
            process.join()
        assert_equal(take(stream, 12), expected)
        assert capsys.readouterr().err.count("a process that samples subwords ended unexpectedly") == 1
        assert_equal(take(stream, 12), expected)


def test_no_process_starts_without_workers_or_sampling(stream: BatchStream) -> None:
    with open_sampling_workers(stream, 0):
        take(stream, 1)
        assert not active_children()


def test_sampler_without_its_caches_is_equal(stream: BatchStream, small_tokenizers: TokenizerPair) -> None:
    assert stream.subword_samplers is not None
    sampler = stream.subword_samplers[0]
    copied = pickle.loads(pickle.dumps(sampler))
    for row, ids in enumerate(small_tokenizers.src.encode(TEXTS[:9])):
        assert copied(ids, 3, 1, row) == sampler(ids, 3, 1, row)


@pytest.mark.parametrize(
    ("device", "cores", "processes", "expected"),
    [("cpu", 64, 1, 0), ("cuda", 8, 1, 7), ("cuda", 8, 4, 1), ("cuda", 1, 1, 0), ("cuda", 99, 1, 16)],
)
def test_each_process_of_a_gpu_uses_its_share_of_the_cores(
    device: str, cores: int, processes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "count_available_cores", lambda: cores)
    monkeypatch.setattr(loader, "local_world_size", lambda: processes)
    assert count_sampling_workers(Machine(torch.device(device), "fp32", 1)) == expected
