"""The tokenized corpus: filtered in pairs (trap 35), truncated before the end symbol (trap 33), counted and cached."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from helpers import read_folder

from transformer_mt.data import corpus as blocks
from transformer_mt.data import encoding
from transformer_mt.data.batches import BatchStream
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.encoding import (
    EncodedCorpus,
    EncodedSide,
    LengthLimit,
    LengthLimitCounts,
    SideArrays,
    encode_corpus,
)
from transformer_mt.data.stages import LocalRunner
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.prepare import encode_training

pytestmark = pytest.mark.usefixtures("workdir")

WriteCorpus = Callable[..., ParallelCorpus]

PAIRS = [
    ("a b c", "x y"),
    ("", "empty source"),
    ("empty target", " \t"),
    ("a a a a a a", "x"),
    ("a", "y y y y y y y"),
    ("\u2028", "\u00a0"),
    ("b c", "y x"),
    ("a b c d e", "x y z x y"),
]
LIMIT = LengthLimit(6, "drop")  # five tokens and the end symbol


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    """Tokenizers for which a letter with the space before it is one token."""
    config = TokenizerConfig(vocab_size=300, joint=False, min_frequency=1)
    pair = build_tokenizers(config, [("a b c d e" * 9, "x y z" * 9)])
    assert [len(ids) for ids in pair.src.encode(["a b c d e", "a"])] == [5, 1]
    return pair


def texts(encoded: EncodedCorpus, tokenizers: TokenizerPair) -> list[tuple[str, str]]:
    sides = zip((encoded.src, encoded.tgt), (tokenizers.src, tokenizers.tgt), strict=True)
    src, tgt = (tokenizer.decode([side[i].tolist() for i in range(len(side))]) for side, tokenizer in sides)
    return list(zip(src, tgt, strict=True))


def test_empty_and_long_pairs_are_dropped_as_pairs(write_corpus: WriteCorpus, tokenizers: TokenizerPair) -> None:
    found = encode_corpus(write_corpus(PAIRS), tokenizers, LIMIT, Path("cache"))
    assert texts(found, tokenizers) == [PAIRS[row] for row in (0, 6, 7)]
    assert found.find_text_rows(np.arange(len(found))).tolist() == [0, 6, 7]
    assert found.limit_counts == LengthLimitCounts(
        empty=3, too_long=2, truncated=0, examples={"empty": [1, 2, 5], "too_long": [3, 4]}
    )


def test_long_pairs_are_truncated_on_request(write_corpus: WriteCorpus, tokenizers: TokenizerPair) -> None:
    found = encode_corpus(write_corpus(PAIRS), tokenizers, LengthLimit(6, "truncate"), Path("cache"))
    expected = [PAIRS[0], ("a a a a a", "x"), ("a", "y y y y y"), PAIRS[6], PAIRS[7]]
    assert texts(found, tokenizers) == expected
    assert found.find_text_rows(np.arange(len(found))).tolist() == [0, 3, 4, 6, 7]
    assert found.limit_counts == LengthLimitCounts(
        empty=3, too_long=0, truncated=2, examples={"empty": [1, 2, 5], "truncated": [3, 4]}
    )


def test_a_truncated_pair_still_ends_in_eos(write_corpus: WriteCorpus, tokenizers: TokenizerPair) -> None:
    found = encode_corpus(write_corpus(PAIRS), tokenizers, LengthLimit(4, "truncate"), Path("cache"))
    (batch,) = BatchStream.plain(found, tokenizers, tokens=10_000, seed=1).shortest_first()
    assert batch.src.shape[1] == batch.labels.shape[1] == 4
    for ids, tokenizer in ((batch.src, tokenizers.src), (batch.labels, tokenizers.tgt)):
        assert all((row == tokenizer.eos_id).sum() == 1 for row in ids)


def test_lines_of_a_batch_are_those_of_the_file(write_corpus: WriteCorpus, tokenizers: TokenizerPair) -> None:
    corpus = write_corpus([*PAIRS, *[("a b c d", "x")] * 1500])
    found = encode_corpus(corpus, tokenizers, LIMIT, Path("cache"))
    (batch,) = BatchStream.plain(found, tokenizers, tokens=10_000, seed=1).shortest_first()
    assert found.describe_lines(np.array([2, 0, 1], np.int32)) == "t.en:8, t.en:1, t.en:7"
    assert batch.rows[:5].tolist() == [3, 4, 5, 6, 7]
    assert found.describe_lines(batch.rows) == "t.en:9, t.en:10, t.en:11, t.en:12, t.en:13, ... and 1,498 more"
    assert found.describe_lines(batch.rows[:6]).endswith("t.en:13, ... and 1 more")


def test_a_high_limit_keeps_every_pair(write_corpus: WriteCorpus, tokenizers: TokenizerPair) -> None:
    limit = LengthLimit(10_000, "drop", keep_empty=True)
    found = encode_corpus(write_corpus(PAIRS), tokenizers, limit, Path("cache"))
    assert texts(found, tokenizers) == PAIRS
    assert found.find_text_rows(np.arange(len(found))).tolist() == list(range(len(PAIRS)))
    assert found.limit_counts == LengthLimitCounts()


def test_pairs_that_normalise_to_nothing_are_empty(write_corpus: WriteCorpus) -> None:
    config = TokenizerConfig(vocab_size=300, min_frequency=1, normalization=("control_characters",))
    corpus = write_corpus([("a", "x"), ("\x07", "x"), ("a", "\x07")])
    found = encode_corpus(corpus, build_tokenizers(config, PAIRS), LIMIT, Path("cache"))
    assert (len(found), found.limit_counts) == (1, LengthLimitCounts(empty=2, examples={"empty": [1, 2]}))


def test_ids_are_16_bits_and_memory_mapped(write_corpus: WriteCorpus, tokenizers: TokenizerPair) -> None:
    found = encode_corpus(write_corpus(PAIRS), tokenizers, LIMIT, Path("cache"))
    for side in (found.src, found.tgt):
        assert isinstance(side[0], np.memmap)
        assert side[0].dtype == np.uint16
        lengths = side.lengths_of(0, len(side)).tolist()
        assert lengths == [len(side[i]) for i in range(len(side))]
        assert sum(lengths) == side.n_tokens


def test_encoded_side_joins_the_sentences_of_its_shards() -> None:
    first = SideArrays(np.array([5, 6, 7], np.int32), np.array([0, 2, 2, 3]))
    empty = SideArrays(np.array([], np.int32), np.array([0]))
    side = EncodedSide([first, empty, SideArrays(np.array([8, 9], np.int32), np.array([0, 1, 2]))])
    sentences = [[5, 6], [], [7], [8], [9]]
    assert [side[i].tolist() for i in range(len(side))] == sentences
    assert side.n_tokens == 5
    for start, end in combinations(range(6), 2):
        assert side.lengths_of(start, end).tolist() == [len(ids) for ids in sentences[start:end]]


def test_a_corpus_is_encoded_once_until_its_inputs_change(write_corpus: WriteCorpus, tokenizers: TokenizerPair) -> None:
    corpus, other_corpus = write_corpus(PAIRS), write_corpus(PAIRS[::-1])
    encode_corpus(corpus, tokenizers, LIMIT, Path("cache"))
    (cached,) = Path("cache").glob("encode-*/stage.json")
    (task,) = json.loads(cached.read_text(encoding="utf-8"))
    cached.write_text(json.dumps([{**task, "metadata": {"limited": {"empty": [99, []]}}}]), encoding="utf-8")
    assert encode_corpus(corpus, tokenizers, LIMIT, Path("cache")).limit_counts.empty == 99, "taken from the cache"
    for changed in (
        (other_corpus, tokenizers, LIMIT),
        (corpus, build_tokenizers(TokenizerConfig(vocab_size=300), PAIRS), LIMIT),
        (corpus, tokenizers, LengthLimit(7, "drop")),
        (corpus, tokenizers, LengthLimit(6, "truncate")),
        (corpus, tokenizers, LengthLimit(6, "drop", keep_empty=True)),
        (corpus.select(np.array([0]), "first"), tokenizers, LIMIT),
    ):
        assert encode_corpus(*changed, Path("cache")).limit_counts.empty != 99
    assert len([*Path("cache").glob("encode-*")]) == 7
    assert not [*Path("cache").glob(".ids-*")]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_ids_of_large_vocabularies_have_32_bits(vocab_size: int, dtype: type) -> None:
    assert encoding.id_type(vocab_size) is dtype


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("block_size", "shard_pairs"), [(3, 80), (8192, 7)])
def test_encoding_depends_neither_on_blocks_nor_on_shards(
    block_size: int,
    shard_pairs: int,
    write_corpus: WriteCorpus,
    tokenizers: TokenizerPair,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = encode_corpus(write_corpus(PAIRS * 10), tokenizers, LIMIT, Path("whole"))
    monkeypatch.setattr(blocks, "BLOCK_SIZE", block_size)
    monkeypatch.setattr(blocks, "SHARD_PAIRS", shard_pairs)
    found = encode_corpus(write_corpus(PAIRS * 10, "shards"), tokenizers, LIMIT, Path("shards"))
    assert len(found.text.shards) == -(-len(PAIRS) * 10 // shard_pairs)
    assert texts(found, tokenizers) == texts(whole, tokenizers)
    rows = np.arange(len(found))
    assert found.find_text_rows(rows).tolist() == whole.find_text_rows(rows).tolist()
    assert found.limit_counts == whole.limit_counts


@pytest.mark.slow
def test_several_processes_write_the_arrays_of_one(
    write_corpus: WriteCorpus, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SHARD_PAIRS", 20)
    corpus = write_corpus(PAIRS * 10)
    for workers in (1, 2):
        runner = LocalRunner(workers)
        encode_corpus(corpus, tokenizers, LengthLimit(6, "truncate"), Path(f"cache{workers}"), runner)
    assert read_folder(Path("cache1")) == read_folder(Path("cache2"))


def test_training_without_any_pair_left_is_refused(write_corpus: WriteCorpus, tokenizers: TokenizerPair) -> None:
    data = {"src_lang": "en", "tgt_lang": "de", "cache_dir": "cache", "max_length": 3}
    config = Config.model_validate({"data": {**data, "train": {"builtin": "quickstart"}}})
    with pytest.raises(UserError) as caught:
        encode_training(config, write_corpus([("a a a", "x"), ("", "x")]), tokenizers)
    assert str(caught.value) == (
        "data.train: none of 2 pairs is left: 1 have an empty side, 1 are longer than data.max_length 3"
    )
