"""Translations drawn at random: what is drawn is a function of (seed, line, branch, position), whatever the batch.

`b` sentences, `K` branches of each, `V` vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_mt.decoding.beam_state import NEG_INF, BeamState, Candidates

BITS = 23  # of a random number: with one half added, it still is an exact fp32 number, and never 0 or 1


class Sampler:
    """Continues each branch with one token, drawn with the probabilities that are left by `top_k` and `top_p`.

    By the Gumbel-max trick: the largest of log-probabilities, to each of which -log(-log(u)) was added, u uniform, is a
    draw.
    """

    def __init__(self, temperature: float, top_k: int, top_p: float, seed: int, lines: Tensor) -> None:
        """lines: [n], int64, the numbers by which the sentences are told apart."""
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.seed, self.lines = seed, lines

    def __call__(self, beams: BeamState, scores: Tensor, part: slice) -> Candidates:
        """[b, K, V] -> [b, K]"""
        branches = torch.arange(beams.n_branches, device=scores.device).expand(len(scores), -1)  # [b, K]
        parents = branches if beams.position else torch.zeros_like(branches)
        scores = scores.gather(1, parents[:, :, None].expand(-1, -1, scores.size(2)))
        lines = self.lines[beams.rows[part], None]  # [b, 1]
        numbers = uniform([self.seed, beams.position], lines, branches, scores.size(2))
        noise = numbers.log_().neg_().log_().neg_()
        tokens = (self.left(scores / self.temperature) + noise).argmax(-1)  # [b, K]
        log_probs = scores.gather(2, tokens[:, :, None]).squeeze(2)
        return Candidates(beams.totals[part].gather(1, parents) + log_probs, log_probs, parents, tokens)

    def left(self, scores: Tensor) -> Tensor:
        """Scores of the tokens that may be drawn; NONE for the others. [b, K, V]"""
        if 0 < self.top_k < scores.size(-1):
            least = scores.topk(self.top_k).values[..., -1:]
            scores = scores.masked_fill(scores < least, NEG_INF)
        if self.top_p < 1:
            ordered, places = scores.softmax(-1).sort(descending=True, stable=True)
            is_behind = ordered.cumsum(-1) - ordered >= self.top_p  # those before it have enough together
            is_behind[..., 0] = False  # however small top_p is: in fp32, it may be 0
            scores = scores.masked_fill(torch.zeros_like(is_behind).scatter(-1, places, is_behind), NEG_INF)
        return scores


def uniform(seeds: list[int], lines: Tensor, branches: Tensor, n: int) -> Tensor:
    """Numbers between 0 and 1, each a hash of the seeds, line [b, 1], branch [b, K] and its place. [b, K, n]"""
    state = torch.zeros_like(branches)
    for part in (*seeds, lines, branches):
        state = _mix(state + part)
    mixed = _mix(state[:, :, None] + torch.arange(n, device=branches.device))
    return ((mixed >> (64 - BITS)) & ((1 << BITS) - 1)).float().add_(0.5).mul_(0.5**BITS)


def _mix(x: Tensor) -> Tensor:
    """The step and the finaliser of splitmix64 (Steele et al. 2014), on int64, whose overflow wraps."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
