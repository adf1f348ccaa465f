"""Beam search over a step function. One beam is greedy search; with a `Sampler` the beams are random samples.

The search knows neither the model nor text. At each position it extends the K beams of a sentence by one token.
Those of the best K candidates that end with EOS become finished hypotheses, and the best K candidates without EOS
become the new beams. The search of a sentence ends when it has K finished hypotheses, or at its length limit.

Logits processors change the log-probabilities before the search chooses candidates. A `ConstraintProcessor` chooses
the candidates, too.

`n` sentences of the call, `B` sentences still searched, `b` sentences of one slice, `K` beams, `N` candidates,
`V` vocabulary, `T` positions, `t` tokens generated so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Beams, Candidates, Hypothesis, LogitsProcessor

# --- logits processors ------------------------------------------------------------------------------------------------


class MinLength(LogitsProcessor):
    """Forbids EOS before a translation has `min_length` tokens."""

    def __init__(self, min_length: int, eos: int) -> None:
        self.min_length, self.eos = min_length, eos

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid EOS at an early position. [b, K, V] -> [b, K, V]."""
        if position < self.min_length:
            log_probs[:, :, self.eos] = -torch.inf
        return log_probs


class ForcedTag(LogitsProcessor):
    """Makes translations start with the symbol of a tag, whose log-probability is 0."""

    def __init__(self, tags: Sequence[int], device: torch.device) -> None:
        self.tags = torch.tensor(tags, device=device)  # [B]

    def apply(self, log_probs: Tensor, rows: slice, position: int) -> Tensor:
        """Forbid all tokens but the tag at the first position. [b, K, V] -> [b, K, V]."""
        if position > 0:
            return log_probs
        tags = self.tags[rows, None, None]  # [b, 1, 1]
        is_other = torch.arange(log_probs.size(-1), device=log_probs.device) != tags  # [b, 1, V]
        return torch.zeros_like(log_probs).masked_fill_(is_other, -torch.inf)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        self.tags = self.tags[rows]


def make_processors(
    config: DecodingConfig, eos: int, tgt_tags: Sequence[int] | None, device: torch.device
) -> list[LogitsProcessor]:
    """Return the processors that the options and the tags of a batch ask for."""
    processors: list[LogitsProcessor] = [MinLength(config.min_length + bool(tgt_tags), eos)]
    if tgt_tags:
        processors.append(ForcedTag(tgt_tags, device))
    return processors


# --- beam search ------------------------------------------------------------------------------------------------------

COMPACTION_SHARE = 0.85  # finished sentences are dropped once at most this share of the batch is still searched
GPU_SYNC_INTERVAL = 8  # positions between two checks for finished sentences, because a check waits for the GPU
TOPK_CHUNK = 32  # vocabulary entries per chunk in `chunked_topk`
MIN_CHUNKED = 1 << 15  # log-probabilities from which on chunks are faster than one `topk`

LengthNormalize = Callable[[Tensor, int], Tensor]
"""Maps the scores of hypotheses and their length in tokens to ranking scores."""


class DecoderCache(Protocol):
    """State that the step function keeps for each beam, such as keys and values."""

    def reorder(self, parents: Tensor) -> None:
        """Replace beam k by a copy of beam parents[:, k]. [B, K]."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. [B']."""
        ...


CacheT = TypeVar("CacheT", bound=DecoderCache)
StepFunction = Callable[[Tensor, CacheT], Iterable[Tensor]]
"""Appends the newest tokens [B, K] to the cache and yields log-probabilities of the next, in slices [b, K, V]."""
ChooseCandidates = Callable[["BeamState", Tensor, slice], Candidates]
"""Maps log-probabilities of some rows of the batch [b, K, V] to N >= K candidates each [b, N]."""


