"""Search for translations that contain the terms of a glossary: lexically constrained beam search.

The K beams of a sentence are shared between banks, as in dynamic beam allocation (Post & Vilar 2018). The hypotheses
of a bank lack the same number of tokens of terms. An automaton counts them (compare Hu et al. 2019).

`B` sentences in the batch, `b` sentences of one slice, `K` beams, `N` candidates, `M` proposals, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from transformer_mt.decoding.logits_processors import LogitsProcessor
from transformer_mt.decoding.search import (
    BeamState,
    Candidates,
    beam_candidates,
    chunked_topk,
)
from transformer_mt.decoding.term_automaton import State, TermAutomaton, TokenClass

NO_CANDIDATE = 1 << 20  # bank of candidates with a score of minus infinity


class TermVocabulary:
    """The class of each token of a vocabulary, as an index into the distinct classes."""

    def __init__(self, classes: Sequence[TokenClass], eos: int, device: torch.device) -> None:
        self.eos = eos
        self.distinct = sorted({*classes})
        numbers = {each: i for i, each in enumerate(self.distinct)}
        self.indices = torch.tensor([numbers[each] for each in classes], device=device)  # [V]


class TermConstraint(LogitsProcessor):
    """Forbids EOS until all terms are present, and forces them near the length limit. Chooses candidates by banks."""

    def __init__(
        self,
        automata: Sequence[TermAutomaton],
        max_lengths: Tensor,
        vocabulary: TermVocabulary,
    ) -> None:
        """Require the terms of each sentence.

        `max_lengths` limits the tokens of each translation. It must have room for the terms and EOS. [B].
        """
        self.automata, self.max_lengths = [*automata], cast(list[int], max_lengths.tolist())
        self.vocabulary = vocabulary
        self.states = [[automaton.start] for automaton in automata]  # of each beam, B x K

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid EOS, and tokens after which terms would not fit any more. [b, K, V] -> [b, K, V]."""
        states, eos = self.states[rows], self.vocabulary.eos
        missing = [[state.n_missing_tokens for state in row] for row in states]
        log_probs[:, :, eos].masked_fill_(_to_device(missing, log_probs.device) > 0, -torch.inf)
        for row, beam_states in enumerate(states):
            automaton, limit = self.automata[rows][row], self.max_lengths[rows][row]
            n_left = max(0, limit - position - 2)  # tokens after this one and before EOS
            # no token can make more tokens missing than at the start, so most positions need no mask
            if automaton.start.n_missing_tokens > n_left:
                for beam, state in enumerate(beam_states):
                    log_probs[row, beam].masked_fill_(~self._fits(automaton, state, n_left), -torch.inf)
        return log_probs

    def _fits(self, automaton: TermAutomaton, state: State, n_left: int) -> Tensor:
        """Return which tokens leave at most `n_left` tokens of terms missing. [V]."""
        vocabulary = self.vocabulary
        by_class = [automaton.successor_of_class(state, each).n_missing_tokens for each in vocabulary.distinct]
        n_missing = _to_device(by_class, vocabulary.indices.device)[vocabulary.indices]
        for token in automaton.alphabet:
            n_missing[token] = automaton.successor(state, token).n_missing_tokens
        n_missing[vocabulary.eos] = state.n_missing_tokens
        return n_missing <= n_left

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:
        """Let beam k continue former beam parents[:, k] with tokens[:, k]. [B, K] each."""
        self.states = _successors(self.automata, self.states, parents, tokens)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        indices = cast(list[int], rows.tolist())
        self.automata = [self.automata[row] for row in indices]
        self.max_lengths = [self.max_lengths[row] for row in indices]
        self.states = [self.states[row] for row in indices]

    def choose_candidates(self, beams: BeamState, log_probs: Tensor, rows: slice) -> Candidates:
        """Return 2K candidates, the best of each bank first. [b, K, V] -> [b, 2K].

        They are the best of all, the best of each beam, and those that start or continue a term.
        """
        best = beam_candidates(beams, log_probs, rows)
        states = self.states[rows]
        if not any(state.n_missing_tokens for row in states for state in row):
            return best
        found = _mask_repeated(_add_proposals(best, beams.scores[rows], log_probs, states), log_probs.size(2))
        reached = _successors(self.automata[rows], states, found.parents, found.tokens)
        banks = _to_device([[state.n_missing_tokens for state in row] for row in reached], log_probs.device)  # [b, N]
        order = allocate(found.scores, banks)[:, : best.scores.size(1)]
        return Candidates(*(each.gather(1, order) for each in found))


