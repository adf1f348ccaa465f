"""The branches of each sentence under search, the translations that have ended, and the way back to their tokens.

`n` sentences at the start, `B` that are still searched, `K` branches of each, `N` candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

SPARE = 0.85  # share of the sentences in the batch: when so few are left to be searched, the others leave
LOOK = 8  # positions after which a GPU is asked how many are left

NEG_INF = -math.inf  # log-probability of what does not exist

Normalise = Callable[[Tensor, int], Tensor]
"""Log-probabilities of hypotheses, and their length in tokens -> what they are ranked by."""


@dataclass(frozen=True)
class Hypothesis:
    """A translation in ids, without control symbols."""

    ids: list[int]
    log_probs: list[float]  # log-probability of each token, and of the end symbol where there is one
    finished: bool  # whether it came to its end by itself, and not to its limit
    rank: float = 0.0  # what it was ranked by

    @property
    def score(self) -> float:
        """Log-probability of the whole; NONE where a model whose scores are no numbers has found nothing."""
        return sum(self.log_probs) if self.rank > NEG_INF else NEG_INF


class Candidates(NamedTuple):
    """Branches continued by a token, the best first. [B, N] each"""

    totals: Tensor  # log-probability of all tokens; NONE: there is no such candidate
    log_probs: Tensor  # of the new token alone
    parents: Tensor  # the branch
    tokens: Tensor  # the new token

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """Those of parts of the sentences, one behind the other."""
        return parts[0] if len(parts) == 1 else cls(*map(torch.cat, zip(*parts, strict=True)))


class Continuation(NamedTuple):
    """By what the branches were continued at one position, in the sentences that were still searched."""

    rows: Tensor  # [B]
    tokens: Tensor  # [B, K]
    parents: Tensor  # [B, K]
    log_probs: Tensor  # [B, K]


class Ended(NamedTuple):
    """Translations, the best first. [B, K] each"""

    ranks: Tensor  # NONE: there is no such translation
    lengths: Tensor  # tokens, the end symbol not counted
    branches: Tensor  # in which the last of them stands
    log_probs: Tensor  # log-probability of the end symbol
    finished: Tensor  # whether there is one


class BeamState:
    """What a search knows of its sentences. Every position is an `advance` and a `retire`."""

    def __init__(self, limits: Tensor, n_branches: int, bos: int, eos: int, normalise: Normalise) -> None:
        """limits: [n], the tokens that a translation has at most, the end symbol counted."""
        n, device = len(limits), limits.device
        self.n_branches, self.eos, self.length_normalise = n_branches, eos, normalise
        self.position, self.last = 0, int(limits.max())
        self._answers_late = device.type != "cpu"  # so it is asked seldom
        self.rows, self.limits = torch.arange(n, device=device), limits  # [B]
        self.tokens = torch.full((n, 1), bos, device=device)  # the newest of each branch; one branch at first. [B, K]
        self.totals = torch.zeros(n, 1, device=device)  # [B, K]
        self.ended = _nothing(n, n_branches, device)
        self._left = _nothing(n, n_branches, device)  # of sentences that have left
        self._ends_at = set(cast(list[int], limits.tolist()))
        self._continuations: list[Continuation] = []

    def advance(self, candidates: Candidates) -> Tensor:
        """Keep translations that end, and take the best of the rest as branches. Returns what each continues. [B, K]"""
        is_end = (candidates.tokens == self.eos) & (candidates.totals > NEG_INF)  # [B, N]
        new = Candidates(*(part[:, : self.n_branches] for part in candidates))
        if self._answers_late or is_end.any():
            self.ended = _best_of(self.ended, self._ends_among(candidates, is_end))
            places = is_end.long().argsort(dim=1, stable=True)[:, : self.n_branches]
            new = Candidates(*(part.gather(1, places) for part in candidates))
            new = new._replace(totals=new.totals.masked_fill(is_end.gather(1, places), NEG_INF))
        self._continuations.append(Continuation(self.rows, new.tokens, new.parents, new.log_probs))
        self.tokens, self.totals = new.tokens, new.totals
        self.position += 1
        if self.position in self._ends_at:
            self._end_at_limits()
        self.totals = self.totals.masked_fill((self.ended.ranks > NEG_INF).all(1, keepdim=True), NEG_INF)
        return new.parents

    def retire(self) -> Tensor | None:
        """Let sentences leave that have no branch any more, if that is worth the copying; the places of the others."""
        if self._answers_late and self.position % LOOK and self.position < self.last:
            return None
        staying = (self.totals > NEG_INF).any(1).nonzero().squeeze(1)
        if len(staying) > SPARE * len(self.rows):
            return None
        for found, ended in zip(self._left, self.ended, strict=True):
            found[self.rows] = ended
        self.rows, self.limits = self.rows[staying], self.limits[staying]
        self.tokens, self.totals = self.tokens[staying], self.totals[staying]
        self.ended = Ended(*(part[staying] for part in self.ended))
        return staying

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Of each sentence, in the order of the call: those that came to their end first, each kind the best first.

        Where scores were no numbers there is none: an empty one that did not come to its end stands for it.
        """
        ranks, lengths, branches, last_log_probs, finished = (part.cpu().numpy() for part in self._left)
        tokens, parents, log_probs = (part.cpu().numpy() for part in self._laid_out())
        sentences = np.arange(len(ranks))[:, None]  # [n, 1]
        shape = (*ranks.shape, self.position)
        ids, scores = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for position in reversed(range(self.position)):
            is_part = position < lengths  # [n, K]
            ids[:, :, position] = tokens[position][sentences, branches]
            scores[:, :, position] = log_probs[position][sentences, branches]
            branches = np.where(is_part, parents[position][sentences, branches], branches)

        def hypothesis(i: int, k: int) -> Hypothesis:
            length = lengths[i, k]
            of_tokens = scores[i, k, :length].tolist()
            if finished[i, k]:
                of_tokens.append(float(last_log_probs[i, k]))
            return Hypothesis(ids[i, k, :length].tolist(), of_tokens, bool(finished[i, k]), float(ranks[i, k]))

        found = [[hypothesis(i, k) for k in range(self.n_branches) if ranks[i, k] > NEG_INF] for i in range(len(ranks))]
        return [of_one or [Hypothesis([], [], finished=False, rank=NEG_INF)] for of_one in found]

    def _laid_out(self) -> Iterator[Tensor]:
        """Tokens, parents and log-probabilities of all positions, of all sentences. [positions, n, K] each"""
        rows, *parts = zip(*self._continuations, strict=True)
        for of_each in parts:
            whole = of_each[0].new_zeros(self.position, len(self._left.ranks), self.n_branches)
            for position, (here, part) in enumerate(zip(rows, of_each, strict=True)):
                whole[position, here] = part
            yield whole

    def _ends_among(self, candidates: Candidates, is_end: Tensor) -> Ended:
        """Those of the best K candidates that end."""
        totals, log_probs, parents, _ = (part[:, : self.n_branches] for part in candidates)
        is_end = is_end[:, : self.n_branches]
        ranks = self.length_normalise(totals, self.position + 1).masked_fill(~is_end, NEG_INF)
        return Ended(ranks, torch.full_like(parents, self.position), parents, log_probs, is_end)

    def _end_at_limits(self) -> None:
        """Sentences that have come to their limit keep what has not ended behind what has."""
        is_over = (self.limits == self.position)[:, None]  # [B, 1]
        ranks = self.length_normalise(self.totals, self.position).masked_fill(~is_over, NEG_INF)
        branches = torch.arange(self.n_branches, device=ranks.device).expand_as(ranks)
        nothing = torch.zeros_like(ranks)
        unfinished = Ended(ranks, torch.full_like(branches, self.position), branches, nothing, nothing.bool())
        self.ended = _best_of(self.ended, unfinished)
        self.totals = self.totals.masked_fill(is_over, NEG_INF)


def _nothing(n: int, n_branches: int, device: torch.device) -> Ended:
    zeros = (
        torch.zeros(n, n_branches, dtype=dtype, device=device)
        for dtype in (torch.long,) * 2 + (torch.float, torch.bool)
    )
    return Ended(torch.full((n, n_branches), NEG_INF, device=device), *zeros)


def _best_of(these: Ended, others: Ended) -> Ended:
    """As many of both as there is room for: those with an end first, each kind the best first."""
    both = Ended(*(torch.cat(parts, dim=1) for parts in zip(these, others, strict=True)))
    places = both.ranks.argsort(dim=1, descending=True, stable=True)
    ends = both.finished.gather(1, places).long().argsort(dim=1, descending=True, stable=True)
    places = places.gather(1, ends)[:, : these.ranks.size(1)]
    return Ended(*(part.gather(1, places) for part in both))
