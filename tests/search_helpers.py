"""A toy step function for tests of the search, and a random search for tests of the decoder."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor

from transformer_mt.model.inference import InferenceModel
from transformer_mt.model.transformer import Transformer

Scores = Callable[[list[list[int]]], list[list[float]]]
"""Prefixes of the translations of one sentence -> log-probabilities of the next token of each."""


class Toy:
    """A cache and a step function whose log-probabilities depend on the sentence and the whole prefix. EOS is 0."""

    def __init__(self, sentences: Sequence[int], vocab: int) -> None:
        self.vocab = vocab
        self.sentences = list(sentences)
        self.read: list[list[list[int]]] = [[[]] for _ in sentences]  # BOS first; of each sentence, of each branch
        self.sizes: list[int] = []  # sentences at each step

    def reorder(self, parents: Tensor) -> None:
        chosen = cast("list[list[int]]", parents.tolist())
        self.read = [[branches[k] for k in row] for branches, row in zip(self.read, chosen, strict=True)]

    def select(self, rows: Tensor) -> None:
        kept = cast("list[int]", rows.tolist())
        self.sentences, self.read = [self.sentences[row] for row in kept], [self.read[row] for row in kept]

    def step(self, tokens: Tensor, state: Toy) -> Iterator[Tensor]:
        """Yield slices of two sentences."""
        assert state is self
        self.sizes.append(len(self.sentences))
        new = cast("list[list[int]]", tokens.tolist())
        self.read = [
            [[*ids, token] for ids, token in zip(branches, row, strict=True)]
            for branches, row in zip(self.read, new, strict=True)
        ]
        rows = [
            self.scores(sentence)([ids[1:] for ids in branches])
            for sentence, branches in zip(self.sentences, self.read, strict=True)
        ]
        yield from torch.tensor(rows).split(2)

    def scores(self, sentence: int) -> Scores:
        return lambda prefixes: [list(random_log_probs(sentence, tuple(ids), self.vocab)) for ids in prefixes]


@cache
def random_log_probs(sentence: int, ids: tuple[int, ...], vocab: int) -> tuple[float, ...]:
    """Return random log-probabilities that depend only on the arguments."""
    dice = random.Random(f"{sentence} {ids}")
    logits = torch.tensor([dice.gauss(0, 1.5) for _ in range(vocab)])
    return tuple(cast("list[float]", logits.log_softmax(0).tolist()))


class RandomSearch:
    """A search with random tokens and parents. It keeps the tokens of each hypothesis for comparison."""

    def __init__(self, model: Transformer, src: Tensor) -> None:
        self.model, self.decoder, self.src = model, InferenceModel(model), src
        self.cache = self.decoder.start(src)
        self.hypotheses = src.new_empty(len(src), 1, 0)  # [B, K, t]

    def step(self) -> Tensor:
        """Decode a random token for each hypothesis, and return its logits. [B, K, V]"""
        tokens = torch.randint(1, 23, self.hypotheses.shape[:2]).to(self.src.device)
        self.hypotheses = torch.cat([self.hypotheses, tokens[:, :, None]], dim=2)
        return self.decoder.logits(self.decoder.step(tokens, self.cache))

    def reorder(self, n_hypotheses: int) -> None:
        """Let hypotheses continue random ones."""
        parents = torch.randint(0, self.hypotheses.size(1), (len(self.src), n_hypotheses)).to(self.src.device)
        self.hypotheses = self.hypotheses.gather(1, parents[:, :, None].expand(-1, -1, self.hypotheses.size(2)))
        self.cache.reorder(parents)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order."""
        self.src, self.hypotheses = self.src[rows], self.hypotheses[rows]
        self.cache.select(rows)

    def recompute(self) -> Tensor:
        """Return the logits of a full forward pass over the prefix of each hypothesis. [B, K, V]"""
        src = self.src.repeat_interleave(self.hypotheses.size(1), 0)
        states = self.model(src, self.hypotheses.flatten(0, 1))[:, -1]
        return self.model.logits(states).unflatten(0, self.hypotheses.shape[:2])

    def assert_equals_forward_pass(self, tolerance: float = 1e-4) -> None:
        """Take a step, and compare its logits with those of full forward passes."""
        torch.testing.assert_close(self.step(), self.recompute(), atol=tolerance, rtol=tolerance)
