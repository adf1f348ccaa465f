"""Random sampling. A draw is a function of (seed, line number, beam, position) and does not depend on the batch.

`b` sentences of one slice, `K` beams, `V` vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_mt.decoding.beam_search import BeamState, Candidates

RANDOM_BITS = 23  # fp32 represents an integer of this many bits plus 0.5 exactly, so no number is rounded to 0 or 1


class Sampler:
    """Extends each beam by one random token, drawn from the tokens that `top_k` and `top_p` keep.

    It uses the Gumbel-max trick: the token with the largest log p - log(-log u), u uniform, is a draw from p.
    """

    def __init__(self, temperature: float, top_k: int, top_p: float, seed: int, line_numbers: Tensor) -> None:
        """Sample for the sentences with these line numbers. [n], int64."""
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.seed, self.line_numbers = seed, line_numbers

    def __call__(self, beams: BeamState, log_probs: Tensor, rows: slice) -> Candidates:
        """Draw one candidate for each beam. [b, K, V] -> [b, K]."""
        samples = torch.arange(beams.n_beams, device=log_probs.device).expand(len(log_probs), -1)  # [b, K]
        parents = samples if beams.position else torch.zeros_like(samples)  # at first there is only one beam
        log_probs = log_probs.gather(1, parents[:, :, None].expand(-1, -1, log_probs.size(2)))  # [b, K, V]
        line_numbers = self.line_numbers[beams.sentences[rows], None]  # [b, 1]
        noise = uniform([self.seed, beams.position], line_numbers, samples, log_probs.size(2))
        noise = noise.log_().neg_().log_().neg_()  # Gumbel
        tokens = (self.filter(log_probs / self.temperature) + noise).argmax(-1)  # [b, K]
        token_log_probs = log_probs.gather(2, tokens[:, :, None]).squeeze(2)  # [b, K]
        return Candidates(beams.scores[rows].gather(1, parents) + token_log_probs, token_log_probs, parents, tokens)

    def filter(self, logits: Tensor) -> Tensor:
        """Set the logits of tokens outside `top_k` and `top_p` to minus infinity. [b, K, V] -> [b, K, V]."""
        if 0 < self.top_k < logits.size(-1):
            lowest_kept = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < lowest_kept, -torch.inf)
        if self.top_p < 1:
            probabilities, order = logits.softmax(-1).sort(descending=True, stable=True)
            is_excluded = probabilities.cumsum(-1) - probabilities >= self.top_p  # the tokens before it suffice
            is_excluded[..., 0] = False  # a tiny top_p is 0 in fp32
            logits = logits.masked_fill(torch.zeros_like(is_excluded).scatter(-1, order, is_excluded), -torch.inf)
        return logits


def uniform(seeds: list[int], line_numbers: Tensor, beams: Tensor, n: int) -> Tensor:
    """Return numbers in (0, 1), each a hash of seeds, line number, beam and index. [b, 1], [b, K] -> [b, K, n]."""
    state = torch.zeros_like(beams)
    for part in (*seeds, line_numbers, beams):
        state = _mix(state + part)
    mixed = _mix(state[:, :, None] + torch.arange(n, device=beams.device))
    return ((mixed >> (64 - RANDOM_BITS)) & ((1 << RANDOM_BITS) - 1)).float().add_(0.5).mul_(0.5**RANDOM_BITS)


def _mix(x: Tensor) -> Tensor:
    """Apply one step of splitmix64 with its finaliser (Steele et al. 2014). int64 arithmetic wraps around."""
    x = x + _as_int64(0x9E3779B97F4A7C15)
    x = (x ^ _logical_right_shift(x, 30)) * _as_int64(0xBF58476D1CE4E5B9)
    x = (x ^ _logical_right_shift(x, 27)) * _as_int64(0x94D049BB133111EB)
    return x ^ _logical_right_shift(x, 31)


def _as_int64(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _logical_right_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)
