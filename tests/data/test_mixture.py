"""Mixtures: shares of the sources, their order, tags, and the errors of a wrong configuration."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transformer_mt.data.batches import (
    Batch,
    BatchPlan,
    BatchReader,
    BatchStream,
    Mixture,
    PlannedBatch,
    StreamPosition,
    make_mixture,
)
from transformer_mt.data.corpus import Shard
from transformer_mt.data.data_config import DataConfig, TrainSource
from transformer_mt.data.encoding import EncodedCorpus, Lengths, Rows
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration

SIZES = {"a": 60, "b": 30, "c": 10}


def source(name: str, **keys: Any) -> TrainSource:
    return TrainSource.model_validate({"name": name, "src": "s", "tgt": "t", **keys})


def mixture_of(sources: Sequence[TrainSource], n_batches: Sequence[int], temperature: float = 1.0) -> Mixture:
    data = DataConfig.model_construct(train=tuple(sources), temperature=temperature)
    return make_mixture(data, n_batches, seed=1)


# --- shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "temperature", "expected"),
    [
        ({}, 1.0, [0.6, 0.3, 0.1]),
        ({}, 5.0, [60**0.2, 30**0.2, 10**0.2]),
        ({"a": {"weight": 1}, "b": {"weight": 0}, "c": {"weight": 3}}, 1.0, [0.25, 0, 0.75]),
    ],
)
def test_measured_shares_equal_the_configured_ones(
    keys: dict[str, dict[str, float]], temperature: float, expected: Sequence[float]
) -> None:
    sources = [source(name, **keys.get(name, {})) for name in SIZES]
    mixture = mixture_of(sources, [*SIZES.values()], temperature=temperature)
    n = 4000
    counts = np.bincount([mixture.choose(number) for number in range(n)], minlength=3)
    shares = np.array(expected) / sum(expected)
    deviation = np.sqrt(n * shares * (1 - shares))  # of a binomial distribution
    assert (np.abs(counts - n * shares) <= 4 * deviation).all()


# --- the stream -------------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(make_corpus: Callable[..., EncodedCorpus]) -> EncodedCorpus:
    """100 pairs of three sources. All tokens of a row are 10 + row."""
    lengths = np.random.default_rng(1).integers(1, 9, (100, 2)).tolist()
    found = make_corpus(
        [[10 + i] * s for i, (s, _) in enumerate(lengths)], [[10 + i] * t for i, (_, t) in enumerate(lengths)]
    )
    shards = [Shard(Path(), size, []) for size in SIZES.values()]
    text = dataclasses.replace(found.text, shards=shards, source_sizes=SIZES)
    rows = np.split(found.text_rows[0], np.cumsum([*SIZES.values()])[:-1])
    return dataclasses.replace(found, text=text, text_rows=rows)


def make_stream(
    corpus: EncodedCorpus, tokenizers: TokenizerPair, tags: Sequence[str | None] = (None,) * 3
) -> BatchStream:
    sources = [source("a", weight=1), source("b", weight=1), source("c", weight=2)]
    reader = BatchReader(corpus, tokenizers, tags)
    plan = BatchPlan(reader.bounds, reader.read_lengths, 40, 1, lambda sizes: mixture_of(sources, sizes))
    return BatchStream(plan, reader)


def contents(batches: Sequence[Batch]) -> list[list[list[int]]]:
    return [[*batch.src.tolist(), *batch.labels.tolist()] for batch in batches]


def test_the_batches_of_a_source_pass_through_its_epochs(
    corpus: EncodedCorpus, small_tokenizers: TokenizerPair
) -> None:
    stream = make_stream(corpus, small_tokenizers)
    batches, position = stream.take(StreamPosition(), 200)
    for number, (first, end) in enumerate(pairwise(corpus.source_bounds().tolist())):
        of_source = [batch for batch in batches if batch.source_index == number]
        n_epochs = len(of_source) // len(stream.plan.sources[number])
        assert n_epochs >= 1 and position.n_taken[number] == len(of_source)
        for epoch in range(n_epochs):
            size = len(stream.plan.sources[number])
            rows = np.concatenate([batch.rows for batch in of_source[epoch * size : (epoch + 1) * size]])
            assert sorted(rows.tolist()) == [*range(first, end)]
    assert position.epoch * len(stream.plan) + position.index == 200 == sum(position.n_taken)


def test_every_batch_has_pairs_of_one_source(corpus: EncodedCorpus, small_tokenizers: TokenizerPair) -> None:
    stream = make_stream(corpus, small_tokenizers)
    for batch in [*stream.take(StreamPosition(), 60)[0], *stream.shortest_first()]:
        first, end = corpus.source_bounds()[batch.source_index : batch.source_index + 2]
        assert ((batch.rows >= first) & (batch.rows < end)).all()
        assert batch.src[:, 0].tolist() == (batch.rows + 10).tolist()


@pytest.mark.parametrize("cuts", [[1] * 30, [7, 13, 10]])
def test_batches_do_not_depend_on_where_the_stream_is_resumed(
    cuts: list[int], corpus: EncodedCorpus, small_tokenizers: TokenizerPair
) -> None:
    whole, end = make_stream(corpus, small_tokenizers).take(StreamPosition(), 30)
    position, parts = StreamPosition(), list[Batch]()
    for count in cuts:
        batches, position = make_stream(corpus, small_tokenizers).take(position, count)
        parts += batches
    assert (contents(parts), position) == (contents(whole), end)


# --- tags -------------------------------------------------------------------------------------------------------------


def test_a_tag_precedes_each_source_and_counts_as_a_token(
    corpus: EncodedCorpus, small_tokenizers: TokenizerPair
) -> None:
    tagged = small_tokenizers.with_tags(["2de", "2fr"], is_needed=False)
    first = tagged.src.eos_id + 1
    assert tagged.src.vocab_size == tagged.tgt.vocab_size == small_tokenizers.src.vocab_size + 2
    stream = make_stream(corpus, tagged, ["2fr", None, "2de"])
    for batch in stream.shortest_first():
        expected = {0: first + 1, 1: None, 2: first}[batch.source_index]
        tokens = torch.from_numpy(batch.rows + 10)
        if expected is not None:
            assert (batch.src[:, 0] == expected).all()
        assert torch.equal(batch.src[:, int(expected is not None)], tokens)
        assert batch.n_src == int((batch.src != tagged.src.pad_id).sum())
        assert batch.src.numel() <= 2 * 40 or len(batch.rows) == 1


@pytest.mark.parametrize("is_joint", [True, False])
def test_a_symbol_precedes_each_target_and_is_a_label(
    corpus: EncodedCorpus, small_tokenizers: TokenizerPair, is_joint: bool
) -> None:
    tgt = small_tokenizers.tgt if is_joint else Tokenizer(small_tokenizers.tgt.backend)
    pair = TokenizerPair(small_tokenizers.src, tgt).with_tags(["en:de", ":fr", "de:en"], is_needed=True)
    assert pair.to_dict() == TokenizerPair.from_dict(pair.to_dict()).to_dict()
    assert (pair.src.tag_symbols, pair.tgt.tag_symbols) == (
        (("en", "de", "fr"),) * 2 if is_joint else (("en", "de"), ("de", "fr", "en"))
    )
    stream, tgt = make_stream(corpus, pair, [":fr", "en:de", "de:en"]), pair.tgt
    for batch in stream.shortest_first():
        src_tag, tgt_tag = [(None, "fr"), ("en", "de"), ("de", "en")][batch.source_index]
        for i, (src_ids, tgt_ids) in enumerate(zip(*stream.reader.read(batch.rows)[:2], strict=True)):
            first = [] if src_tag is None else [pair.src.tag_symbol_id(src_tag)]
            target = [tgt.tag_symbol_id(tgt_tag), *tgt_ids]
            expected = {"src": [*first, *src_ids, pair.src.eos_id], "tgt_in": [tgt.bos_id, *target]}
            for name, ids in {**expected, "labels": [*target, tgt.eos_id]}.items():
                found = getattr(batch, name)[i].tolist()
                assert found[: len(ids)] == ids and {*found[len(ids) :]} <= {tgt.pad_id}
        assert batch.n_tgt == int((batch.labels != tgt.pad_id).sum())
        assert batch.n_src == int((batch.src != pair.src.pad_id).sum())
        assert batch.labels.numel() <= 40 or len(batch.rows) == 1


def test_a_combination_of_symbols_has_their_languages() -> None:
    sources = [
        source("a", tag="x:y", src_lang="en", tgt_lang="de"),
        source("b", tag="z:x", src_lang="fr", tgt_lang="en"),
    ]
    data = DataConfig(src_lang="en", tgt_lang="de", train=tuple(sources))
    assert data.languages_of("x:y") == ("en", "de") and data.languages_of("z:x") == ("fr", "en")
    assert data.languages_of("z:y") == ("fr", "de") and data.source_languages_of("z:y") == ("fr",)
    with pytest.raises(UserError, match="unknown tag y:x; the model knows: x:y, z:x"):
        data.languages_of("y:x")


def test_no_text_encodes_to_a_tag(small_tokenizers: TokenizerPair) -> None:
    tagged = small_tokenizers.with_tags(["2de"], is_needed=True)
    (ids,) = tagged.src.encode(["<2de> 2de ⟨2de⟩"])
    assert max(ids) < tagged.src.pad_id
    assert tagged.src.tokens([tagged.src.tag_symbol_id("2de")]) == ["<2de>"]
    assert TokenizerPair.from_dict(tagged.to_dict()).to_dict() == tagged.to_dict()
    assert TokenizerPair.from_dict(tagged.to_dict()).needs_tag
    assert "tags" not in small_tokenizers.to_dict()


# --- wrong configurations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("train: [{src: s, tgt: t}]", "data.train.0.name: is required"),
        ("train: [{name: a, src: s, tgt: t}, {name: a, src: s, tgt: t}]", "data.train.1.name: a is the name of an"),
        ("train: [{name: a, src: s, tgt: t, weight: 0}, {name: b, src: s, tgt: t, weight: 0}]", "data.train: all"),
        ("train: [{name: a, src: s, tgt: t, weight: 1}, {name: b, src: s, tgt: t}]", "data.train.1: has no weight"),
        ("train: {src: s, tgt: t}\n  stages: []", "data.stages: was removed"),
        ("train: {src: s, tgt: t, tag: <2de>}", 'data.train.tag: "<2de>" is not a tag'),
        ("train: {src: s, tgt: t, tag: 'a:'}", 'data.train.tag: "a:" is not a tag'),
        ("train: [{name: a, src: s, tgt: t, tag: 'a:b'}, {name: b, src: s, tgt: t, tag: b}]", "data.train: some tags"),
        ("train: {src: s, tgt: t, tag: 'a:b'}\ndecoding: {tag: 'b:a'}", "decoding.tag: no training source has the tag"),
        ("train: {src: s, tgt: t, tag: 2de}\ndecoding: {tag: 2fr}", "decoding.tag: no training source has the tag 2fr"),
    ],
)  # fmt: skip
def test_wrong_mixtures_are_refused_with_file_line_and_key(data: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"train: {{max_steps: 90}}\ndata:\n  src_lang: en\n  tgt_lang: de\n  {data}\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        configuration.load(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


# --- Order: every pair once per epoch, as a function of seed and epoch ------------------------------------------------

N, TOKENS = 103, 60
LENGTHS = np.random.default_rng(1).integers(1, 21, (2, N)).astype(np.int32)


def read_lengths(start: int, end: int) -> tuple[Lengths, Lengths]:
    return LENGTHS[0, start:end], LENGTHS[1, start:end]


def make_plan(seed: int = 1) -> BatchPlan:
    return BatchPlan([0, N], read_lengths, TOKENS, seed)


def epoch_of(plan: BatchPlan, epoch: int) -> list[Rows]:
    return [plan.rows(planned) for planned in plan.take(StreamPosition(epoch), len(plan))[0]]


def as_lists(batches: Iterable[Rows]) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


@pytest.mark.parametrize("bounds", [[0, N], [0, 40, N]])
def test_an_epoch_holds_every_pair_once(bounds: list[int]) -> None:
    plan = BatchPlan(bounds, read_lengths, TOKENS, 1)
    assert sorted(np.concatenate([*plan.shortest_first()]).tolist()) == list(range(N))
    for source, (first, end) in enumerate(pairwise(bounds)):
        for epoch in (0, 7):
            rows = [plan.rows(PlannedBatch(source, epoch, number)) for number in range(len(plan.sources[source]))]
            assert sorted(np.concatenate(rows).tolist()) == list(range(first, end))


def test_order_depends_on_seed_and_epoch() -> None:
    orders = [as_lists(epoch_of(make_plan(seed), epoch)) for seed, epoch in ((1, 0), (1, 1), (2, 0), (1, 0))]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_shapes_are_those_of_the_batches() -> None:
    plan = make_plan()
    batches = [*plan.shortest_first()]
    found = [(len(rows), *(LENGTHS[side, rows].max() for side in (0, 1))) for rows in batches]
    assert found == [*map(tuple, plan.shapes.tolist())]
    assert all(n == 1 or (n * tgt <= TOKENS and n * src <= 2 * TOKENS) for n, src, tgt in found)
    assert as_lists(map(plan.rows_of_shape, range(len(found)))) == as_lists(batches)
    for epoch in (0, 1):
        assert Counter(map(len, epoch_of(plan, epoch))) == Counter(n for n, *_ in found)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_resumed_stream_yields_the_same_batches(
    world_size: int, make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair
) -> None:
    """Steps of three batches span epochs. Ranks share them."""
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