def beam_search(
    step: StepFunction[CacheT],
    cache: CacheT,
    beams: BeamState,
    choose_candidates: ChooseCandidates,
    processors: Sequence[LogitsProcessor] = (),
) -> list[list[Hypothesis]]:
    """Return up to K hypotheses per sentence: finished ones first, each group by descending ranking score.

    The result of a sentence does not depend on the other sentences of the batch.
    """
    while len(beams.sentences):
        found: list[Candidates] = []
        start = 0
        for log_probs in step(beams.tokens, cache):  # [b, K, V]
            rows = slice(start, start + len(log_probs))
            for processor in processors:
                log_probs = processor.apply(log_probs, rows, beams.position)
            found.append(choose_candidates(beams, log_probs, rows))
            start = rows.stop
        candidates = found[0] if len(found) == 1 else Candidates(*map(torch.cat, zip(*found, strict=True)))
        parents = beams.advance(candidates)
        cache.reorder(parents)
        for processor in processors:
            processor.reorder(parents, beams.tokens)
        kept = beams.drop_finished()
        if kept is not None:
            for stateful in (cache, *processors):
                stateful.select(kept)
    return beams.hypotheses()


def beam_candidates(beams: Beams, log_probs: Tensor, rows: slice) -> Candidates:
    """Return the 2K best extensions over all beams. [b, K, V] -> [b, N].

    At most one extension of each beam ends with EOS, so at least K others remain. A single beam needs one extension.
    """
    if beams.n_beams == 1:
        best, tokens = log_probs.max(-1)  # [b, 1]
        return Candidates(beams.scores[rows] + best, best, torch.zeros_like(tokens), tokens)
    n_wanted = 2 * beams.n_beams
    n_found = min(n_wanted, log_probs[0].numel())
    scores, indices = chunked_topk(log_probs, beams.scores[rows], n_found)
    parents, tokens = indices // log_probs.size(-1), indices % log_probs.size(-1)
    found = Candidates(scores, log_probs.flatten(1).gather(1, indices), parents, tokens)
    if n_found == n_wanted:
        return found
    missing = (0, n_wanted - n_found)  # in a tiny vocabulary
    return Candidates(F.pad(scores, missing, value=-torch.inf), *(F.pad(each, missing) for each in found[1:]))


