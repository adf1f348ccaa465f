"""Batches: content (traps 17 and 18), token budget, and an order that depends only on seed and epoch (trap 42)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition, collate_sources
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

MakeCorpus = Callable[..., EncodedCorpus]


@dataclass(frozen=True)
class Symbols:
    """The part of a tokenizer that batching uses."""

    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    tags: tuple[str, ...] = ()


def pair_of(src: Any, tgt: Any, source_bos: bool = False) -> TokenizerPair:
    return TokenizerPair(src, tgt, source_bos)


def make_stream(
    corpus: EncodedCorpus, tokens: int = 60, seed: int = 1, src: Symbols = Symbols(), tgt: Symbols = Symbols()
) -> BatchStream:
    return BatchStream.plain(corpus, pair_of(src, tgt), tokens, seed)


def build(stream: BatchStream, rows: list[int]) -> Batch:
    return stream.reader.collate(stream.reader.read(np.array(rows, np.int32)))


@pytest.fixture
def corpus(make_corpus: MakeCorpus) -> EncodedCorpus:
    """100 pairs of 1 to 20 tokens. All tokens of a row are 100 + row."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, 21, (100, 2))
    return make_corpus(
        [[100 + i] * s for i, (s, _) in enumerate(lengths)], [[100 + i] * t for i, (_, t) in enumerate(lengths)]
    )


def rows(batch: Batch) -> list[int]:
    """Return the corpus rows of a batch, read from its tokens."""
    assert torch.equal(batch.src[:, 0], batch.labels[:, 0]), "source and target belong together"
    return (batch.src[:, 0] - 100).tolist()


def plain(batches: Sequence[Batch]) -> list[list[list[int]]]:
    """Return the batches as comparable lists."""
    return [[*batch.src.tolist(), *batch.tgt_in.tolist(), *batch.labels.tolist()] for batch in batches]


# --- one batch --------------------------------------------------------------------------------------------------------


def test_batch_equals_a_hand_written_one(make_corpus: MakeCorpus) -> None:
    """Trap 18: the decoder reads BOS + target and predicts target + EOS; the encoder reads source + EOS."""
    stream = make_stream(make_corpus([[7, 8, 9], [5]], [[6], [11, 12]]))
    batch = build(stream, [0, 1])
    assert batch.src.tolist() == [[7, 8, 9, 2], [5, 2, 0, 0]]
    assert batch.tgt_in.tolist() == [[1, 6, 0], [1, 11, 12]]
    assert batch.labels.tolist() == [[6, 2, 0], [11, 12, 2]]
    assert (batch.n_src, batch.n_tgt) == (4 + 2, 2 + 3)
    assert {part.dtype for part in (batch.src, batch.tgt_in, batch.labels)} == {torch.int64}


def test_each_side_uses_its_own_control_symbols(make_corpus: MakeCorpus) -> None:
    """Trap 17."""
    stream = make_stream(make_corpus([[7, 8], [5]], [[6], [11, 12]]), src=Symbols(40, 41, 42), tgt=Symbols(50, 51, 52))
    batch = build(stream, [1, 0])
    assert batch.src.tolist() == [[5, 42, 40], [7, 8, 42]]
    assert batch.tgt_in.tolist() == [[51, 11, 12], [51, 6, 50]]
    assert batch.labels.tolist() == [[11, 12, 52], [6, 52, 50]]


def test_source_bos_is_added_and_counted_in_the_budget(make_corpus: MakeCorpus) -> None:
    tokenizers = pair_of(Symbols(40, 41, 42), Symbols(50, 51, 52), source_bos=True)
    stream = BatchStream.plain(make_corpus([[7, 8], [5], []], [[6], [11, 12], [9]]), tokenizers, 60, 1)
    batch = build(stream, [0, 1, 2])
    assert batch.src.tolist() == [[41, 7, 8, 42], [41, 5, 42, 40], [41, 42, 40, 40]]
    assert batch.tgt_in.tolist() == [[51, 6, 50], [51, 11, 12], [51, 9, 50]]
    assert batch.n_src == (batch.src != 40).sum() == 9
    assert torch.equal(collate_sources([[7, 8], [5], []], tokenizers), batch.src)
    long = BatchStream.plain(make_corpus([[7] * 9] * 4, [[6]] * 4), tokenizers, 11, 1)
    assert [len(batch.src) for batch in long.shortest_first()] == [2, 2]  # two of 9 + 2 are within 2 * 11


def test_an_empty_sentence_is_one_end_symbol(make_corpus: MakeCorpus) -> None:
    batch = build(make_stream(make_corpus([[]], [[]])), [0])
    assert (batch.src.tolist(), batch.tgt_in.tolist(), batch.labels.tolist()) == ([[2]], [[1]], [[2]])
    assert (batch.n_src, batch.n_tgt) == (1, 1)


# --- bucketing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 21, 60, 10**6])
def test_batches_stay_within_the_budget(corpus: EncodedCorpus, tokens: int) -> None:
    """Padded targets fit the budget and padded sources twice the budget; only a batch of one pair may exceed it."""
    batches = list(make_stream(corpus, tokens).shortest_first())
    for batch in batches:
        assert len(batch.src) == 1 or (batch.labels.numel() <= tokens and batch.src.numel() <= 2 * tokens)
    assert (len(batches) == 1) == (tokens == 10**6)
    assert (len(batches) == len(corpus)) == (tokens == 1)


def test_lengths_above_16_bits_are_sorted(make_corpus: MakeCorpus) -> None:
    lengths = [70_000, 3, 65_536, 1, 65_535]
    stream = make_stream(make_corpus([[5] * n for n in lengths], [[6]] * 5), tokens=1)
    assert [batch.rows.tolist() for batch in stream.shortest_first()] == [[3], [1], [4], [2], [0]]


