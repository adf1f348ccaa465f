"""Partitions: every pair once per epoch, an order that depends on seed and epoch, and the memory of two partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from transformer_mt.data import batch_plan
from transformer_mt.data.batch_plan import BatchPlan, BucketedBatches, PartitionedBatches, StreamPosition
from transformer_mt.data.batches import BatchStream
from transformer_mt.data.encoding import EncodedCorpus, Lengths, Rows
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

N, TOKENS = 103, 60
LENGTHS = np.random.default_rng(1).integers(1, 21, (2, N)).astype(np.int32)


def read_lengths(start: int, end: int) -> tuple[Lengths, Lengths]:
    return LENGTHS[0, start:end], LENGTHS[1, start:end]


def make_batches(seed: int = 1) -> PartitionedBatches:
    return PartitionedBatches(N, read_lengths, TOKENS, seed)


@pytest.fixture
def four_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has 6 or 7 blocks of 4 pairs; the last block has 3."""
    monkeypatch.setattr(batch_plan, "PARTITION_PAIRS", 30)
    monkeypatch.setattr(batch_plan, "BLOCK_PAIRS", 4)


def epoch_of(batches: PartitionedBatches, epoch: int) -> list[Rows]:
    return [batches.batch(epoch, i) for i in range(len(batches))]


def as_lists(batches: Iterable[Rows]) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


def test_a_corpus_of_one_partition_has_the_order_of_its_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_plan, "BLOCK_PAIRS", 4)
    bucketed, batches = BucketedBatches(*read_lengths(0, N), TOKENS), make_batches(seed=3)
    assert batches.shapes.tolist() == bucketed.shapes.tolist()
    assert as_lists(batches.shortest_first()) == as_lists(bucketed.shortest_first())
    assert as_lists(epoch_of(batches, 5)) == as_lists(bucketed.shuffled(3, 5))


@pytest.mark.usefixtures("four_partitions")
def test_an_epoch_of_partitions_holds_every_pair_once() -> None:
    batches = make_batches()
    for found in (epoch_of(batches, 0), epoch_of(batches, 7), [*batches.shortest_first()]):
        assert len(found) == len(batches)
        assert sorted(np.concatenate(found).tolist()) == list(range(N))


@pytest.mark.usefixtures("four_partitions")
def test_shapes_are_those_of_the_batches() -> None:
    batches = make_batches()
    plan = BatchPlan([0, N], read_lengths, TOKENS, 1)
    found = [(len(rows), *(LENGTHS[side, rows].max() for side in (0, 1))) for rows in batches.shortest_first()]
    assert found == [*map(tuple, batches.shapes.tolist())]
    assert all(n == 1 or (n * tgt <= TOKENS and n * src <= 2 * TOKENS) for n, src, tgt in found)
    assert as_lists(map(plan.rows_of_shape, range(len(found)))) == as_lists(batches.shortest_first())
    for epoch in (0, 1):
        assert Counter(map(len, epoch_of(batches, epoch))) == Counter(n for n, *_ in found)


@pytest.mark.usefixtures("four_partitions")
def test_partitions_follow_each_other_in_a_new_order() -> None:
    """Each partition is from all over the corpus, and complete before the next one starts."""
    batches = make_batches()
    partitions = [{*batches.partition(number).rows.tolist()} for number in range(4)]
    assert sorted(map(len, partitions)) in ([24, 24, 27, 28], [23, 24, 28, 28])
    assert all(max(partition) - min(partition) > N / 2 for partition in partitions)
    orders: list[list[int]] = []
    for epoch in range(3):
        of_batch = [
            next(i for i, partition in enumerate(partitions) if {*rows} <= partition)
            for rows in epoch_of(batches, epoch)
        ]
        orders.append([*dict.fromkeys(of_batch)])
        assert of_batch == sorted(of_batch, key=orders[-1].index)
    assert len({str(order) for order in orders}) > 1


@pytest.mark.usefixtures("four_partitions")
@pytest.mark.parametrize("epoch", [0, 1000])
def test_any_position_needs_the_lengths_of_its_partition_only(epoch: int) -> None:
    """With known shapes, a resumed training starts after the same work in any epoch, and an epoch reads a pair once."""
    n_read: list[int] = []

    def count(start: int, end: int) -> tuple[Lengths, Lengths]:
        n_read.append(end - start)
        return read_lengths(start, end)

    known = [make_batches().partition(number).shapes for number in range(4)]
    plan = BatchPlan([0, N], count, TOKENS, 1, measure=lambda _: known)
    assert n_read == []
    (planned,), _ = plan.take(StreamPosition(epoch, len(plan) - 1), 1)
    plan.rows(planned)
    assert 23 <= sum(n_read) <= 28  # of 103
    plan.rows_of_shape(len(plan) - 1)
    assert sum(n_read) <= 56
    n_read.clear()
    for planned in plan.take(StreamPosition(epoch + 1), len(plan))[0]:
        plan.rows(planned)
    assert sum(n_read) <= N


@pytest.mark.usefixtures("four_partitions")
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_resumed_stream_of_partitions_yields_the_same_batches(
    world_size: int, make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair
) -> None:
    """Steps of three batches span partitions and epochs. Ranks share them."""
    corpus = make_corpus(*([[100 + row] * n for row, n in enumerate(side)] for side in LENGTHS.tolist()))

    def make_stream() -> BatchStream:
        return BatchStream.plain(corpus, small_tokenizers, TOKENS, 1)

    stream, position, whole = make_stream(), StreamPosition(), list[list[list[int]]]()
    for _ in range(len(stream.plan)):
        before = position
        batches, position = stream.take(position, 3)
        whole.append([batch.rows.tolist() for batch in batches])
        parts = [make_stream().take(before, 3, rank, world_size)[0] for rank in range(world_size)]
        assert [part.rows.tolist() for rank in zip(*parts, strict=True) for part in rank] == whole[-1]
    assert position == StreamPosition(3, 0)
    rows = [row for step in whole for batch in step for row in batch]
    assert Counter(rows) == dict.fromkeys(range(N), 3)
