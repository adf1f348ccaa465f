"""The guarantee of the search for protected elements, with random step functions and an exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import tokenizers as hf
import torch
from torch import Tensor

from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.decoding.element_constraint import ElementConstraint, RequiredElements
from transformer_mt.decoding.logits_processors import ForcedPrefix, MinLength
from transformer_mt.decoding.search import (
    BeamState,
    Hypothesis,
    Sampler,
    beam_candidates,
    beam_search,
)
from transformer_mt.tools.markup.elements import (
    MarkedText,
    Role,
    Span,
    allows_order,
    mark,
)
from transformer_mt.tools.markup.symbols import SLOTS, assign_symbol_numbers

TOKENIZER = Tokenizer(hf.Tokenizer(hf.models.WordLevel({"a": 0, "b": 1}, unk_token="a")), has_symbols=True)


class History:
    """A cache that remembers the tokens of each beam, so that the step function may depend on all of them."""

    def __init__(self, n: int) -> None:
        self.tokens = torch.zeros(n, 1, 0, dtype=torch.long)
        self.sentences = torch.arange(n)

    def reorder(self, parents: Tensor) -> None:
        self.tokens = self.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.tokens.size(2)))

    def select(self, rows: Tensor) -> None:
        self.tokens, self.sentences = self.tokens[rows], self.sentences[rows]


@cache
def token_log_probs(seed: int, sentence: int, prefix: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(hash((seed, sentence, prefix)) % 2**31)
    logits = 3 * torch.randn(TOKENIZER.vocab_size, generator=generator)
    logits[[TOKENIZER.pad_id, TOKENIZER.bos_id]] = -torch.inf  # which no trained model produces
    return logits.log_softmax(0)


def step_function(seed: int) -> Callable[[Tensor, History], Iterator[Tensor]]:
    def step(tokens: Tensor, cache: History) -> Iterator[Tensor]:
        cache.tokens = torch.cat([cache.tokens, tokens[:, :, None]], 2)
        yield torch.stack(
            [
                torch.stack([token_log_probs(seed, sentence, tuple(beam[1:])) for beam in beams])
                for sentence, beams in zip(cache.sentences.tolist(), cache.tokens.tolist(), strict=True)
            ]
        )

    return step


def mark_source(text: str) -> MarkedText:
    spans = [
        Span(i, i + 1, {"(": Role.OPENING, ")": Role.CLOSING}.get(character, Role.SINGLE))
        for i, character in enumerate(text)
        if character in "(){"
    ]
    return mark(text, spans)


def search(
    texts: Sequence[str], limits: Sequence[int], n_beams: int, seed: int, sampler: bool = False, **processors: Any
) -> list[list[Hypothesis]]:
    """Search for translations of texts in which brackets are tags and `{` is a single element."""
    required = [required_elements(text) for text in texts]
    max_lengths = torch.tensor(limits)
    constraint = ElementConstraint(required, TOKENIZER, max_lengths)
    before = [processors["first"]] if processors else []
    beams = BeamState(max_lengths, n_beams, TOKENIZER.bos_id, TOKENIZER.eos_id, lambda scores, _: scores)
    choose = Sampler(1.0, 0, 1.0, seed, torch.arange(len(texts))) if sampler else beam_candidates
    return beam_search(step_function(seed), History(len(texts)), beams, choose, [*before, constraint])


def required_elements(text: str) -> RequiredElements:
    elements = mark_source(text).elements
    return RequiredElements(elements, assign_symbol_numbers(elements) or ())


def violation(text: str, ids: Sequence[int]) -> str | None:
    source, required = mark_source(text), required_elements(text)
    index = {TOKENIZER.first_symbol_id + number: i for i, number in enumerate(required.symbol_numbers)}
    if stray := [i for i in ids if i >= TOKENIZER.pad_id and i not in index]:
        return f"stray control symbols {stray}"
    return MarkedText.make([index[i] for i in ids if i in index], source.elements).find_violation(source)


def random_source(rng: random.Random) -> str:
    return "".join(rng.choices("(){a", k=rng.randrange(14)))


@pytest.mark.parametrize(("n_beams", "sampler"), [(1, False), (5, False), (3, True)])
def test_every_hypothesis_contains_each_element_once_and_nested(n_beams: int, sampler: bool) -> None:
    rng = random.Random(n_beams)
    for seed in range(3):
        texts = [random_source(rng) for _ in range(12)]
        limits = [len(required_elements(text).elements) + rng.randrange(1, 8) for text in texts]
        for text, n_best in zip(texts, search(texts, limits, n_beams, seed, sampler), strict=True):
            assert n_best[0].ids or not required_elements(text).elements
            for hypothesis in n_best:
                assert violation(text, hypothesis.ids) is None


def test_a_sentence_is_translated_the_same_whatever_it_is_batched_with() -> None:
    texts = ["(a{)b", "{{", "a", "((a))b{"]
    together = search(texts, [9] * 4, 3, seed=5)
    for i in (0, 3):
        alone = search(texts[: i + 1], [9] * (i + 1), 3, seed=5)
        assert [each.ids for each in alone[i]] == [each.ids for each in together[i]]


@pytest.mark.parametrize("text", ["", "{", "(a)", "{(", "(){", "(())", "({)"])
def test_a_large_beam_finds_the_best_valid_translation(text: str) -> None:
    limit, seed = 5, 3
    source, required = mark_source(text), required_elements(text)
    symbols = [TOKENIZER.first_symbol_id + number for number in required.symbol_numbers]
    vocabulary = [0, 1, *symbols]

    def best_score(ids: tuple[int, ...]) -> float:
        """Return the score of the best valid continuation of a prefix, from the definition of the constraint."""
        order = [symbols.index(i) for i in ids if i in symbols]
        n_missing = len(symbols) - len(order)
        n_left = limit - len(ids) - 1
        log_probs = token_log_probs(seed, 0, ids)
        next_symbols = [
            symbol
            for index, symbol in enumerate(symbols)
            if index not in order and allows_order(source.elements, [*order, index])
        ]
        if not n_missing:
            ends = [float(log_probs[TOKENIZER.eos_id])]
            return max(ends + [float(log_probs[i]) + best_score((*ids, i)) for i in (0, 1) if n_left > 0])
        wants_to_end = log_probs[TOKENIZER.eos_id] >= log_probs[[0, 1]].max()
        if wants_to_end or n_missing >= n_left:
            scores = log_probs[next_symbols].log_softmax(0).tolist()
            return max(score + best_score((*ids, i)) for i, score in zip(next_symbols, scores, strict=True))
        return max(float(log_probs[i]) + best_score((*ids, i)) for i in [0, 1, *next_symbols])

    best = best_score(())
    allowed = {*vocabulary, TOKENIZER.eos_id}

    class OnlyVocabulary(MinLength):
        def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
            is_other = torch.tensor([i not in allowed for i in range(log_probs.size(-1))])
            return log_probs.masked_fill(is_other, -torch.inf)

    ((hypothesis, *_),) = search([text], [limit], 100, seed, first=OnlyVocabulary(0, TOKENIZER.eos_id))
    assert hypothesis.finished
    assert hypothesis.score == pytest.approx(best, abs=1e-4)


def test_elements_follow_a_forced_prefix() -> None:
    text = "({)a"
    opening = TOKENIZER.first_symbol_id + required_elements(text).symbol_numbers[0]
    prefix = ForcedPrefix([[1, opening, 0]], torch.device("cpu"))
    for hypothesis in search([text], [9], 3, seed=1, first=prefix)[0]:
        assert hypothesis.ids[:3] == [1, opening, 0]
        assert violation(text, hypothesis.ids) is None


def test_all_slots_can_be_used() -> None:
    text = "{" * SLOTS + "(" * SLOTS + ")" * SLOTS
    ((hypothesis,),) = search([text], [len(text) + 3], 1, seed=2)
    assert violation(text, hypothesis.ids) is None


def test_a_vocabulary_with_symbols_never_produces_them_without_elements() -> None:
    for hypothesis in search(["aaa"], [12], 5, seed=7)[0]:
        assert all(i < TOKENIZER.pad_id for i in hypothesis.ids)