def test_batches_are_filled_greedily(corpus: EncodedCorpus) -> None:
    """The first pair of the next batch would exceed the budget."""
    batches = list(make_stream(corpus, 60).shortest_first())
    for batch, following in itertools.pairwise(batches):
        size = len(batch.src) + 1
        tgt = 1 + int((following.labels[0] != 0).sum()) - 1
        src = max(batch.src.size(1), int((following.src[0] != 0).sum()))
        assert size * tgt > 60 or size * src > 120


# --- the order of an epoch --------------------------------------------------------------------------------------------


def epoch_rows(stream: BatchStream, epoch: int) -> list[int]:
    batches, after = stream.take(StreamPosition(epoch), len(stream.plan))
    assert after == StreamPosition(epoch + 1, 0)
    return [row for batch in batches for row in rows(batch)]


def test_the_order_is_a_pure_function_of_seed_and_epoch(corpus: EncodedCorpus) -> None:
    """Trap 42: earlier calls and the global random state do not matter."""
    first, second = make_stream(corpus), make_stream(corpus)
    wanted = {epoch: epoch_rows(first, epoch) for epoch in (0, 1, 2, 3)}
    np.random.seed(7)
    assert {epoch: epoch_rows(second, epoch) for epoch in (3, 0, 2, 1, 3)} == wanted
    orders = [*wanted.values(), epoch_rows(make_stream(corpus, seed=2), 0), epoch_rows(make_stream(corpus, seed=2), 1)]
    assert len(set(map(tuple, orders))) == len(orders)


def planned_rows(stream: BatchStream, epoch: int) -> list[list[int]]:
    planned, _ = stream.plan.take(StreamPosition(epoch), len(stream.plan))
    return [stream.plan.rows(batch).tolist() for batch in planned]


def test_pairs_of_equal_length_are_regrouped_in_each_epoch(make_corpus: MakeCorpus) -> None:
    stream = make_stream(make_corpus([[5]] * 50, [[6]] * 50), tokens=10)
    first, second = ({frozenset(batch) for batch in planned_rows(stream, epoch)} for epoch in (0, 1))
    assert not first & second


# --- the stream position ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_end", [1, 3, 5])
def test_taking_three_equals_taking_one_three_times(corpus: EncodedCorpus, from_end: int) -> None:
    """Trap 42: inside an epoch, up to its end, and across it."""
    stream = make_stream(corpus)
    position = start = StreamPosition(1, len(stream.plan) - from_end)
    together, end = stream.take(start, 3)
    single: list[Batch] = []
    for _ in range(3):
        batches, position = make_stream(corpus).take(position, 1)
        single += batches
    assert plain(single) == plain(together)
    assert position == end == (StreamPosition(1, start.index + 3) if from_end > 3 else StreamPosition(2, 3 - from_end))


def test_a_corpus_of_one_pair_repeats_it(make_corpus: MakeCorpus) -> None:
    batches, end = make_stream(make_corpus([[5]], [[6]])).take(StreamPosition(), 3)
    assert [batch.src.tolist() for batch in batches] == [[[5, 2]]] * 3
    assert end == StreamPosition(3, 0)


# --- rows and halving -------------------------------------------------------------------------------------------------


def test_a_batch_records_its_rows(corpus: EncodedCorpus) -> None:
    stream = make_stream(corpus)
    batches, _ = stream.take(StreamPosition(2, len(stream.plan) - 2), 4)
    assert all(rows(batch) == batch.rows.tolist() for batch in batches)
    moved = batches[0].to(torch.device("meta"))
    assert moved.rows.tolist() == batches[0].rows.tolist()


def pairs_of(batch: Batch) -> list[tuple[list[int], ...]]:
    """Return the pairs of a batch without padding (0)."""
    parts = zip(batch.src.tolist(), batch.tgt_in.tolist(), batch.labels.tolist(), strict=True)
    return [tuple([i for i in ids if i] for ids in pair) for pair in parts]


def test_halves_hold_the_pairs_of_the_batch(corpus: EncodedCorpus) -> None:
    stream = make_stream(corpus)
    for whole in stream.take(StreamPosition(5), len(stream.plan)).batches:
        if len(whole.rows) < 2:
            continue
        halves = whole.halve(0, 0)
        assert pairs_of(halves[0]) + pairs_of(halves[1]) == pairs_of(whole)
        assert [*halves[0].rows, *halves[1].rows] == whole.rows.tolist()
        assert abs(len(halves[0].rows) - len(halves[1].rows)) <= 1
        assert sum(half.n_src for half in halves) == whole.n_src
        assert sum(half.n_tgt for half in halves) == whole.n_tgt
        assert {half.place for half in halves} == {whole.place}
        for half in halves:
            assert (half.src != 0).any(0).all(), "no column holds only padding"
            assert (half.labels != 0).any(0).all()


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "world_size"), [(1, 2), (4, 3), (6, 7)])
def test_ranks_share_the_batches_of_a_step(corpus: EncodedCorpus, count: int, world_size: int) -> None:
    """Interleaved, the shares of all ranks equal the batches of a single process, also across the end of an epoch."""
    stream = make_stream(corpus)
    position = StreamPosition(0, len(stream.plan) - 5)
    for _ in range(4):
        whole, after = stream.take(position, count)
        shares = [make_stream(corpus).take(position, count, rank, world_size) for rank in range(world_size)]
        assert {found for _, found in shares} == {after}
        dealt = [shares[i % world_size][0][i // world_size] for i in range(count)]
        assert plain(dealt) == plain(whole)
        assert [batch.place for batch in dealt] == [(i, 0) for i in range(count)]
        assert sum(len(batches) for batches, _ in shares) == count
        position = after
