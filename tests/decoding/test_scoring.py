"""Scores of given translations, compared with the full logits of single sentences."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding import engine
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.translator import Translator, UnscoredPairWarning
from transformer_mt.errors import UserError
from transformer_mt.model import transformer
from transformer_mt.model.transformer import Transformer

MakeTranslator = Callable[..., Translator]
PAIRS = load_pairs("test")[300:332]
SOURCES, TARGETS = [src for src, _ in PAIRS], [tgt for _, tgt in PAIRS]


@torch.no_grad()
def reference_log_probs(one: Translator, source: str, target: str) -> list[float]:
    """Return the log-probabilities of one pair from its full logits without padding, with torch's softmax."""
    src, tgt = one.tokenizers.src, one.tokenizers.tgt
    ids = tgt.encode([target])[0]
    first = [src.bos_id] if one.tokenizers.source_bos else []
    read = torch.tensor([[*first, *src.encode([source])[0], src.eos_id]])
    states = one.model(read, torch.tensor([[tgt.bos_id, *ids]]))
    logits = (states @ one.model.output.weight.T)[0].double()  # [T, V]
    logits[:, tgt.pad_id] = -math.inf
    scores = torch.log(torch.softmax(logits, -1))
    return [scores[i, label].item() for i, label in enumerate([*ids, tgt.eos_id])]


@pytest.fixture(scope="module")
def one(make_translator: MakeTranslator) -> Translator:
    return make_translator()


def test_scores_equal_log_probs_of_single_sentences(one: Translator) -> None:
    for (source, target), found in zip(PAIRS, one.score(SOURCES, TARGETS), strict=True):
        wanted = reference_log_probs(one, source, target)
        assert found.token_scores == pytest.approx(wanted, abs=2e-5)
        assert found.score == pytest.approx(sum(wanted), abs=2e-4)
        assert found.score_per_token == pytest.approx(sum(wanted) / len(wanted), abs=2e-5)
        assert found.text == target
        assert found.tokens == one.tokenizers.tgt.tokens(one.tokenizers.tgt.encode([target])[0])


def test_scores_with_source_bos(one: Translator) -> None:
    pair = replace(one.tokenizers, source_bos=True)
    other = Translator(TorchEngine([one.model], pair), pair, one.config)
    scores = [found.token_scores for found in other.score(SOURCES[:9], TARGETS[:9])]
    for pair, found in zip(PAIRS, scores, strict=False):
        assert found == pytest.approx(reference_log_probs(other, *pair), abs=2e-5)
    assert scores != [found.token_scores for found in one.score(SOURCES[:9], TARGETS[:9])]


