"""The prefetcher returns the same batches as the stream, and the position after the returned step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from helpers import make_modified_stream

from transformer_mt.data.batches import (
    PREFETCHED_STEPS,
    Batch,
    BatchModifier,
    BatchStream,
    Prefetcher,
    StepBatches,
    StreamPosition,
)
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.tools.augmentation.modifiers import ModifierConfig, make_modify
from transformer_mt.tools.augmentation.subword_sampling import SubwordSampler, sample_pairs

TEXTS = ["the lazy dog sleeps", "a quick fox jumps", "over it", "dogs and foxes are friends", "so it is"] * 8


OFF = ModifierConfig()
MODIFIERS = ModifierConfig(lower_source=0.6, typos=0.5)


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
        sample = partial(sample_pairs, (sampler, sampler)) if rate else None
        modifier = BatchModifier(small_tokenizers, 80, 1, 99, make_modify(modifiers), sample)
        return make_modified_stream(corpus, modifier)

    return make


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not any(thread.name.startswith("batches") for thread in threading.enumerate())


def prefetch(stream: BatchStream, count: int, rank: int = 0, world_size: int = 1) -> Prefetcher:
    return Prefetcher(
        lambda position: stream.take(position, count, rank, world_size),
        lambda position: stream.plan.take(position, count)[1],
    )


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
@pytest.mark.parametrize("share", [(1,), (3, 2, 3)])
def test_prefetcher_returns_the_batches_of_the_stream(
    make_stream: Callable[[], BatchStream], share: tuple[int, ...]
) -> None:
    stream = make_stream()
    position = StreamPosition(1, len(stream.plan) - 4)
    with prefetch(make_stream(), *share) as prefetcher:
        for batches, after in steps(prefetcher, position, 12):
            wanted, position = stream.take(position, *share)
            assert after == position
            assert len(batches) == len(wanted)
            assert all(map(same, batches, wanted))
    assert position.epoch > 1, "the steps span the end of an epoch"


# --- any steps --------------------------------------------------------------------------------------------------------


def advance(position: StreamPosition) -> StreamPosition:
    return StreamPosition(position.epoch, position.index + 1)


def test_a_few_steps_are_built_while_the_consumer_computes() -> None:
    built, n_built = threading.Semaphore(0), 0

    def build(position: StreamPosition) -> StepBatches:
        nonlocal n_built
        n_built += 1
        built.release()
        return StepBatches([], advance(position))

    with Prefetcher(build, advance) as prefetcher:
        prefetcher.take(StreamPosition())
        assert all(built.acquire(timeout=60) for _ in range(1 + PREFETCHED_STEPS))
        list(steps(prefetcher, StreamPosition(0, 1), 2))
    assert 3 <= n_built <= 3 + PREFETCHED_STEPS


def test_an_error_is_raised_when_its_step_is_taken() -> None:
    def build(position: StreamPosition) -> StepBatches:
        if position.index == 3:
            raise UserError("damaged")
        return StepBatches([], advance(position))

    with Prefetcher(build, advance) as prefetcher:
        *_, last = steps(prefetcher, StreamPosition(), 3)
        for _ in range(2):
            with pytest.raises(UserError, match="damaged"):
                prefetcher.take(last.position)


def test_the_thread_ends_if_the_consumer_fails(make_stream: Callable[[], BatchStream]) -> None:
    with pytest.raises(KeyboardInterrupt), prefetch(make_stream(), 2) as prefetcher:
        prefetcher.take(StreamPosition())
        raise KeyboardInterrupt
