"""Batches: what stands in one (traps 17 and 18), what it may cost, and an order that is a value (trap 42)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition, collate_sources
from transformer_mt.data.bucketing import BucketedBatches
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

MakeCorpus = Callable[..., EncodedCorpus]


@dataclass(frozen=True)
class Symbols:
    """What batching knows of a tokenizer."""

    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2


def pair_of(src: Any, tgt: Any, source_bos: bool = False) -> TokenizerPair:
    return TokenizerPair(src, tgt, source_bos)


def make_stream(
    corpus: EncodedCorpus, tokens: int = 60, seed: int = 1, src: Symbols = Symbols(), tgt: Symbols = Symbols()
) -> BatchStream:
    return BatchStream(corpus, pair_of(src, tgt), tokens, seed)


@pytest.fixture
def corpus(make_corpus: MakeCorpus) -> EncodedCorpus:
    """A hundred pairs; every source begins with its row's number, and lengths go from 1 to 20."""
    dice = np.random.default_rng(1)
    lengths = dice.integers(1, 21, (100, 2))
    return make_corpus(
        [[100 + i] * s for i, (s, _) in enumerate(lengths)], [[100 + i] * t for i, (_, t) in enumerate(lengths)]
    )


def rows(batch: Batch) -> list[int]:
    """Which pairs of `corpus` a batch holds."""
    assert torch.equal(batch.src[:, 0], batch.labels[:, 0]), "source and target belong together"
    return (batch.src[:, 0] - 100).tolist()


def plain(batches: Sequence[Batch]) -> list[list[list[int]]]:
    """To be compared."""
    return [[*batch.src.tolist(), *batch.tgt_in.tolist(), *batch.labels.tolist()] for batch in batches]


# --- one batch --------------------------------------------------------------------------------------------------------


def test_a_batch_by_hand(make_corpus: MakeCorpus) -> None:
    """Trap 18: the decoder reads BOS + target and has to say target + EOS; the encoder reads source + EOS."""
    stream = make_stream(make_corpus([[7, 8, 9], [5]], [[6], [11, 12]]))
    batch = stream.collate(np.array([0, 1]))
    assert batch.src.tolist() == [[7, 8, 9, 2], [5, 2, 0, 0]]
    assert batch.tgt_in.tolist() == [[1, 6, 0], [1, 11, 12]]
    assert batch.labels.tolist() == [[6, 2, 0], [11, 12, 2]]
    assert (batch.n_src, batch.n_tgt) == (4 + 2, 2 + 3)
    assert {part.dtype for part in (batch.src, batch.tgt_in, batch.labels)} == {torch.int64}


def test_each_side_has_its_own_symbols(make_corpus: MakeCorpus) -> None:
    """Trap 17."""
    stream = make_stream(make_corpus([[7, 8], [5]], [[6], [11, 12]]), src=Symbols(40, 41, 42), tgt=Symbols(50, 51, 52))
    batch = stream.collate(np.array([1, 0]))
    assert batch.src.tolist() == [[5, 42, 40], [7, 8, 42]]
    assert batch.tgt_in.tolist() == [[51, 11, 12], [51, 6, 50]]
    assert batch.labels.tolist() == [[11, 12, 52], [6, 52, 50]]


def test_sources_begin_with_bos_where_the_tokenizers_say_so(make_corpus: MakeCorpus) -> None:
    """In training as in translating, and the budget knows it."""
    tokenizers = pair_of(Symbols(40, 41, 42), Symbols(50, 51, 52), source_bos=True)
    stream = BatchStream(make_corpus([[7, 8], [5], []], [[6], [11, 12], [9]]), tokenizers, 60, 1)
    batch = stream.collate(np.array([0, 1, 2]))
    assert batch.src.tolist() == [[41, 7, 8, 42], [41, 5, 42, 40], [41, 42, 40, 40]]
    assert batch.tgt_in.tolist() == [[51, 6, 50], [51, 11, 12], [51, 9, 50]]
    assert batch.n_src == (batch.src != 40).sum() == 9
    assert torch.equal(collate_sources([[7, 8], [5], []], tokenizers), batch.src)
    long = BatchStream(make_corpus([[7] * 9] * 4, [[6]] * 4), tokenizers, 11, 1)
    assert [len(batch.src) for batch in long.shortest_first()] == [2, 2]  # two of 9 + 2 are within 2 * 11