@pytest.mark.parametrize("tokens", [1, 100, 100_000])
def test_scores_are_independent_of_batch_order_and_chunks(
    one: Translator, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 7; chunks of logits also end within sentences."""
    wanted = [found.token_scores for pair in PAIRS for found in one.score([pair[0]], [pair[1]])]
    monkeypatch.setattr(engine, "CPU_SCORING_BATCH_TOKENS", tokens)
    monkeypatch.setitem(transformer.CHUNK_BYTES, "cpu", 4 * one.tokenizers.tgt.vocab_size * 7)
    order = random.Random(1).sample(range(len(PAIRS)), len(PAIRS))
    found = one.score([SOURCES[i] for i in order], [TARGETS[i] for i in order])
    for place, i in enumerate(order):
        assert found[place].token_scores == pytest.approx(wanted[i], abs=2e-5)


def test_batches_and_chunks_respect_their_limits(
    make_translator: MakeTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_translator(batch_tokens=200)
    read: list[tuple[int, int]] = []
    made: list[int] = []
    forward, logits = Transformer.forward, Transformer.logits

    def spy(self: Transformer, src: torch.Tensor, tgt_in: torch.Tensor) -> torch.Tensor:
        read.append((len(tgt_in), tgt_in.numel()))
        return forward(self, src, tgt_in)

    def spy_logits(self: Transformer, states: torch.Tensor) -> torch.Tensor:
        made.append(len(states))
        return logits(self, states)

    monkeypatch.setattr(Transformer, "forward", spy)
    monkeypatch.setattr(Transformer, "logits", spy_logits)
    monkeypatch.setitem(transformer.CHUNK_BYTES, "cpu", 4 * one.tokenizers.tgt.vocab_size * 50)
    found = one.score(SOURCES, TARGETS)
    assert sum(rows for rows, _ in read) == len(PAIRS)
    assert all(size <= 200 for _, size in read)
    assert 1 < len(read) < len(PAIRS) / 2
    assert max(made) == 50
    assert sum(made) == sum(len(one.token_scores) for one in found)


def test_probabilities_of_first_tokens_sum_to_one(one: Translator) -> None:
    """Trap 20: the sum is over the vocabulary without padding."""
    tgt = one.tokenizers.tgt
    source = one.tokenizers.src.encode(SOURCES[:1])[0]
    others = [[i] for i in range(tgt.vocab_size) if i not in (tgt.pad_id, tgt.eos_id)]
    found = one.engine.score([source] * (len(others) + 1), [*others, []])
    assert sum(math.exp(log_probs[0]) for log_probs in found) == pytest.approx(1, abs=1e-4)


# --- blank and long texts ---------------------------------------------------------------------------------------------


def test_nothing_to_score(one: Translator) -> None:
    assert one.score([], []) == []
    assert one.engine.score([], [], 100) == []


def test_blank_texts_score_minus_infinity(one: Translator) -> None:
    """They rank below all other pairs."""
    targets = ["", "\u2028", TARGETS[0], "", "  "]
    found = one.score(["", " \t", "", SOURCES[0], SOURCES[0]], targets)
    assert [(given.score, given.score_per_token) for given in found] == [(-math.inf, -math.inf)] * 5
    assert [given.token_scores for given in found] == [[]] * 5
    assert [given.text for given in found] == targets


def test_pairs_longer_than_the_positions_are_not_scored(
    make_model: Callable[..., Transformer], small_tokenizers: TokenizerPair
) -> None:
    """A pair that just fits the learned positions is scored."""
    src, tgt = small_tokenizers.src, small_tokenizers.tgt
    sizes: dict[str, Any] = {"vocab": (src.vocab_size, tgt.vocab_size), "pad": (src.pad_id, tgt.pad_id)}
    model = make_model(**sizes, positions="learned", max_positions=8)
    one = Translator(TorchEngine([model], small_tokenizers), small_tokenizers, DecodingConfig())
    long = next(text for text in TARGETS if len(tgt.encode([text])[0]) > 8)
    full = tgt.decode([tgt.encode([long])[0][:7]])[0]
    assert len(tgt.encode([full])[0]) == 7
    with pytest.warns(UnscoredPairWarning) as warned:
        found = one.score([full, long, full, full], [full, full, long, full], line_numbers=[11, 12, 13, 14])
    assert [math.isfinite(one.score) for one in found] == [True, False, False, True]
    assert found[0].token_scores == pytest.approx(reference_log_probs(one, full, full), abs=2e-5)
    n = len(tgt.encode([long])[0])
    assert [str(warning.message) for warning in warned] == [
        f"line 12 has {n} source and 7 target tokens, and at most 7 source and 7 target tokens are scored",
        f"line 13 has 7 source and {n} target tokens, and at most 7 source and 7 target tokens are scored",
    ]


def test_control_symbols_of_a_source_take_positions(
    make_model: Callable[..., Transformer], small_tokenizers: TokenizerPair
) -> None:
    """With 8 positions, BOS and EOS leave 6 for a source, and EOS leaves 7 for a target."""
    tokenizers = replace(small_tokenizers, source_bos=True)
    tgt = tokenizers.tgt
    sizes: dict[str, Any] = {"vocab": (tokenizers.src.vocab_size, tgt.vocab_size), "pad": (tgt.pad_id, tgt.pad_id)}
    model = make_model(**sizes, positions="learned", max_positions=8)
    one = Translator(TorchEngine([model], tokenizers), tokenizers, DecodingConfig())
    six, seven = (tgt.decode([tgt.encode(TARGETS[:1])[0][:n]])[0] for n in (6, 7))
    assert [len(ids) for ids in tgt.encode([six, seven])] == [6, 7]
    with pytest.warns(UnscoredPairWarning, match="line 2 "):
        fits, too_long = one.score([six, seven], [seven, seven])
    assert fits.token_scores == pytest.approx(reference_log_probs(one, six, seven), abs=2e-5)
    assert too_long.score == -math.inf


def test_max_source_length_also_limits_scored_targets(make_translator: MakeTranslator) -> None:
    one = make_translator(max_source_length=5)
    with pytest.warns(UnscoredPairWarning, match="at most 5 source and 5 target tokens"):
        assert one.score(["a"], [TARGETS[0]])[0].score == -math.inf


def test_nan_scores_become_minus_infinity(make_translator: MakeTranslator, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON cannot represent NaN."""
    one = make_translator()
    monkeypatch.setattr(
        one.engine, "score", lambda sources, targets, batch_tokens: [[math.nan] * (len(ids) + 1) for ids in targets]
    )
    (found,) = one.score(["a"], [TARGETS[0]])
    assert (found.score, found.token_scores) == (-math.inf, [])


def test_different_numbers_of_sources_and_targets_are_refused(one: Translator) -> None:
    with pytest.raises(UserError, match="sources: 2, targets: 1; give one for each"):
        one.score(["a", "b"], ["a"])