def chunked_topk(log_probs: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest sums of the scores of beams and log-probabilities, and their indices in [K * V].

    On a CPU, `topk` is slow for many values. Each of the k best lies in one of the k chunks with the highest maxima.
    [b, K, V], [b, K] -> [b, k] each
    """
    n_beams, size = log_probs.shape[1:]
    n_chunks, n_rest = divmod(size, TOPK_CHUNK)  # the remainder of a row is always searched
    is_short = log_probs.numel() < MIN_CHUNKED or n_beams * n_chunks < 4 * k
    if is_short or log_probs.device.type != "cpu":
        return (log_probs + scores[:, :, None]).flatten(1).topk(k)
    chunks = log_probs[..., : size - n_rest].view(-1, n_beams, n_chunks, TOPK_CHUNK)  # [b, K, V / 32, 32]
    best_chunks = (chunks.amax(-1) + scores[:, :, None]).flatten(1).topk(k).indices  # [b, k]
    chunk_starts = best_chunks // n_chunks * size + best_chunks % n_chunks * TOPK_CHUNK
    searched = (chunk_starts[:, :, None] + torch.arange(TOPK_CHUNK)).flatten(1)  # [b, k * 32]
    rest = torch.arange(n_beams)[:, None] * size + torch.arange(size - n_rest, size)  # [K, rest]
    searched = torch.cat([searched, rest.flatten().expand(len(searched), -1)], dim=1)
    sums = log_probs.flatten(1).gather(1, searched) + scores.gather(1, searched // size)
    best, order = sums.topk(k)
    return best, searched.gather(1, order)


# --- state ------------------------------------------------------------------------------------------------------------


class FinishedHypotheses(NamedTuple):
    """Hypotheses with EOS or cut at the length limit, the best first. [B, K] each."""

    ranking_scores: Tensor  # -inf: an empty slot
    lengths: Tensor  # tokens without EOS
    last_beams: Tensor  # beam that holds the last token
    eos_log_probs: Tensor
    has_eos: Tensor

    @classmethod
    def empty(cls, n: int, n_beams: int, device: torch.device) -> FinishedHypotheses:
        """Return empty slots."""
        zeros = torch.zeros(n, n_beams, device=device)
        return cls(torch.full_like(zeros, -torch.inf), zeros.long(), zeros.long(), zeros, zeros.bool())

    def merge(self, others: FinishedHypotheses) -> FinishedHypotheses:
        """Return the best K of both: hypotheses with EOS first, each group by descending ranking score."""
        both = FinishedHypotheses(*(torch.cat(pair, dim=1) for pair in zip(self, others, strict=True)))
        order = both.ranking_scores.argsort(dim=1, descending=True, stable=True)
        eos_first = both.has_eos.gather(1, order).long().argsort(dim=1, descending=True, stable=True)
        order = order.gather(1, eos_first)[:, : self.lengths.size(1)]
        return FinishedHypotheses(*(each.gather(1, order) for each in both))


class BackPointers(NamedTuple):
    """The token that each beam received at one position, and the beam that it extended."""

    sentences: Tensor  # [B]
    tokens: Tensor  # [B, K]
    parents: Tensor  # [B, K]
    log_probs: Tensor  # [B, K]


class BeamState:
    """Beams and finished hypotheses of a batch. Each position calls `advance` and then `drop_finished`."""

    def __init__(
        self,
        max_lengths: Tensor,
        n_beams: int,
        bos: int,
        eos: int,
        length_normalize: LengthNormalize,
        sync_interval: int | None = None,
    ) -> None:
        """Start with one beam per sentence that holds BOS.

        `max_lengths` limits the tokens of a translation, EOS included. [n] `sync_interval` is the number of positions
        between two checks for finished sentences; by default 1 on a CPU.
        """
        n, device = len(max_lengths), max_lengths.device
        self.n_beams, self.eos, self.length_normalize = n_beams, eos, length_normalize
        self.sync_interval = sync_interval or (1 if device.type == "cpu" else GPU_SYNC_INTERVAL)
        self._limits = set(cast(list[int], max_lengths.tolist()))
        self.position, self.last_position = 0, max(self._limits)
        self.sentences = torch.arange(n, device=device)  # index in the call of each sentence still searched. [B]
        self.max_lengths = max_lengths  # [B]
        self.tokens = torch.full((n, 1), bos, device=device)  # newest token of each beam. [B, K], at first [B, 1]
        self.scores = torch.zeros(n, 1, device=device)  # log-probability of each beam; -inf: no such beam. [B, K]
        self.finished = FinishedHypotheses.empty(n, n_beams, device)
        self._results = FinishedHypotheses.empty(n, n_beams, device)  # of dropped sentences, in the order of the call
        self._back_pointers: list[BackPointers] = []

    def advance(self, candidates: Candidates) -> Tensor:
        """Finish those of the best K candidates that end; the best others become the beams. Returns parents. [B, K]."""
        is_end = (candidates.tokens == self.eos) & (candidates.scores > -torch.inf)  # [B, N]
        new = Candidates(*(each[:, : self.n_beams] for each in candidates))
        if self.sync_interval > 1 or is_end.any():  # on a GPU, `any` would wait for the result
            self.finished = self.finished.merge(self._finish_with_eos(new, is_end[:, : self.n_beams]))
            others_first = is_end.long().argsort(dim=1, stable=True)[:, : self.n_beams]
            new = Candidates(*(each.gather(1, others_first) for each in candidates))
            new.scores.masked_fill_(is_end.gather(1, others_first) | self._is_done(), -torch.inf)
        self._back_pointers.append(BackPointers(self.sentences, new.tokens, new.parents, new.log_probs))
        self.tokens, self.scores = new.tokens, new.scores
        self.position += 1
        if self.position in self._limits:
            self._cut_at_limit()
        return new.parents

    def drop_finished(self) -> Tensor | None:
        """Drop finished sentences once enough are done. Returns the kept rows [B'], or None if nothing was dropped."""
        if self.position % self.sync_interval and self.position < self.last_position:
            return None
        kept = (self.scores > -torch.inf).any(1).nonzero().squeeze(1)
        if len(kept) > COMPACTION_SHARE * len(self.sentences):
            return None
        for result, finished in zip(self._results, self.finished, strict=True):
            result[self.sentences] = finished
        self.sentences, self.max_lengths = self.sentences[kept], self.max_lengths[kept]
        self.tokens, self.scores = self.tokens[kept], self.scores[kept]
        self.finished = FinishedHypotheses(*(each[kept] for each in self.finished))
        return kept

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Follow the back pointers. Returns at least one hypothesis per sentence, in the order of the call.

        If the log-probabilities of a sentence were NaN, its only hypothesis is empty and unfinished.
        """
        ranking_scores, lengths, beams, eos_log_probs, has_eos = (each.cpu().numpy() for each in self._results)
        tokens, parents, log_probs = self._stack_back_pointers()
        sentences = np.arange(len(lengths))[:, None]  # [n, 1]
        ids = np.zeros((*lengths.shape, self.position), np.int64)  # [n, K, T]
        id_log_probs = np.zeros_like(ids, np.float32)
        for position in reversed(range(self.position)):
            ids[:, :, position] = tokens[position][sentences, beams]
            id_log_probs[:, :, position] = log_probs[position][sentences, beams]
            beams = np.where(position < lengths, parents[position][sentences, beams], beams)  # [n, K]

        def hypothesis(i: int, k: int) -> Hypothesis:
            length = lengths[i, k]
            scores = [*id_log_probs[i, k, :length].tolist(), *([float(eos_log_probs[i, k])] if has_eos[i, k] else [])]
            return Hypothesis(ids[i, k, :length].tolist(), scores, bool(has_eos[i, k]), float(ranking_scores[i, k]))

        exists = ranking_scores > -np.inf
        nothing = Hypothesis([], [], finished=False, ranking_score=-np.inf)
        return [
            [hypothesis(i, k) for k in range(self.n_beams) if exists[i, k]] or [nothing] for i in range(len(lengths))
        ]

    def _stack_back_pointers(self) -> Iterator[NDArray[np.generic]]:
        """Yield tokens, parents and log-probabilities of all positions and sentences. [T, n, K] each."""
        positions = np.repeat(np.arange(self.position), [len(each.sentences) for each in self._back_pointers])
        sentences, *fields = (torch.cat(each).cpu().numpy() for each in zip(*self._back_pointers, strict=True))
        for field in fields:
            stacked = np.zeros((self.position, *self._results.lengths.shape), field.dtype)
            stacked[positions, sentences] = field
            yield stacked

    def _is_done(self) -> Tensor:
        """Return which sentences have K finished hypotheses. [B, 1]."""
        return (self.finished.ranking_scores > -torch.inf).all(1, keepdim=True)

    def _finish_with_eos(self, candidates: Candidates, is_end: Tensor) -> FinishedHypotheses:
        """Turn the candidates with EOS at this position into finished hypotheses. [B, K]."""
        length = self.position + 1  # with EOS
        ranking_scores = self.length_normalize(candidates.scores, length).masked_fill(~is_end, -torch.inf)
        lengths = torch.full_like(candidates.parents, self.position)
        return FinishedHypotheses(ranking_scores, lengths, candidates.parents, candidates.log_probs, is_end)

    def _cut_at_limit(self) -> None:
        """Turn the beams of sentences at their length limit into finished hypotheses without EOS."""
        is_at_limit = (self.max_lengths == self.position)[:, None]  # [B, 1]
        ranking_scores = self.length_normalize(self.scores, self.position).masked_fill(~is_at_limit, -torch.inf)
        beams = torch.arange(self.n_beams, device=ranking_scores.device).expand_as(ranking_scores)
        zeros = torch.zeros_like(ranking_scores)
        lengths = torch.full_like(beams, self.position)
        self.finished = self.finished.merge(FinishedHypotheses(ranking_scores, lengths, beams, zeros, zeros.bool()))
        self.scores = self.scores.masked_fill(is_at_limit, -torch.inf)


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
