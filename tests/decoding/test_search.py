"""The search over toy steps and over the model: traps 1, 7, 13, 25, 26, 27 and 29."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor

from transformer_mt.decoding.search import Hypothesis, greedy
from transformer_mt.model.cache import BLOCK, Cache
from transformer_mt.model.positions import SinusoidalPositions
from transformer_mt.model.transformer import Transformer

MakeModel = Callable[..., Transformer]
BOS, EOS = 1, 2
LENGTH = 2 * BLOCK + 5
NEVER = -1  # an end symbol that no step chooses


# --- toy steps --------------------------------------------------------------------------------------------------------


class Scripts:
    """A state and a step that know beforehand what each sentence will say, and check what they are told."""

    def __init__(self, scripts: list[list[int]]) -> None:
        self.scripts, self.said = scripts, 0
        self.live = list(range(len(scripts)))
        self.calls: list[list[int]] = []

    def select(self, rows: Tensor) -> None:
        self.live = [self.live[row] for row in rows.tolist()]

    def step(self, tokens: Tensor, state: Scripts) -> Tensor:
        assert state is self
        self.calls.append(self.live)
        before = [self.scripts[row][self.said - 1] if self.said else BOS for row in self.live]
        assert tokens.tolist() == before, "a step is given the tokens of the step before"
        chosen = [self.scripts[row][self.said] for row in self.live]
        self.said += 1
        return torch.nn.functional.one_hot(torch.tensor(chosen), 10).float() - 5  # all scores are below 0


def search(scripts: list[list[int]], limits: list[int]) -> tuple[list[Hypothesis], Scripts]:
    state = Scripts(scripts)
    return greedy(state.step, state, BOS, EOS, torch.tensor(limits)), state


def test_a_sentence_ends_with_the_end_symbol() -> None:
    found, _ = search([[4, 5, EOS]], [9])
    assert found == [Hypothesis([4, 5], finished=True)]


def test_the_end_at_the_first_step() -> None:
    found, state = search([[EOS], [EOS]], [9, 9])
    assert found == [Hypothesis([], finished=True)] * 2
    assert len(state.calls) == 1


def test_a_sentence_without_end_is_flagged() -> None:
    """Trap 29."""
    found, _ = search([[4, 5, 6, 7]], [3])
    assert found == [Hypothesis([4, 5, 6], finished=False)]


def test_the_end_at_the_limit() -> None:
    """The end symbol is the last token that there is room for: it came by itself."""
    found, _ = search([[4, 5, EOS]], [3])
    assert found == [Hypothesis([4, 5], finished=True)]


def test_limits_are_of_each_sentence() -> None:
    found, _ = search([[4, 4, 4, 4, 4], [5, 5, 5, 5, 5], [6, EOS], [7, 7]], [5, 1, 4, 2])
    wanted = [([4] * 5, False), ([5], False), ([6], True), ([7, 7], False)]
    assert found == [Hypothesis(*parts) for parts in wanted]


def test_a_finished_sentence_leaves_and_the_others_stay_themselves() -> None:
    """Traps 25 and 27: rows go from the front, the middle and the end; no step is spent on them."""
    scripts = [[EOS], [4, 5, 6, EOS], [7, EOS], [8, 9, 3, 4, EOS], [5, 5]]
    found, state = search(scripts, [9, 9, 9, 9, 2])
    assert [hypothesis.ids for hypothesis in found] == [[], [4, 5, 6], [7], [8, 9, 3, 4], [5, 5]]
    assert [hypothesis.finished for hypothesis in found] == [True] * 4 + [False]
    assert state.calls == [[0, 1, 2, 3, 4], [1, 2, 3, 4], [1, 3], [1, 3], [3]]


# --- the model --------------------------------------------------------------------------------------------------------

SRC = torch.tensor([[5, 6, 7, 8, 9], [4, 3, 0, 0, 0], [9, 9, 2, 11, 0], [21, 0, 0, 0, 0], [3, 14, 15, 9, 2]])


@pytest.fixture(params=["pre", "post"])
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Transformer:
    """Its table of positions is so short that it grows on the way."""
    model = make_model(norm_position=request.param, rough=0.4)
    for stack in (model.encoder, model.decoder):
        stack.embedding.positions = SinusoidalPositions(16, length=2)
    return model


@pytest.fixture
def noise() -> Tensor:
    """Scores to add at each position, because a random model says one thing again and again."""
    return 3 * torch.randn(LENGTH, 23)


def recompute(model: Transformer, noise: Tensor, src: Tensor, eos: int, limit: int) -> Hypothesis:
    """The best next token of a single sentence, again from the whole prefix each time."""
    ids: list[int] = []
    while len(ids) < limit:
        states = model(src[src != 0][None], torch.tensor([[BOS, *ids]]))
        token = int((model.logits(states)[0, -1] + noise[len(ids)]).argmax())
        if token == eos:
            return Hypothesis(ids, finished=True)
        ids.append(token)
    return Hypothesis(ids, finished=False)


def cached(model: Transformer, noise: Tensor, src: Tensor, eos: int, limits: list[int]) -> list[Hypothesis]:
    def step(tokens: Tensor, cache: Cache) -> Tensor:
        return noise[cache.length] + model.step(tokens, cache)

    return greedy(step, model.start(src), BOS, eos, torch.tensor(limits))


@torch.inference_mode()
@pytest.mark.parametrize("eos", [NEVER, *range(3, 23)])
def test_greedy_search_equals_recomputing_each_sentence(model: Transformer, noise: Tensor, eos: int) -> None:
    """Traps 1, 7, 13 and 25: one by one, without a cache, without padding; with one symbol or another for the end."""
    limits = [BLOCK + 8, 9, 30, 20, 25]
    wanted = [recompute(model, noise, src, eos, limit) for src, limit in zip(SRC, limits, strict=True)]
    assert cached(model, noise, SRC, eos, limits) == wanted


@torch.inference_mode()
def test_two_searches_in_a_row_are_equal(model: Transformer, noise: Tensor) -> None:
    """Trap 26: nothing stays behind."""
    first, other, again = (cached(model, noise, src, NEVER, [12] * len(src)) for src in (SRC, SRC[:2] + 1, SRC))
    assert first == again and other != first[:2]


# --- the cache --------------------------------------------------------------------------------------------------------


def assert_step_equals_whole(model: Transformer, cache: Cache, src: Tensor, tgt: Tensor, start: int, end: int) -> None:
    """Each step's scores are those of the whole prefix at its last position."""
    whole = model.logits(model(src, tgt[:, :end]))
    for t in range(start, end):
        torch.testing.assert_close(model.step(tgt[:, t], cache), whole[:, t], atol=1e-4, rtol=1e-4)
        assert cache.length == t + 1


