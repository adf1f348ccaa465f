"""The prefetcher returns the same batches as the stream, and the position after the returned step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.loader import PREFETCHED_STEPS, Prefetcher, StepBatches
from transformer_mt.data.tokenizers.subword_sampling import SubwordSampler
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.tools.augmentation.modifier_config import ModifierConfig
from transformer_mt.tools.augmentation.modifiers import make_modify

TEXTS = ["the lazy dog sleeps", "a quick fox jumps", "over it", "dogs and foxes are friends", "so it is"] * 8


OFF = ModifierConfig()
MODIFIERS = ModifierConfig(upper=0.3, lower=0.3, join=0.3, typos=0.5)


@pytest.fixture
def make_stream(
    request: pytest.FixtureRequest, make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair
) -> Callable[[], BatchStream]:
    """A factory of equal streams over the same corpus. A parameter sets the rate of sampling and the modifiers."""
    rate, modifiers = getattr(request, "param", (0.0, OFF))
    ids = small_tokenizers.src.encode(TEXTS)
    corpus = make_corpus(ids, ids[::-1])

    def make() -> BatchStream:
        sampler = SubwordSampler(small_tokenizers.src, rate, 1, 99)
        samplers = (sampler, sampler) if rate else None
        return BatchStream(corpus, small_tokenizers, 80, 1, samplers, modify=make_modify(modifiers), max_length=99)

    return make


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def same(left: Batch, right: Batch) -> bool:
    parts = ((left.src, right.src), (left.tgt_in, right.tgt_in), (left.labels, right.labels))
    return all(torch.equal(*pair) for pair in parts) and left.rows.tolist() == right.rows.tolist()


def steps(prefetcher: Prefetcher, position: StreamPosition, count: int) -> Iterator[StepBatches]:
    """Take `count` consecutive steps."""
    for _ in range(count):
        step = prefetcher.take(position)
        position = step.position
        yield step


@pytest.mark.parametrize("make_stream", [(0.0, OFF), (0.3, OFF), (0.3, MODIFIERS)], indirect=True, ids=str)
@pytest.mark.parametrize("share", [(1,), (4, 1, 2), (3, 2, 3)])
def test_prefetcher_returns_the_batches_of_the_stream(
    make_stream: Callable[[], BatchStream], share: tuple[int, ...]
) -> None:
    stream = make_stream()
    position = StreamPosition(1, len(stream) - 4)
    with Prefetcher(make_stream(), *cast(Any, share)) as prefetcher:
        for batches, after in steps(prefetcher, position, 12):
            wanted, position = stream.take(position, *share)
            assert after == position
            assert len(batches) == len(wanted)
            assert all(map(same, batches, wanted))
    assert position.epoch > 1, "the steps span the end of an epoch"


def test_resume_starts_after_the_returned_step(make_stream: Callable[[], BatchStream]) -> None:
    """Steps that were only prefetched are built again, also if the same prefetcher rolls back."""
    with Prefetcher(make_stream(), 2) as prefetcher:
        whole = list(steps(prefetcher, StreamPosition(), 9))
    with Prefetcher(make_stream(), 2) as prefetcher:
        first = list(steps(prefetcher, StreamPosition(), 4))
    with Prefetcher(make_stream(), 2) as prefetcher:
        second = list(steps(prefetcher, first[-1].position, 5))
        again = list(steps(prefetcher, StreamPosition(), 9))
    for wanted, *found in zip(whole, first + second, again, strict=True):
        for step in found:
            assert step.position == wanted.position
            assert all(map(same, step.batches, wanted.batches))


def test_prefetching_is_limited_to_a_few_steps(
    make_stream: Callable[[], BatchStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, taken = make_stream(), list[StreamPosition]()
    take: Any = stream.take

    def spy(position: StreamPosition, *arguments: Any) -> Any:
        taken.append(position)
        return take(position, *arguments)

    monkeypatch.setattr(stream, "take", spy)
    with Prefetcher(stream, 1) as prefetcher:
        list(steps(prefetcher, StreamPosition(), 3))
    assert 3 <= len(taken) <= 3 + PREFETCHED_STEPS


def test_batches_are_built_while_the_consumer_computes(
    make_stream: Callable[[], BatchStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, built = make_stream(), threading.Semaphore(0)
    take: Any = stream.take

    def spy(*arguments: Any) -> Any:
        found = take(*arguments)
        built.release()
        return found

    monkeypatch.setattr(stream, "take", spy)
    with Prefetcher(stream, 1) as prefetcher:
        prefetcher.take(StreamPosition())
        assert all(built.acquire(timeout=60) for _ in range(1 + PREFETCHED_STEPS))


class Broken(BatchStream):
    """A stream that fails to build the batches of its second epoch."""

    def build_training_batches(self, rows: Any, epoch: int) -> list[Batch]:
        if epoch == 1:
            raise UserError(f"rows {rows.tolist()} are damaged")
        return super().build_training_batches(rows, epoch)


def test_an_error_is_raised_when_its_step_is_taken(make_stream: Callable[[], BatchStream]) -> None:
    stream = make_stream()
    stream.__class__ = Broken
    with Prefetcher(stream, 1) as prefetcher:
        *_, last = steps(prefetcher, StreamPosition(0, len(stream) - 3), 3)
        assert last.position == StreamPosition(1, 0)
        for _ in range(2):
            with pytest.raises(UserError, match="are damaged"):
                prefetcher.take(StreamPosition(1, 0))


def test_the_thread_ends_if_the_consumer_fails(make_stream: Callable[[], BatchStream]) -> None:
    with pytest.raises(KeyboardInterrupt), Prefetcher(make_stream(), 2) as prefetcher:
        prefetcher.take(StreamPosition())
        raise KeyboardInterrupt
