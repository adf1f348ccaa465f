"""Partitions: every pair once per epoch, an order that depends on seed and epoch, and the memory of two partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from transformer_mt.data import batches as batches_module
from transformer_mt.data.batches import BatchStream, BucketedBatches, Lengths, PartitionedBatches, StreamPosition
from transformer_mt.data.encoding import EncodedCorpus
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
    monkeypatch.setattr(batches_module, "PARTITION_PAIRS", 30)
    monkeypatch.setattr(batches_module, "BLOCK_PAIRS", 4)


def test_a_corpus_of_one_partition_has_the_order_of_its_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "BLOCK_PAIRS", 4)
    bucketed, batches = BucketedBatches(*read_lengths(0, N), TOKENS), make_batches()
    assert batches.shapes.tolist() == bucketed.shapes.tolist()
    for ours, theirs in (
        (batches.shortest_first(), bucketed.shortest_first()),
        (batches.shuffled(3, 5), bucketed.shuffled(3, 5)),
    ):
        assert [rows.tolist() for rows in ours] == [rows.tolist() for rows in theirs]


@pytest.mark.usefixtures("four_partitions")
@pytest.mark.parametrize("epoch", [0, 7])
def test_an_epoch_of_partitions_holds_every_pair_once(epoch: int) -> None:
    batches = make_batches()
    for plan in (batches.shuffled(1, epoch), batches.shortest_first()):
        assert len(plan) == len(batches) == len([*plan])
        assert sorted(np.concatenate([*plan]).tolist()) == list(range(N))


@pytest.mark.usefixtures("four_partitions")
def test_shapes_are_those_of_the_batches() -> None:
    batches = make_batches()
    found = [(len(rows), *(LENGTHS[side, rows].max() for side in (0, 1))) for rows in batches.shortest_first()]
    assert found == [*map(tuple, batches.shapes.tolist())]
    assert all(n == 1 or (n * tgt <= TOKENS and n * src <= 2 * TOKENS) for n, src, tgt in found)
    for epoch in (0, 1):
        plan = batches.shuffled(1, epoch)
        shapes = [(len(rows), *(LENGTHS[side, rows].max() for side in (0, 1))) for rows in plan]
        assert Counter(n for n, *_ in shapes) == Counter(n for n, *_ in found)


@pytest.mark.usefixtures("four_partitions")
def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in make_batches(seed).shuffled(seed, epoch)]

    batches = make_batches()
    assert len([*batches.shuffled(1, 4)]) == len(batches)
    assert [rows.tolist() for rows in batches.shuffled(1, 2)] == order(1, 2)
    assert len({str(order(*key)) for key in ((1, 2), (1, 3), (2, 2))}) == 3


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
            for rows in batches.shuffled(1, epoch)
        ]
        orders.append([*dict.fromkeys(of_batch)])
        assert of_batch == sorted(of_batch, key=orders[-1].index)
    assert len({str(order) for order in orders}) > 1


@pytest.mark.usefixtures("four_partitions")
def test_an_epoch_buckets_each_partition_once(monkeypatch: pytest.MonkeyPatch) -> None:
    make, sizes = BucketedBatches.__init__, list[int]()

    def watch(self: BucketedBatches, src_lengths: Lengths, tgt_lengths: Lengths, tokens: int) -> None:
        sizes.append(len(src_lengths))
        make(self, src_lengths, tgt_lengths, tokens)

    batches = make_batches()
    monkeypatch.setattr(BucketedBatches, "__init__", watch)
    assert len([*batches.shuffled(1, 0)]) == len(batches)
    assert len(sizes) <= 4


@pytest.mark.usefixtures("four_partitions")
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_resumed_stream_of_partitions_yields_the_same_batches(
    world_size: int, make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair
) -> None:
    """Steps of three batches span partitions and epochs. Ranks share them."""
    corpus = make_corpus(*([[100 + row] * n for row, n in enumerate(side)] for side in LENGTHS.tolist()))

    def make_stream() -> BatchStream:
        return BatchStream(corpus, small_tokenizers, TOKENS, 1)

    stream, position, whole = make_stream(), StreamPosition(), list[list[list[int]]]()
    for _ in range(len(stream)):
        before = position
        batches, position = stream.take(position, 3)
        whole.append([batch.rows.tolist() for batch in batches])
        parts = [make_stream().take(before, 3, rank, world_size)[0] for rank in range(world_size)]
        assert [part.rows.tolist() for rank in zip(*parts, strict=True) for part in rank] == whole[-1]
    assert position == StreamPosition(3, 0)
    rows = [row for step in whole for batch in step for row in batch]
    assert Counter(rows) == dict.fromkeys(range(N), 3)
