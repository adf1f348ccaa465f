"""Beam search over a step function; a beam of one is greedy search, and candidates that are drawn make it sampling.

It knows neither the model nor text. Of each sentence K branches are followed, which are beginnings of translations. At
every position each branch is continued with every token, and the best of these candidates are looked at: those that end
are kept apart, and the best K of the others are the new branches. A sentence is done when K translations have ended.

`B` sentences that are searched, `b` a part of them, `K` branches of each, `N` candidates, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.decoding.beam_state import NEG_INF, BeamState, Candidates, Hypothesis

CHUNK = 32  # tokens of the vocabulary of which the best is looked at first


class State(Protocol):
    """What the step function remembers of each sentence."""

    def reorder(self, parents: Tensor) -> None:
        """From now on branch k goes on from what was branch parents[:, k]. [B, K]"""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these sentences, in this order. [B']"""
        ...


class LogitsProcessor(Protocol):
    """Forbids tokens, forces them, or makes them less likely."""

    def apply(self, scores: Tensor, part: slice, position: int) -> Tensor:
        """New scores of what may stand at this position, from 0, in a part of the sentences. [b, K, V]"""
        ...

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:
        """Branch k goes on from what was branch parents[:, k], with these tokens. [B, K]"""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these sentences, in this order. [B']"""
        ...


StateT = TypeVar("StateT", bound=State)
StepFunction = Callable[[Tensor, StateT], Iterable[Tensor]]
"""Newest token of each branch [B, K], state -> log-probabilities of the next [B, K, V], by parts of few sentences, so
that they need not all be in memory; the state moves on."""
Choose = Callable[[BeamState, Tensor, slice], Candidates]
"""The branches, and the scores of a part of the sentences [b, K, V] -> what these are continued with, N >= K each."""


def beam_search(
    step: StepFunction[StateT], state: StateT, beams: BeamState, choose: Choose, rules: Sequence[LogitsProcessor] = ()
) -> list[list[Hypothesis]]:
    """Up to K hypotheses of each sentence: first those that came to their end, each kind sorted as the beams compare.

    What is found for a sentence does not depend on the others.
    """
    while len(beams.rows):
        found: list[Candidates] = []
        first = 0
        for scores in step(beams.tokens, state):
            part = slice(first, first + len(scores))
            for rule in rules:
                scores = rule.apply(scores, part, beams.position)
            found.append(choose(beams, scores, part))
            first = part.stop
        parents = beams.advance(Candidates.joined(found))
        state.reorder(parents)
        for rule in rules:
            rule.reorder(parents, beams.tokens)
        staying = beams.retire()
        if staying is not None:
            for one in (state, *rules):
                one.select(staying)
    return beams.hypotheses()


def beam_candidates(beams: BeamState, scores: Tensor, part: slice) -> Candidates:
    """The 2K best continuations of all branches together, so that K are left when each branch ends. [b, K, V] -> [b, N]

    With one branch the best alone is enough.
    """
    wanted = 2 * beams.n_branches if beams.n_branches > 1 else 1
    log_probs, tokens = best(scores, min(wanted, scores.size(-1)))  # [b, K, n] of each branch
    each, missing = log_probs.size(2), max(0, wanted - log_probs[0].numel())
    totals = F.pad((beams.totals[part, :, None] + log_probs).flatten(1), (0, missing), value=NEG_INF)
    totals, places = totals.topk(wanted)
    log_probs, tokens = (F.pad(one.flatten(1), (0, missing)).gather(1, places) for one in (log_probs, tokens))
    return Candidates(totals, log_probs, (places // each).clamp(max=scores.size(1) - 1), tokens)


def best(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n highest scores and their tokens, sorted: the same as `topk`, which is slow on a CPU where rows are long.

    Each of the n best stands in one of the n chunks whose own best are highest. [..., V] -> [..., n]
    """
    whole = scores.size(-1) // CHUNK * CHUNK
    if scores.device.type != "cpu" or whole < 4 * n * CHUNK:
        return scores.topk(n)
    chunks = cast(Tensor, scores[..., :whole].unflatten(-1, (-1, CHUNK)))  # [..., V / 32, 32]
    numbers = chunks.amax(-1).topk(n).indices  # of chunks. [..., n]
    looked_at = chunks.gather(-2, numbers[..., None].expand(*numbers.shape, CHUNK)).flatten(-2)  # [..., n * 32]
    found, places = torch.cat([looked_at, scores[..., whole:]], dim=-1).topk(n)
    starts = CHUNK * numbers.gather(-1, (places // CHUNK).clamp_(max=n - 1))
    return found, torch.where(places < n * CHUNK, starts + places % CHUNK, whole - n * CHUNK + places)
