"""The tree of one beam search: which candidates were kept, dropped or finished at each position.

The search itself does not change. A recorder wraps the function that chooses the candidates, and the status of
each candidate follows from the rule of `BeamState.advance`.

`b` sentences of one slice, `K` beams, `N` candidates, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor

from transformer_mt.decoding.beam_search import BeamState, Candidates, ChooseCandidates, Hypothesis, beam_search
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.translator import Translator

CandidateStatus = Literal["kept", "finished", "cut", "dropped"]
"""kept: extended at the next position; finished: ends with EOS; cut: ends at the maximum length; dropped: the rest."""


@dataclass(frozen=True)
class Branch:
    """A candidate of one position of the search."""

    parent: int | None  # index of the branch of the previous position that it extends
    ids: list[int]  # of the whole hypothesis, without EOS
    token: int
    log_prob: float  # of the token
    score: float  # log-probability of the whole hypothesis
    ranking_score: float  # divided by the length penalty
    status: CandidateStatus


class CandidateRecorder:
    """Chooses candidates like the function that it wraps, and keeps those of the only sentence."""

    def __init__(self, choose_candidates: ChooseCandidates) -> None:
        self.choose_candidates = choose_candidates
        self.positions: list[Candidates] = []  # [1, N] each

    def __call__(self, beams: BeamState, log_probs: Tensor, rows: slice) -> Candidates:
        """Return the candidates. [b, K, V] -> [b, N]."""
        candidates = self.choose_candidates(beams, log_probs, rows)
        self.positions.append(candidates)
        return candidates


@torch.inference_mode()
def search_with_tree(translator: Translator, source: list[int]) -> tuple[list[Hypothesis], list[list[Branch]]]:
    """Translate one source by beam search. Return the hypotheses, the best first, and the branches of each position."""
    config = translator.config
    search = translator.set_up_search([source], config)
    recorder = CandidateRecorder(search.choose_candidates)
    limit = int(search.beams.max_lengths[0])
    (hypotheses,) = beam_search(translator.ensemble.step, search.cache, search.beams, recorder, search.processors)
    return hypotheses, build_tree(recorder.positions, translator.tokenizers.tgt.eos_id, limit, config)


def build_tree(positions: Sequence[Candidates], eos: int, limit: int, config: DecodingConfig) -> list[list[Branch]]:
    """Return the branches of each position, the best first. `limit` is the maximum length, EOS included."""
    tree: list[list[Branch]] = []
    parents: list[int | None] = [None]  # index of each beam in the previous position
    prefixes: list[list[int]] = [[]]
    n_finished = 0
    for position, candidates in enumerate(positions):
        scores, log_probs, beams, tokens = (cast("list[float]", column[0].tolist()) for column in candidates)
        branches: list[Branch] = []
        kept: list[int] = []
        for rank, score in enumerate(scores):
            if score == -torch.inf:
                continue
            token, beam = int(tokens[rank]), int(beams[rank])
            is_end = token == eos
            status: CandidateStatus = "dropped"
            if is_end and rank < config.n_beams:
                status = "finished"
                n_finished += 1
            elif not is_end and len(kept) < config.n_beams:
                status = "cut" if position + 1 == limit else "kept"
                kept.append(len(branches))
            ids = prefixes[beam] if is_end else [*prefixes[beam], token]
            ranking_score = float(config.length_normalise(torch.tensor(score), position + 1))
            branches.append(Branch(parents[beam], ids, token, log_probs[rank], score, ranking_score, status))
        if n_finished >= config.n_beams:  # the search has ended
            branches = [
                branch if branch.status == "finished" else replace(branch, status="dropped") for branch in branches
            ]
            kept = []
        if branches:  # on a GPU, the search checks only now and then whether it has ended
            tree.append(branches)
        parents, prefixes = [*kept], [branches[i].ids for i in kept]
    return tree