def test_an_empty_sentence(make_corpus: MakeCorpus) -> None:
    """As validation may have one: it is an end symbol, and it counts."""
    batch = make_stream(make_corpus([[]], [[]])).collate(np.array([0]))
    assert (batch.src.tolist(), batch.tgt_in.tolist(), batch.labels.tolist()) == ([[2]], [[1]], [[2]])
    assert (batch.n_src, batch.n_tgt) == (1, 1)


def test_what_the_translator_encodes_is_what_training_encoded(corpus: EncodedCorpus) -> None:
    symbols = pair_of(Symbols(), Symbols())
    chosen = np.array([3, 1, 4])
    sources = [corpus.src[row].tolist() for row in chosen]
    assert torch.equal(collate_sources(sources, symbols), make_stream(corpus).collate(chosen).src)


def test_numbers_of_what_is_not_padding(corpus: EncodedCorpus) -> None:
    for batch in make_stream(corpus).shortest_first():
        assert batch.n_src == (batch.src != 0).sum()
        assert batch.n_tgt == (batch.labels != 0).sum() == (batch.tgt_in != 0).sum()


def test_a_batch_moves_as_a_whole(corpus: EncodedCorpus) -> None:
    batch = make_stream(corpus).collate(np.array([1, 2]))
    moved = batch.to(torch.device("meta"))
    parts: list[Tensor] = [moved.src, moved.tgt_in, moved.labels]
    assert [part.device.type for part in parts] == ["meta"] * 3
    assert (moved.n_src, moved.n_tgt) == (batch.n_src, batch.n_tgt)
    assert [part.shape for part in parts] == [batch.src.shape, batch.tgt_in.shape, batch.labels.shape]


# --- how they are cut -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 20, 21, 60, 200, 10**6])
def test_budgets(corpus: EncodedCorpus, tokens: int) -> None:
    """Padded targets within the budget, padded sources within twice as much; only a row alone may be longer."""
    batches = list(make_stream(corpus, tokens).shortest_first())
    for batch in batches:
        assert len(batch.src) == 1 or (batch.labels.numel() <= tokens and batch.src.numel() <= 2 * tokens)
    assert (len(batches) == 1) == (tokens == 10**6)
    assert (len(batches) == len(corpus)) == (tokens == 1)


def test_shapes_are_those_of_every_epoch(corpus: EncodedCorpus) -> None:
    """So the largest batch is known before the first."""
    stream = make_stream(corpus)
    for epoch in (0, 3):
        batches, _ = stream.take(StreamPosition(epoch), len(stream))
        found = sorted((len(batch.src), batch.src.size(1), batch.labels.size(1)) for batch in batches)
        assert found == sorted(map(tuple, stream.bucketed.shapes.tolist()))


def test_sentences_beyond_sixteen_bits(make_corpus: MakeCorpus) -> None:
    """The sort of short lengths is another than that of long ones."""
    lengths = [70_000, 3, 65_536, 1, 65_535]
    stream = make_stream(make_corpus([[5] * n for n in lengths], [[6]] * 5), tokens=1)
    assert [batch.rows.tolist() for batch in stream.shortest_first()] == [[3], [1], [4], [2], [0]]


def test_long_sources_make_small_batches() -> None:
    """The source's budget binds where targets are short, also behind a longer one of a shorter target."""
    bucketed = BucketedBatches(np.array([10, 3, 3, 3, 3], np.int32), np.array([1, 2, 2, 2, 2], np.int32), 20)
    assert [batch.tolist() for batch in bucketed.shortest_first()] == [[0, 1, 2, 3], [4]]
    assert bucketed.shapes.tolist() == [[4, 10, 2], [1, 3, 2]]


