"""What a search may be told besides, against the same rules written out in plain lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from transformer_mt.decoding.beam_search import BeamState, Hypothesis, LogitsProcessor, beam_candidates, beam_search
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.logits_processors import ForcedPrefix, MinLength, NoRepeatNgram, RepetitionPenalty

Scores = Callable[[list[list[int]]], list[list[float]]]
Slow = Callable[..., list[Hypothesis]]
Alike = Callable[[Sequence[Hypothesis], Sequence[Hypothesis]], None]
BOS, EOS, NEG_INF = -1, 0, -math.inf
LIMITS = [9, 3, 12, 7, 12, 1]
BEAMS = pytest.mark.parametrize("beam", [1, 2, 5])


def searched(
    toy: Any, config: DecodingConfig, *rules: LogitsProcessor, limits: Sequence[int] = LIMITS
) -> list[list[Hypothesis]]:
    beams = BeamState(torch.tensor(limits), config.beam, BOS, EOS, config.length_normalise)
    return beam_search(toy.step, toy, beams, beam_candidates, [MinLength(config.min_length, EOS), *rules])


def ruled(scores: Scores, rule: Callable[[list[int], list[float]], list[float]]) -> Scores:
    """Scores of each beginning as a rule changes them."""
    return lambda prefixes: [rule(ids, row) for ids, row in zip(prefixes, scores(prefixes), strict=True)]


# --- repetition -------------------------------------------------------------------------------------------------------


def grams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]


@BEAMS
@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_ngram_comes_twice(toy: Any, slow: Slow, alike: Alike, n: int, beam: int) -> None:
    def ban(ids: list[int], row: list[float]) -> list[float]:
        return [NEG_INF if (*ids, i)[-n:] in grams(ids, n) else score for i, score in enumerate(row)]

    config, vocab = DecodingConfig(beam=beam, min_length=6), 14 if n == 1 else 5
    language = toy(range(len(LIMITS)), vocab)
    found, free = searched(language, config, NoRepeatNgram(n)), searched(toy(range(len(LIMITS)), vocab), config)
    for i, limit in enumerate(LIMITS):
        alike(found[i], slow(ruled(language.scores(i), ban), limit, config))
        assert all(len(set(grams(one.ids, n))) == len(grams(one.ids, n)) for one in found[i])
    assert found != free, "without the rule some do repeat"


@pytest.mark.parametrize("least", [0, 9])
def test_where_every_token_is_forbidden_one_comes_again(toy: Any, least: int) -> None:
    """With three words and no end before nine tokens, the fourth token has been there."""
    config = DecodingConfig(beam=3, min_length=least)
    for found in searched(toy(range(6), 4), config, NoRepeatNgram(1), limits=[12] * 6):
        assert found[0].finished
        assert all(len(one.ids) >= least and len(set(one.ids[:3])) == min(3, len(one.ids)) for one in found)


@BEAMS
@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_the_repetition_penalty(toy: Any, slow: Slow, alike: Alike, factor: float, beam: int) -> None:
    """Of tokens that are there already, once, however often."""

    def punish(ids: list[int], row: list[float]) -> list[float]:
        return [score * factor if i in ids else score for i, score in enumerate(row)]

    config, language = DecodingConfig(beam=beam), toy(range(len(LIMITS)), 5)
    for i, found in enumerate(searched(language, config, RepetitionPenalty(factor))):
        alike(found, slow(ruled(language.scores(i), punish), LIMITS[i], config))


# --- prefixes -------------------------------------------------------------------------------------------------------


@BEAMS
def test_translations_begin_as_they_are_told(toy: Any, slow: Slow, alike: Alike, beam: int) -> None:
    """Those that are free, in the same batch, are as they are without; scores of what is forced are the model's."""
    prefixes = [[3, 3, 1], [2], [], [4, 1, 4, 1, 4, 1], [], [5]]
    config, language = DecodingConfig(beam=beam), toy(range(len(LIMITS)), 6)
    found = searched(language, config, ForcedPrefix(prefixes, torch.device("cpu")))
    free = searched(toy(range(len(LIMITS)), 6), config)
    for i, begun in enumerate(prefixes):
        own = language.scores(i)

        def force(ids: list[int], row: list[float], begun: list[int] = begun) -> list[float]:
            t = len(ids)
            return [score if t >= len(begun) or begun[t] == token else NEG_INF for token, score in enumerate(row)]

        alike(found[i], slow(ruled(own, force), LIMITS[i], config))
        for one in found[i]:
            assert one.ids[: len(begun)] == begun
            assert one.log_probs[: len(begun)] == [own([begun[:t]])[0][token] for t, token in enumerate(begun)]
        assert begun or found[i] == free[i]


def test_a_beginning_longer_than_the_limit_is_all_there_is(toy: Any) -> None:
    ((found,),) = searched(
        toy([0], 6), DecodingConfig(beam=3), ForcedPrefix([[1, 2, 3, 4, 5]], torch.device("cpu")), limits=[3]
    )
    assert (found.ids, found.finished) == ([1, 2, 3], False)


@pytest.mark.parametrize("n", [1, 2])
def test_a_beginning_may_repeat_itself(toy: Any, n: int) -> None:
    """What is forced stands, and what comes behind it keeps to the rule."""
    begun = [3, 4, 3, 4, 3]
    rules = ForcedPrefix([begun, []], torch.device("cpu")), NoRepeatNgram(n)
    for one in searched(toy([0, 1], 12), DecodingConfig(beam=3), *rules, limits=[10, 10])[0]:
        assert one.ids[:5] == begun
        new = [gram for start, gram in enumerate(grams(one.ids, n)) if start + n > len(begun)]
        assert len({*new, *grams(begun, n)}) == len(new) + len(set(grams(begun, n)))


def test_an_end_inside_a_beginning_is_an_end(toy: Any) -> None:
    ((found,),) = searched(
        toy([0], 6), DecodingConfig(beam=3), ForcedPrefix([[1, 2, EOS, 4]], torch.device("cpu")), limits=[9]
    )
    assert (found.ids, found.finished) == ([1, 2], True)


# --- the least length -------------------------------------------------------------------------------------------------


@BEAMS
@pytest.mark.parametrize("least", [0, 1, 2, 5, 40])
def test_no_end_before_the_least_length(toy: Any, slow: Slow, alike: Alike, least: int, beam: int) -> None:
    """At most as far as the limit, which counts more."""
    config, language = DecodingConfig(beam=beam, min_length=least), toy(range(len(LIMITS)), 3)
    shortest: list[int] = []
    for i, found in enumerate(searched(language, config)):
        alike(found, slow(language.scores(i), LIMITS[i], config))
        assert all(len(one.ids) >= least if one.finished else len(one.ids) == LIMITS[i] for one in found)
        shortest += [len(one.ids) for one in found if one.finished]
    assert min(shortest, default=least) == least