def allocate(scores: Tensor, banks: Tensor) -> Tensor:
    """Return the order in which candidates become beams: the best of each bank, then the second best, and so on.

    Banks with fewer missing tokens are first. So each bank gets an equal share of the beams, and a bank with too few
    candidates leaves the rest of its share to the others. [b, N], [b, N] -> [b, N].
    """
    banks = banks.masked_fill(~(scores > -torch.inf), NO_CANDIDATE)
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    order = by_score.gather(1, banks.gather(1, by_score).argsort(dim=1, stable=True))  # by bank, then by score
    sorted_banks = banks.gather(1, order)
    positions = torch.arange(banks.size(1), device=banks.device).expand_as(banks)
    is_first = torch.ones_like(banks, dtype=torch.bool)
    is_first[:, 1:] = sorted_banks[:, 1:] != sorted_banks[:, :-1]
    ranks = positions - torch.where(is_first, positions, 0).cummax(1).values  # in the bank
    is_absent = sorted_banks == NO_CANDIDATE
    return order.gather(1, torch.where(is_absent, banks.size(1), ranks).argsort(dim=1, stable=True))


def _add_proposals(
    best: Candidates, scores: Tensor, log_probs: Tensor, states: Sequence[Sequence[State]]
) -> Candidates:
    """Add the best token of each beam and the proposals of its state. [b, 2K] -> [b, N]."""
    n_proposals = max(len(state.proposals) for row in states for state in row)
    padded = [[state.proposals + [-1] * (n_proposals - len(state.proposals)) for state in row] for row in states]
    tokens = _to_device(padded, log_probs.device)  # [b, K, M]
    rows = log_probs.flatten(0, 1)[:, None]  # [b * K, 1, V]
    best_tokens = chunked_topk(rows, torch.zeros_like(rows[..., 0]), 1)[1].view(*tokens.shape[:2], 1)
    tokens = torch.cat([best_tokens, tokens], dim=2)  # [b, K, 1 + M]
    is_padding = tokens < 0
    tokens = tokens.clamp(min=0)
    token_log_probs = log_probs.gather(2, tokens).masked_fill(is_padding, -torch.inf)
    parents = torch.arange(tokens.size(1), device=tokens.device)[:, None].expand_as(tokens)
    added = (token_log_probs + scores[:, :, None], token_log_probs, parents, tokens)
    return Candidates(*(torch.cat([one, other.flatten(1)], dim=1) for one, other in zip(best, added, strict=True)))


def _mask_repeated(candidates: Candidates, n_tokens: int) -> Candidates:
    """Sort candidates by beam and token, and set the score of repeated ones to minus infinity. [b, N] -> [b, N]."""
    keys = candidates.parents * n_tokens + candidates.tokens
    # padding has token 0 and a score of minus infinity, so a real candidate of token 0 must come first
    order = candidates.scores.argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, keys.gather(1, order).argsort(dim=1, stable=True))
    ordered = Candidates(*(each.gather(1, order) for each in candidates))
    sorted_keys = keys.gather(1, order)
    is_repeated = torch.zeros_like(sorted_keys, dtype=torch.bool)
    is_repeated[:, 1:] = sorted_keys[:, 1:] == sorted_keys[:, :-1]
    return ordered._replace(scores=ordered.scores.masked_fill(is_repeated, -torch.inf))


def _successors(
    automata: Sequence[TermAutomaton], states: Sequence[Sequence[State]], parents: Tensor, tokens: Tensor
) -> list[list[State]]:
    """Return the states after tokens that follow some beams. [b, N], [b, N] -> b x N."""
    lists = cast("list[list[list[int]]]", torch.stack([parents, tokens]).tolist())  # one copy from a GPU
    return [
        [automaton.successor(row[parent], token) for parent, token in zip(row_parents, row_tokens, strict=True)]
        for automaton, row, row_parents, row_tokens in zip(automata, states, *lists, strict=True)
    ]


def _to_device(numbers: list[Any], device: torch.device) -> Tensor:
    """Return a tensor of int64 without waiting for a GPU."""
    tensor = torch.tensor(numbers, dtype=torch.long)
    return tensor.to(device, non_blocking=device.type == "cuda")  # on MPS, the source may be freed too early