def test_a_batch_takes_what_it_can(corpus: EncodedCorpus) -> None:
    """No batch could have taken the first row of the next one."""
    batches = list(make_stream(corpus, 60).shortest_first())
    for batch, following in itertools.pairwise(batches):
        size = len(batch.src) + 1
        tgt = 1 + int((following.labels[0] != 0).sum()) - 1
        src = max(batch.src.size(1), int((following.src[0] != 0).sum()))
        assert size * tgt > 60 or size * src > 120


def test_like_lengths_stand_together(corpus: EncodedCorpus) -> None:
    padded = sum(batch.labels.numel() for batch in make_stream(corpus).shortest_first())
    assert padded < 1.1 * sum(batch.n_tgt for batch in make_stream(corpus).shortest_first())


def test_one_very_long_row_is_a_batch_of_its_own(make_corpus: MakeCorpus) -> None:
    stream = make_stream(make_corpus([[5], [5] * 999, [5]], [[6] * 50, [6], [6]]), tokens=10)
    assert sorted(batch.src.shape + batch.labels.shape for batch in stream.shortest_first()) == [
        (1, 2, 1, 2),
        (1, 2, 1, 51),
        (1, 1000, 1, 2),
    ]


def test_validation_sees_every_pair_once_and_always_alike(corpus: EncodedCorpus) -> None:
    first, again = (list(make_stream(corpus, seed=seed).shortest_first()) for seed in (1, 2))
    assert sorted(row for batch in first for row in rows(batch)) == list(range(len(corpus)))
    assert plain(first) == plain(again)


# --- the order of an epoch --------------------------------------------------------------------------------------------


def epoch_rows(stream: BatchStream, epoch: int) -> list[int]:
    batches, after = stream.take(StreamPosition(epoch), len(stream.plan(epoch)))
    assert after == StreamPosition(epoch + 1, 0)
    return [row for batch in batches for row in rows(batch)]


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_an_epoch_holds_every_pair_once(corpus: EncodedCorpus, epoch: int) -> None:
    found = epoch_rows(make_stream(corpus), epoch)
    assert sorted(found) == list(range(len(corpus)))
    assert found != sorted(found)


def test_the_order_is_a_pure_function_of_seed_and_epoch(corpus: EncodedCorpus) -> None:
    """Trap 42: whatever was asked for before, and whatever the global random state."""
    first, second = make_stream(corpus), make_stream(corpus)
    wanted = {epoch: epoch_rows(first, epoch) for epoch in (0, 1, 2, 3)}
    np.random.seed(7)
    assert {epoch: epoch_rows(second, epoch) for epoch in (3, 0, 2, 1, 3)} == wanted
    orders = [*wanted.values(), epoch_rows(make_stream(corpus, seed=2), 0), epoch_rows(make_stream(corpus, seed=2), 1)]
    assert len(set(map(tuple, orders))) == len(orders)


def test_pairs_of_a_length_meet_in_other_batches(make_corpus: MakeCorpus) -> None:
    stream = make_stream(make_corpus([[5]] * 50, [[6]] * 50), tokens=10)
    first, second = ({frozenset(batch.tolist()) for batch in stream.plan(epoch)} for epoch in (0, 1))
    assert not first & second


def test_lengths_come_in_any_order(corpus: EncodedCorpus) -> None:
    first, second = ([int(corpus.tgt.lengths[batch].max()) for batch in make_stream(corpus).plan(i)] for i in (0, 1))
    assert sorted(first) == sorted(second)
    assert sorted(first) != first != second


# --- the place in the stream ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_end", [1, 2, 3, 5])
def test_taking_three_is_three_times_taking_one(corpus: EncodedCorpus, from_end: int) -> None:
    """Trap 42: inside an epoch, up to its end, and across it."""
    stream = make_stream(corpus)
    position = start = StreamPosition(1, len(stream.plan(1)) - from_end)
    together, end = stream.take(start, 3)
    single: list[Batch] = []
    for _ in range(3):
        batches, position = make_stream(corpus).take(position, 1)
        single += batches
    assert plain(single) == plain(together)
    assert position == end == (StreamPosition(1, start.index + 3) if from_end > 3 else StreamPosition(2, 3 - from_end))


