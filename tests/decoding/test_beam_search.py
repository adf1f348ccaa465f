"""Beam search, compared with a reference implementation, exhaustive search and full recomputation.

Traps 1, 7, 13, 25, 26, 27, 28 and 29.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch

from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding import search as beam_search_module
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.search import (
    MIN_CHUNKED,
    BeamState,
    Hypothesis,
    MinLength,
    beam_candidates,
    beam_search,
    chunked_topk,
)
from transformer_mt.decoding.translator import Translator
from transformer_mt.model.transformer import Transformer

MakeModel = Callable[..., Transformer]
Scores = Callable[[list[list[int]]], list[list[float]]]
ReferenceSearch = Callable[..., list[Hypothesis]]
AssertSame = Callable[[Sequence[Hypothesis], Sequence[Hypothesis]], None]
BOS, EOS = -1, 0  # of the toy language
PENALIZED = pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 2.0])


def options(**settings: Any) -> DecodingConfig:
    return DecodingConfig.model_validate(settings)


def run_search(
    toy: Any, max_lengths: list[int], config: DecodingConfig, sync_interval: int | None = None
) -> list[list[Hypothesis]]:
    beams = BeamState(
        torch.tensor(max_lengths), config.beam, BOS, EOS, config.length_normalize, sync_interval=sync_interval
    )
    return beam_search(toy.step, toy, beams, beam_candidates, [MinLength(config.min_length, EOS)])


def all_translations(scores: Scores, limit: int, vocab: int, config: DecodingConfig) -> list[Hypothesis]:
    """Return every possible translation, the best first, unfinished ones last, ranked by the documented formula."""
    found: list[Hypothesis] = []
    words = [token for token in range(vocab) if token != EOS]
    for length in range(limit + 1):
        for ids in itertools.product(words, repeat=length):
            is_finished = length < limit
            if is_finished and length < config.min_length:
                continue
            tokens = [*ids, EOS] if is_finished else list(ids)
            log_probs = [scores([tokens[:t]])[0][token] for t, token in enumerate(tokens)]
            rank = sum(log_probs) / len(tokens) ** config.length_penalty_exponent
            if rank > -math.inf:
                found.append(Hypothesis(list(ids), log_probs, is_finished, rank))
    return sorted(found, key=lambda one: (not one.finished, -one.ranking_score))


# --- toy steps --------------------------------------------------------------------------------------------------------


@PENALIZED
@pytest.mark.parametrize("min_length", [0, 1, 2])
@pytest.mark.parametrize(("vocab", "limits"), [(3, [4, 1, 3, 2, 4]), (4, [2, 3, 1])])
def test_wide_beam_equals_exhaustive_search(
    toy: Any, assert_same: AssertSame, exponent: float, min_length: int, vocab: int, limits: list[int]
) -> None:
    """Trap 27: a beam with room for all translations ranks them by the formula, each with its own score."""
    config = options(beam=60, length_penalty_exponent=exponent, min_length=min_length)
    language = toy(range(len(limits)), vocab)
    for i, found in enumerate(run_search(language, limits, config)):
        assert_same(found, all_translations(language.scores(i), limits[i], vocab, config))


@PENALIZED
@pytest.mark.parametrize("min_length", [0, 1, 3])
@pytest.mark.parametrize("sync_interval", [1, 8])
def test_beam_search_equals_reference_implementation(
    toy: Any,
    reference_search: ReferenceSearch,
    assert_same: AssertSame,
    exponent: float,
    min_length: int,
    sync_interval: int,
) -> None:
    """Traps 25 and 27: sentences that end early, late and never share a batch. A GPU checks for them less often."""
    limits = [7, 1, 12, 3, 9, 2, 12, 5]
    for beam in (1, 2, 3, 4, 7, 12):
        config = options(beam=beam, length_penalty_exponent=exponent, min_length=min_length)
        language = toy(range(len(limits)), 9)
        found = run_search(language, limits, config, sync_interval)
        for i, limit in enumerate(limits):
            assert_same(found[i], reference_search(language.scores(i), limit, config))
        assert language.sizes[0] == len(limits) and language.sizes[-1] < 5, "finished sentences are dropped"


@pytest.mark.parametrize("vocab", [2, 3, 5, 50])
def test_beam_of_one_takes_the_argmax_at_each_step(toy: Any, vocab: int) -> None:
    for sentence in range(20):
        language = toy([sentence], vocab)
        ids: list[int] = []
        while len(ids) < 8 and EOS not in ids:
            (row,) = language.scores(sentence)([ids])
            ids.append(max(range(vocab), key=row.__getitem__))
        ((found,),) = run_search(language, [8], options(beam=1, min_length=0))
        assert (found.ids, found.finished) == (ids[: -1 if EOS in ids else None], EOS in ids)


def test_n_best_lists_are_sorted_and_distinct(toy: Any) -> None:
    for found in run_search(toy(range(30), 6), [8] * 30, options(beam=6)):
        assert len({tuple(one.ids) for one in found}) == len(found) == 6
        for finished in (True, False):
            ranks = [one.ranking_score for one in found if one.finished == finished]
            assert ranks == sorted(ranks, reverse=True)
        flags = [one.finished for one in found]
        assert flags == sorted(flags, reverse=True), "unfinished hypotheses come last"


def test_result_is_independent_of_batch_and_order(toy: Any) -> None:
    """Trap 25."""
    limits, config = [3, 15, 1, 8, 15, 2, 10, 15, 4, 6], options(beam=3, min_length=0)
    together = run_search(toy(range(10), 7), limits, config)
    assert together == [run_search(toy([i], 7), [limit], config)[0] for i, limit in enumerate(limits)]
    order = [7, 2, 9, 0, 4, 1, 8, 3, 6, 5]
    assert run_search(toy(order, 7), [limits[i] for i in order], config) == [together[i] for i in order]


def test_empty_translation_wins_only_if_min_length_is_zero(toy: Any, reference_search: ReferenceSearch) -> None:
    """Trap 28: with the default `min_length` of 1 it is not a candidate."""
    empty = [
        i for i in range(40) if reference_search(toy([i], 3).scores(i), 6, options(beam=3, min_length=0))[0].ids == []
    ]
    assert 3 < len(empty) < 40
    for least, allowed in ((0, True), (1, False)):
        for found in run_search(toy(empty, 3), [6] * len(empty), options(beam=3, min_length=least)):
            assert (found[0].ids == []) == allowed
            assert all(one.ids for one in found) or allowed
    assert DecodingConfig().min_length == 1


def test_memory_does_not_depend_on_the_maximum_length(toy: Any) -> None:
    ((best, *_),) = run_search(toy([1], 6), [10**12], options(beam=2))
    assert best.finished


# --- chunked top-k ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 31, 32, 33, 640, 641, 1000, 8000])
@pytest.mark.parametrize("k", [1, 2, 5, 10])
@pytest.mark.parametrize("kind", ["random", "tied", "mostly nothing", "sorted"])
def test_chunked_topk_equals_topk_over_all_beams(size: int, k: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_search_module, "MIN_CHUNKED", 0)
    k = min(k, 2 * size)
    log_probs, scores = torch.randn(3, 2, size), torch.randn(3, 2)
    if kind == "tied":
        log_probs, scores = torch.randint(0, 4, (3, 2, size)).float(), torch.zeros(3, 2)
    elif kind == "mostly nothing":
        log_probs = log_probs.masked_fill(torch.rand(3, 2, size) < 0.99, -math.inf)
    elif kind == "sorted":
        log_probs = log_probs.sort(-1).values
    found, indices = chunked_topk(log_probs, scores, k)
    sums = (log_probs + scores[:, :, None]).flatten(1)
    assert torch.equal(found, sums.topk(k).values)
    assert torch.equal(sums.gather(1, indices), found)
    assert all(len(set(row)) == k for row in cast("list[list[int]]", indices.tolist()))


def test_chunked_topk_finds_a_value_in_a_late_chunk_of_a_late_beam() -> None:
    """A batch of this size does not fall back to `topk`."""
    log_probs = torch.zeros(1, 2, MIN_CHUNKED)
    log_probs[0, 1, 700] = 1.0
    assert chunked_topk(log_probs, torch.zeros(1, 2), 2)[1][0, 0] == MIN_CHUNKED + 700


# --- the model --------------------------------------------------------------------------------------------------------


class Ids:
    """The part of a tokenizer that the search needs."""

    def __init__(self, eos: int = 2) -> None:
        self.pad_id, self.bos_id, self.eos_id = 0, 1, eos


def translator_of(model: Transformer, eos: int = 2) -> Translator:
    ids = cast(Tokenizer, Ids(eos))
    return Translator(TorchEngine([model], TokenizerPair(ids, ids)), TokenizerPair(ids, ids), DecodingConfig())


def scores_of(model: Transformer, source: list[int], eos: int = 2) -> Scores:
    """Compute the log-probabilities of each prefix without a cache."""

    @torch.inference_mode()
    def scores(prefixes: list[list[int]]) -> list[list[float]]:
        src = torch.tensor([[*source, eos]]).expand(len(prefixes), -1)
        states = model(src, torch.tensor([[1, *ids] for ids in prefixes]))
        return cast("list[list[float]]", model.logits(states[:, -1]).log_softmax(-1).tolist())

    return scores


VARIANTS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_position": "post"},
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned", "max_positions": 12},
    "none": {"positions": "none"},
    "grouped": {"n_kv_heads": 2},
    "one head of keys": {"n_kv_heads": 1, "positions": "rotary"},
    "output bias": {"output_bias": True, "norm_position": "post"},
    "rmsnorm": {"norm": "rmsnorm"},
    "apart": {"tie_embeddings": "none", "vocab": (31, 23), "activation": "swiglu"},
}
SOURCES = [[5, 6, 7, 8, 9, 3, 3], [4, 3], [21]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_search_equals_reference_with_full_recomputation(
    make_model: MakeModel, reference_search: ReferenceSearch, assert_same: AssertSame, variant: str
) -> None:
    """Traps 1, 7, 13, 25 and 26: beams of 1 to 5, sentences of different lengths that end at different positions."""
    model = make_model(rough=0.7, **VARIANTS[variant])
    texts: set[tuple[int, ...]] = set()
    for beam in range(1, 6):
        config = options(beam=beam, max_length_factor=0.5, max_length_offset=6)
        together = translator_of(model, eos=9).engine.search(SOURCES, config)
        for source, found in zip(SOURCES, together, strict=True):
            assert_same(
                found, reference_search(scores_of(model, source, 9), config.max_target_tokens(len(source)), config, 9)
            )
            texts |= {tuple(one.ids) for one in found}
    assert len(texts) >= 10, "the hypotheses differ from each other"


@pytest.mark.parametrize(("seed", "exponent"), [(0, 1.0), (1, 2.0)])
def test_wide_beam_over_a_model_equals_exhaustive_search(
    make_model: MakeModel, assert_same: AssertSame, seed: int, exponent: float
) -> None:
    """Trap 27: the vocabulary has padding, BOS, EOS and two words."""
    model = make_model(vocab=(8, 5), tie_embeddings="decoder")
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    config = options(
        beam=40,
        max_length_factor=0,
        max_length_offset=3,
        length_penalty_exponent=exponent,
        min_length=0,
    )
    (found,) = translator_of(model).engine.search([[4, 7]], config)
    scores = scores_of(model, [4, 7])

    def swapped(prefixes: list[list[int]]) -> list[list[float]]:
        """Swap EOS and padding, because the exhaustive search expects EOS as token 0."""
        names = {0: 2, 2: 0}
        rows = scores([[names.get(i, i) for i in ids] for ids in prefixes])
        return [[row[2], row[1], row[0], *row[3:]] for row in rows]

    wanted = all_translations(swapped, 3, 5, config)
    assert len(wanted) == 1 + 3 + 9 + 27
    assert_same(found, wanted)


@pytest.mark.parametrize("beam", [1, 5])
@torch.inference_mode()
def test_scores_equal_teacher_forced_log_probs(make_model: MakeModel, beam: int) -> None:
    """Trap 13: the scores include EOS if it was found."""
    model = make_model(rough=0.6, norm_position="post")
    config = options(beam=beam, max_length_factor=0.5, max_length_offset=6)
    flags: set[bool] = set()
    for eos, (i, source) in itertools.product((5, 9, 12), enumerate(SOURCES)):
        for one in translator_of(model, eos).engine.search(SOURCES, config)[i]:
            tokens = one.ids + [eos] * one.finished
            states = model(torch.tensor([[*source, eos]]), torch.tensor([[1, *tokens[:-1]]]))
            log_probs = model.logits(states)[0].log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])
            assert one.log_probs == pytest.approx(log_probs.flatten().tolist(), abs=1e-4)
            assert one.score == pytest.approx(log_probs.sum().item(), abs=1e-4)
            assert one.ranking_score == pytest.approx(log_probs.sum().item() / len(tokens), abs=1e-4)
            flags.add(one.finished)
    assert flags == {True, False}


def tokens_of(hypotheses: list[list[Hypothesis]]) -> Iterator[list[int]]:
    return (one.ids for found in hypotheses for one in found)


def test_nan_model_gives_one_empty_unfinished_hypothesis(make_model: MakeModel) -> None:
    """Beam search and sampling end, and return one hypothesis per sentence."""
    model = make_model()
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    for settings in ({"beam": 1}, {"beam": 4}, {"sample": True, "n_best": 2, "top_p": 0.9, "top_k": 3}):
        found = translator_of(model).engine.search(SOURCES, options(**settings))
        assert [[(one.ids, one.finished) for one in each] for each in found] == [[([], False)]] * len(SOURCES)


def test_beam_wider_than_the_vocabulary_equals_reference(
    make_model: MakeModel, reference_search: ReferenceSearch, assert_same: AssertSame
) -> None:
    model = make_model(vocab=(8, 5), tie_embeddings="decoder", rough=0.5)
    for beam in (4, 5, 6, 11, 30):
        config = options(beam=beam, max_length_factor=0, max_length_offset=6)
        (found,) = translator_of(model).engine.search([[4, 7]], config)
        assert_same(found, reference_search(scores_of(model, [4, 7]), 6, config, 2))


@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 5}, {"sample": True, "n_best": 3}])
def test_max_length_of_one_token(make_model: MakeModel, settings: dict[str, Any]) -> None:
    """The only token is EOS, or another token without EOS. A translation of minimum length can end with EOS."""
    for least in (0, 1):
        config = options(**settings, max_length_factor=0, max_length_offset=1, min_length=least)
        for found in translator_of(make_model(rough=0.5)).engine.search(SOURCES, config):
            assert found
            assert all(len(one.ids) == least + (not one.finished) for one in found)
