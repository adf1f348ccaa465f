"""Logits processors: constraints that change log-probabilities before the search chooses candidates.

`B` sentences in the batch, `b` sentences of one slice, `K` beams, `V` vocabulary, `t` tokens generated so far,
`P` length of the longest prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from transformer_mt.decoding.decoding_config import DecodingConfig

NOT_FORCED = -1  # pads shorter prefixes


class LogitsProcessor(ABC):
    """Changes the log-probabilities of the next token. The default methods suit a processor without state."""

    @abstractmethod
    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Return new log-probabilities for some rows of the batch; the input may be overwritten.

        `position` is the index of the next token, from 0. [b, K, V] -> [b, K, V]
        """

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:  # noqa: B027
        """Let beam k continue former beam parents[:, k] with tokens[:, k]. [B, K] each."""

    def select(self, rows: Tensor) -> None:  # noqa: B027
        """Keep only these sentences, in this order. [B']."""


class MinLength(LogitsProcessor):
    """Forbids EOS before a translation has `min_length` tokens."""

    def __init__(self, min_length: int, eos: int) -> None:
        self.min_length, self.eos = min_length, eos

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid EOS at an early position. [b, K, V] -> [b, K, V]."""
        if position < self.min_length:
            log_probs[:, :, self.eos] = -torch.inf
        return log_probs


class ForcedPrefix(LogitsProcessor):
    """Makes translations start with given tokens, which keep the model's log-probabilities, except tags."""

    def __init__(self, prefixes: list[list[int]], device: torch.device, n_tags: int = 0) -> None:
        """The first `n_tags` tokens of each prefix are tags, whose log-probability is 0."""
        self.n_tags = n_tags
        length = max(map(len, prefixes))
        rows = [ids + [NOT_FORCED] * (length - len(ids)) for ids in prefixes]
        self.forced = torch.tensor(rows, dtype=torch.long, device=device)  # [B, P]

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid all tokens but the prefix's token at this position. [b, K, V] -> [b, K, V]."""
        if position >= self.forced.size(1):
            return log_probs
        forced = self.forced[rows, position, None, None]  # [b, 1, 1]
        is_other = torch.arange(log_probs.size(-1), device=log_probs.device) != forced  # [b, 1, V]
        if position < self.n_tags:
            log_probs = torch.zeros_like(log_probs)
        return log_probs.masked_fill_(is_other & (forced != NOT_FORCED), -torch.inf)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        self.forced = self.forced[rows]


class StopCancelled(LogitsProcessor):
    """Ends the search of sentences that nobody waits for any more, by allowing only EOS.

    The other sentences of the batch are not affected.
    """

    def __init__(self, is_cancelled: Callable[[int], bool], n_sentences: int, eos: int) -> None:
        """`is_cancelled` takes the index of a sentence in the call of the search."""
        self.is_cancelled, self.eos = is_cancelled, eos
        self.sentences: list[int] = [*range(n_sentences)]  # [B]

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid all tokens but EOS in cancelled sentences. [b, K, V] -> [b, K, V]."""
        for row, sentence in enumerate(self.sentences[rows]):
            if self.is_cancelled(sentence):
                log_probs[row] = -torch.inf
                log_probs[row, :, self.eos] = 0
        return log_probs

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        self.sentences = [self.sentences[row] for row in cast(list[int], rows.tolist())]


class HistoryProcessor(LogitsProcessor):
    """Base class of processors that need the tokens that each beam has generated so far."""

    def __init__(self) -> None:
        self.history: Tensor | None = None  # [B, K, t]

    def reorder(self, parents: Tensor, tokens: Tensor) -> None:
        """Let beam k continue former beam parents[:, k] with tokens[:, k]. [B, K] each."""
        new = tokens[:, :, None]  # [B, K, 1]
        if self.history is None:
            self.history = new
        else:
            kept = self.history.gather(1, parents[:, :, None].expand(-1, -1, self.history.size(2)))
            self.history = torch.cat([kept, new], dim=2)  # [B, K, t + 1]

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        if self.history is not None:
            self.history = self.history[rows]


class NoRepeatNgram(HistoryProcessor):
    """Forbids a second occurrence of an n-gram (Paulus et al. 2018), unless that would forbid every token."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid tokens that would complete an earlier n-gram. [b, K, V] -> [b, K, V]."""
        if self.history is None or position < self.n:
            return log_probs
        ngrams = self.history[rows].unfold(2, self.n, 1)  # [b, K, t - n + 1, n]
        newest = self.history[rows, :, None, position - self.n + 1 :]  # [b, K, 1, n - 1]
        is_repeated = (ngrams[..., :-1] == newest).all(-1)  # [b, K, t - n + 1]
        banned = torch.zeros_like(log_probs).scatter_add_(2, ngrams[..., -1], is_repeated.to(log_probs.dtype))
        allowed = log_probs.masked_fill(banned > 0, -torch.inf)
        return torch.where((allowed > -torch.inf).any(-1, keepdim=True), allowed, log_probs)


class RepetitionPenalty(HistoryProcessor):
    """Multiplies the log-probability of tokens that the translation already contains (Keskar et al. 2019)."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Scale the log-probabilities of tokens in the history. [b, K, V] -> [b, K, V]."""
        if self.history is None:
            return log_probs
        history = self.history[rows]
        return log_probs.scatter(2, history, log_probs.gather(2, history) * self.factor)


def make_processors(
    config: DecodingConfig,
    eos: int,
    *,
    has_constraint: bool,
    prefixes: list[list[int]],
    n_tags: int = 0,
    device: torch.device,
) -> list[LogitsProcessor]:
    """Return the processors that the options and the prefixes of a batch, which start with `n_tags` tags, ask for."""
    processors: list[LogitsProcessor] = [MinLength(config.min_length + n_tags, eos)]
    if any(prefixes):
        processors.append(ForcedPrefix(prefixes, device, n_tags))
    if config.no_repeat_ngram and not has_constraint:  # a term may have to occur twice
        processors.append(NoRepeatNgram(config.no_repeat_ngram))
    if config.repetition_penalty > 1:
        processors.append(RepetitionPenalty(config.repetition_penalty))
    return processors
