"""What a search may be told besides to find the likeliest translation.

`B` sentences, `b` a part of them, `K` branches of each, `V` vocabulary, `t` tokens written so far.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_mt.decoding.beam_state import NEG_INF

FREE = -1  # where nothing is forced


class MinLength:
    """No end before a translation has so many tokens."""

    def __init__(self, least: int, eos: int) -> None:
        self.least, self.eos = least, eos

    def apply(self, scores: Tensor, part: slice, position: int) -> Tensor:
        if position < self.least:
            scores[:, :, self.eos] = NEG_INF
        return scores

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:
        pass

    def select(self, rows: Tensor) -> None:
        pass


class Prefixes:
    """Translations begin with tokens that are given, whose log-probabilities are the model's."""

    def __init__(self, prefixes: list[list[int]], device: torch.device) -> None:
        width = max(map(len, prefixes))
        rows = [ids + [FREE] * (width - len(ids)) for ids in prefixes]
        self.forced = torch.tensor(rows, dtype=torch.long, device=device)  # [B, width]

    def apply(self, scores: Tensor, part: slice, position: int) -> Tensor:
        if position >= self.forced.size(1):
            return scores
        wanted = self.forced[part, position, None, None]  # [b, 1, 1]
        others = torch.arange(scores.size(-1), device=scores.device) != wanted
        return scores.masked_fill_(others & (wanted != FREE), NEG_INF)

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:
        pass

    def select(self, rows: Tensor) -> None:
        self.forced = self.forced[rows]


class Written:
    """What each branch has written so far."""

    def __init__(self) -> None:
        self.written: Tensor | None = None  # [B, K, t]

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:
        new = tokens[:, :, None]
        if self.written is None:
            self.written = new
        else:
            before = self.written.gather(1, parents[:, :, None].expand(-1, -1, self.written.size(2)))
            self.written = torch.cat([before, new], dim=2)

    def select(self, rows: Tensor) -> None:
        if self.written is not None:
            self.written = self.written[rows]


class NoRepeatNgram(Written):
    """No sequence of n tokens comes twice in a translation (Paulus et al. 2018), unless nothing else may come."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def apply(self, scores: Tensor, part: slice, position: int) -> Tensor:
        if self.written is None or position < self.n:
            return scores
        windows = self.written[part].unfold(2, self.n, 1)  # [b, K, t - n + 1, n]
        newest = self.written[part, :, None, position - self.n + 1 :]  # [b, K, 1, n - 1]
        is_again = (windows[..., :-1] == newest).all(-1)  # [b, K, t - n + 1]
        banned = torch.zeros_like(scores).scatter_add_(2, windows[..., -1], is_again.to(scores.dtype))
        left = scores.masked_fill(banned > 0, NEG_INF)
        return torch.where((left > NEG_INF).any(-1, keepdim=True), left, scores)


class RepetitionPenalty(Written):
    """The log-probability of tokens that a translation has already is multiplied (Keskar et al. 2019)."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def apply(self, scores: Tensor, part: slice, position: int) -> Tensor:
        if self.written is None:
            return scores
        written = self.written[part]
        return scores.scatter(2, written, scores.gather(2, written) * self.factor)