@torch.inference_mode()
def test_a_step_equals_the_whole_prefix(model: Transformer) -> None:
    """Traps 1, 13 and 26: over several blocks of the cache, and as the positions grow."""
    tgt = torch.randint(1, 23, (len(SRC), LENGTH))
    assert_step_equals_whole(model, model.start(SRC), SRC, tgt, 0, LENGTH)
    assert cast(SinusoidalPositions, model.decoder.embedding.positions).table.size(0) >= LENGTH


@torch.inference_mode()
@pytest.mark.parametrize("rows", [[0, 2, 4], [4, 1, 0, 2, 3], [3, 3, 0]], ids=["fewer", "reordered", "copied"])
@pytest.mark.parametrize("at", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_selected_rows_go_on_as_themselves(model: Transformer, rows: list[int], at: int) -> None:
    """Trap 26: keys, values and the source's mask move with their sentence, before and after the room grows."""
    tgt, cache, chosen = torch.randint(1, 23, (len(SRC), BLOCK + 4)), model.start(SRC), torch.tensor(rows)
    for t in range(at):
        model.step(tgt[:, t], cache)
    cache.select(chosen)
    assert_step_equals_whole(model, cache, SRC[chosen], tgt[chosen], at, BLOCK + 4)


@torch.inference_mode()
def test_the_cache_takes_no_part_in_what_it_gave_out(model: Transformer) -> None:
    """Scores of a step stay as they were when the next one is taken."""
    cache = model.start(SRC)
    first = model.step(torch.full((len(SRC),), BOS), cache)
    copy = first.clone()
    model.step(first.argmax(-1), cache)
    assert torch.equal(first, copy)