def test_the_stream_is_its_epochs_one_after_another(corpus: EncodedCorpus) -> None:
    stream = make_stream(corpus)
    first, second = (len(stream.plan(epoch)) for epoch in (0, 1))
    taken, end = stream.take(StreamPosition(), first + second + 1)
    assert end == StreamPosition(2, 1)
    wanted = [*stream.plan(0), *stream.plan(1), stream.plan(2)[0]]
    assert [rows(batch) for batch in taken] == [batch.tolist() for batch in wanted]


def test_taking_nothing_moves_nothing(corpus: EncodedCorpus) -> None:
    assert make_stream(corpus).take(StreamPosition(3, 2), 0) == ([], StreamPosition(3, 2))


def test_a_corpus_of_one_pair(make_corpus: MakeCorpus) -> None:
    batches, end = make_stream(make_corpus([[5]], [[6]])).take(StreamPosition(), 3)
    assert [batch.src.tolist() for batch in batches] == [[[5, 2]]] * 3
    assert end == StreamPosition(3, 0)


# --- what a batch knows of itself -------------------------------------------------------------------------------------


def test_a_batch_knows_its_rows_and_its_epoch(corpus: EncodedCorpus) -> None:
    stream = make_stream(corpus)
    batches, _ = stream.take(StreamPosition(2, len(stream) - 2), 4)
    assert [batch.epoch for batch in batches] == [2, 2, 3, 3]
    assert all(rows(batch) == batch.rows.tolist() for batch in batches)
    (moved,) = (batch.to(torch.device("meta")) for batch in batches[:1])
    assert (moved.rows.tolist(), moved.epoch) == (batches[0].rows.tolist(), 2)
    assert {batch.epoch for batch in stream.shortest_first()} == {None}


def pairs_of(batch: Batch) -> list[tuple[list[int], ...]]:
    """The pairs of a batch without their padding, 0."""
    parts = zip(batch.src.tolist(), batch.tgt_in.tolist(), batch.labels.tolist(), strict=True)
    return [tuple([i for i in ids if i] for ids in pair) for pair in parts]


@pytest.mark.parametrize("epoch", [None, 0, 5])
def test_halves_hold_exactly_the_pairs_of_the_whole(corpus: EncodedCorpus, epoch: int | None) -> None:
    stream = make_stream(corpus)
    for picked in stream.plan(epoch or 0):
        whole = stream.collate(picked, epoch)
        if len(picked) < 2:
            continue
        halves = stream.halve(whole)
        assert pairs_of(halves[0]) + pairs_of(halves[1]) == pairs_of(whole)
        assert [*halves[0].rows, *halves[1].rows] == whole.rows.tolist()
        assert abs(len(halves[0].rows) - len(halves[1].rows)) <= 1
        assert sum(half.n_src for half in halves) == whole.n_src
        assert sum(half.n_tgt for half in halves) == whole.n_tgt
        assert {half.epoch for half in halves} == {epoch}
        for half in halves:
            assert (half.src != 0).any(0).all(), "no column is padding alone"
            assert (half.labels != 0).any(0).all()


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_processes_share_the_batches_of_a_step(corpus: EncodedCorpus, count: int, size: int) -> None:
    """What all of them get is what one would get, in turn, whatever their number, also across the ends of epochs."""
    stream = make_stream(corpus)
    position = StreamPosition(0, len(stream) - 5)
    for _ in range(4):
        whole, after = stream.take(position, count)
        shares = [make_stream(corpus).take(position, count, rank, size) for rank in range(size)]
        assert {found for _, found in shares} == {after}
        dealt = [shares[i % size][0][i // size] for i in range(count)]
        assert plain(dealt) == plain(whole)
        assert sum(len(batches) for batches, _ in shares) == count
        position = after
