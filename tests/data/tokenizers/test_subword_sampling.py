"""Subword sampling: same text, distribution of the papers, and a pure function of seed, epoch, side and row."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import tokenizers as hf
import torch
from helpers import make_modified_stream
from tokenizers import models

from transformer_mt.data.batches import Batch, BatchModifier, BatchStream, StreamPosition
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.tools.augmentation.subword_sampling import (
    BpeVocabulary,
    SubwordSampler,
    sample_pairs,
)

PAIRS = load_pairs("test")[:120]
TEXTS = [
    *(text for pair in PAIRS[:60] for text in pair),
    "語 and 語",
    "",
    " ",
    "  two  spaces ",
    "<0x41></s>",
    "\ufffd?",
]
DRAWS = 10_000


@pytest.fixture(scope="module", params=["bpe", "byte_bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return build_tokenizers(TokenizerConfig(kind=request.param, vocab_size=480), PAIRS).src


def resample(tokenizer: Tokenizer, rate: float, epoch: int = 0, seed: int = 1, longest: int = 999) -> list[list[int]]:
    resample = SubwordSampler(tokenizer, rate, seed, longest)
    return [resample(ids, epoch, 0, row) for row, ids in enumerate(tokenizer.encode(TEXTS))]


# --- distribution -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_every_segmentation_decodes_to_the_same_text(tokenizer: Tokenizer, rate: float) -> None:
    assert tokenizer.decode(resample(tokenizer, rate)) == TEXTS


def test_rate_0_gives_the_canonical_segmentation(tokenizer: Tokenizer) -> None:
    assert resample(tokenizer, 0.0) == tokenizer.encode(TEXTS)


def frequencies(draw: Callable[[], Sequence[int]]) -> dict[tuple[int, ...], float]:
    counts = Counter(tuple(draw()) for _ in range(DRAWS))
    return {ids: count / DRAWS for ids, count in counts.items()}


def assert_same_distribution(
    left: dict[tuple[int, ...], float], right: dict[tuple[int, ...], float], error: float
) -> None:
    """Assert that frequencies differ by at most `error` standard deviations."""
    for ids in {**left, **right}:
        a, b = left.get(ids, 0.0), right.get(ids, 0.0)
        assert abs(a - b) <= error * math.sqrt(max(a, b) * (1 - min(a, b)) / DRAWS) + 1 / DRAWS, (ids, a, b)


def naive_bpe_dropout(word: str, merges: list[tuple[str, str]], rate: float, rng: random.Random) -> list[str]:
    """Apply algorithm 1 of Provilkov et al. 2020 literally."""
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    split = [*word]
    while True:
        possible = [(ranks[pair], i) for i in range(len(split) - 1) if (pair := (split[i], split[i + 1])) in ranks]
        kept = [merge for merge in possible if rng.random() >= rate]
        if not kept:
            return split
        _, i = min(kept)
        split[i : i + 2] = [split[i] + split[i + 1]]


@pytest.mark.parametrize(("rate", "word"), [(0.1, "banana"), (0.4, "aaaa"), (0.8, "banana")])
def test_bpe_dropout_matches_algorithm_1_of_the_paper(rate: float, word: str) -> None:
    merges = [("a", "n"), ("b", "an"), ("an", "a"), ("a", "a"), ("ban", "ana"), ("aa", "aa"), ("n", "a")]
    entries = ["a", "b", "n", *dict.fromkeys(left + right for left, right in merges)]
    vocab = {entry: i for i, entry in enumerate(entries)}
    words = BpeVocabulary({"vocab": vocab, "merges": merges, "byte_fallback": False}, rate)
    made, rng = words.make_draw(word), random.Random(1)
    assert made is not None
    ours = frequencies(lambda: made(random.Random(rng.random()).random))
    naive = frequencies(lambda: [vocab[piece] for piece in naive_bpe_dropout(word, merges, rate, rng)])
    assert len(ours) > 2
    assert_same_distribution(ours, naive, error=7)


def test_long_word_does_not_overflow() -> None:
    words = BpeVocabulary({"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [("a", "b")], "byte_fallback": False}, 0.5)
    made = words.make_draw("ab" * 500)
    assert made is not None
    assert len(made(random.Random(1).random)) >= 500


# --- determinism and exceptions ---------------------------------------------------------------------------------------


def test_same_seed_epoch_and_row_give_the_same_ids(tokenizer: Tokenizer) -> None:
    """Trap 42: independent of earlier calls and of the caches."""
    first, second = SubwordSampler(tokenizer, 0.5, 1, 999), SubwordSampler(tokenizer, 0.5, 1, 999)
    coded = tokenizer.encode(TEXTS)
    wanted = {(e, row): first(ids, e, 0, row) for e in (0, 1) for row, ids in enumerate(coded)}
    for (epoch, row), expected in reversed(wanted.items()):
        assert second(coded[row], epoch, 0, row) == expected


def test_seed_epoch_side_and_row_all_change_the_ids(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode([" ".join(TEXTS[:5])])
    found = [
        SubwordSampler(tokenizer, 0.5, seed, 9999)(ids, epoch, side, row)
        for seed, epoch, side, row in ((1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1))
    ]
    assert len(set(map(tuple, found))) == len(found)


def test_sentence_that_would_exceed_max_length_is_unchanged(tokenizer: Tokenizer) -> None:
    coded = tokenizer.encode(TEXTS)
    longest = max(map(len, coded))
    drawn = resample(tokenizer, 0.9, longest=longest)
    free = resample(tokenizer, 0.9)
    assert max(map(len, drawn)) <= longest < max(map(len, free))
    assert drawn == [other if len(other) <= longest else ids for ids, other in zip(coded, free, strict=True)]


def test_ids_truncated_inside_a_character_are_unchanged(tokenizer: Tokenizer) -> None:
    """`data.too_long: truncate` may produce such ids."""
    (ids,) = tokenizer.encode(["a\U0001f600"])
    for end in (len(ids) - 1, len(ids) - 2):
        assert SubwordSampler(tokenizer, 1.0, 1, 999)(ids[:end], 0, 0, 0) == ids[:end]


@pytest.mark.parametrize("space", [" ", "\u2581"])
def test_sentence_without_pre_tokenizer_is_sampled_word_by_word(space: str) -> None:
    """SentencePiece has no pre-tokenizer. Dropout over a whole sentence would be undone by its many other merges."""
    ours = build_tokenizers(TokenizerConfig(vocab_size=480), PAIRS).src
    texts = [src for src, _ in PAIRS]
    about = json.loads(ours.to_json().replace(" ", space) if space != " " else ours.to_json())
    steps = [{"type": "Replace", "pattern": {"String": " "}, "content": space}] if space != " " else []
    if steps:
        about["normalizer"] = {"type": "Sequence", "normalizers": [*filter(None, [about["normalizer"]]), *steps]}
    about["pre_tokenizer"] = None
    whole = Tokenizer(hf.Tokenizer.from_str(json.dumps(about)))

    canonical = ours.encode(texts)
    assert whole.encode(texts) == canonical
    found, wanted = (
        [SubwordSampler(tokenizer, 0.1, 1, 999)(ids, 0, 0, row) for row, ids in enumerate(canonical)]
        for tokenizer in (whole, ours)
    )
    assert found == wanted
    assert sum(ids != other for ids, other in zip(wanted, canonical, strict=True)) > 0.5 * len(texts)


def test_word_with_unknown_characters_is_unchanged() -> None:
    model = models.BPE({"a": 0, "b": 1, "ab": 2, "?": 3}, [("a", "b")], unk_token="?")
    tokenizer = Tokenizer(hf.Tokenizer(model))
    (ids,) = tokenizer.encode(["abcab"])
    assert SubwordSampler(tokenizer, 1.0, 1, 999)(ids, 0, 0, 0) == ids == [2, 3, 2]


def test_end_of_word_suffix_is_refused() -> None:
    model = models.BPE({"a": 0, "b</w>": 1}, [], end_of_word_suffix="</w>")
    with pytest.raises(UserError, match=r"tokenizer\.sampling: .* mark the ends of words"):
        SubwordSampler(Tokenizer(hf.Tokenizer(model)), 0.1, 1, 999)


# --- in batches -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return build_tokenizers(TokenizerConfig(vocab_size=480, joint=False), PAIRS)


@pytest.fixture
def corpus(tokenizers: TokenizerPair, make_corpus: Callable[..., EncodedCorpus]) -> EncodedCorpus:
    return make_corpus(
        tokenizers.src.encode([src for src, _ in PAIRS]), tokenizers.tgt.encode([tgt for _, tgt in PAIRS])
    )


def make_stream(corpus: EncodedCorpus, tokenizers: TokenizerPair, rate: float) -> BatchStream:
    samplers = [SubwordSampler(tokenizer, rate, 1, 255) for tokenizer in (tokenizers.src, tokenizers.tgt)]
    modifier = BatchModifier(tokenizers, 600, 1, 256, sample=partial(sample_pairs, samplers))
    return make_modified_stream(corpus, modifier)


def texts(batches: Sequence[Batch], tokenizers: TokenizerPair) -> list[tuple[str, str]]:
    src = tokenizers.src.decode([row for batch in batches for row in batch.src.tolist()])
    return list(
        zip(src, tokenizers.tgt.decode([row for batch in batches for row in batch.labels.tolist()]), strict=True)
    )


def test_epoch_contains_every_pair_with_other_tokens(corpus: EncodedCorpus, tokenizers: TokenizerPair) -> None:
    """Decoder input and labels stay aligned (trap 18), and token counts are those of the sampled ids."""
    stream, pads = make_stream(corpus, tokenizers, 0.5), (tokenizers.src.pad_id, tokenizers.tgt.pad_id)
    first, second = (stream.take(StreamPosition(epoch), len(stream.plan))[0] for epoch in (0, 1))
    for batches in (first, second):
        assert sorted(texts(batches, tokenizers)) == sorted(PAIRS)
        for batch in batches:
            is_continued = batch.labels[:, 1:] != pads[1]
            assert torch.equal(batch.tgt_in[:, 1:][is_continued], batch.labels[:, :-1][is_continued])
            assert batch.n_src == (batch.src != pads[0]).sum()
            assert batch.n_tgt == (batch.labels != pads[1]).sum()
    assert sum(batch.n_tgt for batch in first) != sum(batch.n_tgt for batch in second)


def test_validation_is_not_sampled(corpus: EncodedCorpus, tokenizers: TokenizerPair) -> None:
    stream, canonical = make_stream(corpus, tokenizers, 0.9), BatchStream.plain(corpus, tokenizers, 600, 1)
    seen = [text for batch in stream.shortest_first() for text in batch.labels.tolist()]
    assert sum(batch.n_tgt for batch in stream.shortest_first()) == sum(
        batch.n_tgt for batch in canonical.shortest_first()
    )
    assert len(seen) == len(corpus)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_batch_size_stays_near_the_budget(corpus: EncodedCorpus, tokenizers: TokenizerPair, rate: float) -> None:
    stream = make_stream(corpus, tokenizers, rate)
    batches, _ = stream.take(StreamPosition(), len(stream.plan))
    cells = [batch.labels.numel() for batch in batches]
    assert 400 < np.mean(cells) < 720  # by canonical lengths, up to seven times the budget
