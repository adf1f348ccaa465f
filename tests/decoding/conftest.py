"""Reference beam search in plain lists, a toy step function, and a translator with a briefly trained model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from transformer_mt.data.batches import BatchStream, StreamPosition
from transformer_mt.data.encoding import EncodedCorpus
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.search import Hypothesis
from transformer_mt.decoding.translator import Translator
from transformer_mt.model.transformer import Transformer
from transformer_mt.tools.markup.stages import make_stages
from transformer_mt.training.loss import batch_loss
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.schedule import inverse_sqrt
from transformer_mt.training.training_config import OptimizerConfig

Scores = Callable[[list[list[int]]], list[list[float]]]
"""Prefixes of the translations of one sentence -> log-probabilities of the next token of each."""

NEG_INF = -math.inf


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


@pytest.fixture(scope="session")
def toy() -> type[Toy]:
    """`toy(sentences, vocab)`."""
    return Toy


def reference_beam_search(scores: Scores, limit: int, config: DecodingConfig, eos: int = 0) -> list[Hypothesis]:
    """Search one sentence in plain lists, with the formulas of `DecodingConfig` repeated here."""

    def rank(total: float, length: int) -> float:
        base = length if config.length_penalty == "average" else (5 + length) / 6
        return total / base**config.length_penalty_exponent

    branches: list[tuple[list[int], list[float]]] = [([], [])]
    ended: list[Hypothesis] = []
    for position in range(limit):
        candidates = [
            (sum(log_probs) + log_prob, [*ids, token], [*log_probs, log_prob])
            for (ids, log_probs), row in zip(branches, scores([ids for ids, _ in branches]), strict=True)
            for token, log_prob in enumerate(row)
            if log_prob > NEG_INF and (token != eos or position >= config.min_length)
        ]
        candidates.sort(reverse=True)
        for total, ids, log_probs in candidates[: config.beam]:
            if ids[-1] == eos:
                ended.append(Hypothesis(ids[:-1], log_probs, finished=True, ranking_score=rank(total, position + 1)))
        ended = sorted(ended, key=lambda one: -one.ranking_score)[: config.beam]
        branches = [(ids, log_probs) for _, ids, log_probs in candidates if ids[-1] != eos][: config.beam]
        if len(ended) == config.beam or not branches:
            return ended
    cut = [
        Hypothesis(ids, log_probs, finished=False, ranking_score=rank(sum(log_probs), limit))
        for ids, log_probs in branches
    ]
    return (ended + cut)[: config.beam]


def assert_same_hypotheses(found: Sequence[Hypothesis], wanted: Sequence[Hypothesis]) -> None:
    """Assert that two lists have the same hypotheses in the same order, with equal scores."""
    assert [(one.ids, one.finished) for one in found] == [(one.ids, one.finished) for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=2e-5)
        assert ours.ranking_score == pytest.approx(theirs.ranking_score, abs=1e-4)


@pytest.fixture(scope="session")
def reference_search() -> Callable[..., list[Hypothesis]]:
    """`reference_search(scores, limit, config, eos)` searches one sentence in plain lists."""
    return reference_beam_search


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Sequence[Hypothesis], Sequence[Hypothesis]], None]:
    """`assert_same(found, wanted)` compares two lists of hypotheses."""
    return assert_same_hypotheses


@pytest.fixture(scope="session")
def make_translator(
    make_model: Callable[..., Transformer], make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair
) -> Callable[..., Translator]:
    """`make_translator(**decoding)` has a briefly trained model, so translations differ and some are cut."""
    src, tgt = small_tokenizers.src, small_tokenizers.tgt
    one, sizes = {"n_layers": 1}, (src.vocab_size, tgt.vocab_size)
    model = make_model(vocab=sizes, pad=(src.pad_id, tgt.pad_id), d_model=32, d_ff=64, encoder=one, decoder=one)
    (optimizer,) = make_optimizers(OptimizerConfig(), model)
    corpus = make_corpus(*(src.encode(texts) for texts in zip(*load_pairs("test")[:300], strict=True)))
    batches, _ = BatchStream(corpus, small_tokenizers, tokens=400, seed=1).take(StreamPosition(), 200)
    for step, batch in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = inverse_sqrt(step, peak=0.01, warmup_steps=20)
        optimizer.zero_grad()
        (batch_loss(model, batch, smoothing=0.1)["loss"] / batch.n_tgt).backward()
        optimizer.step()
    optimizer.zero_grad()

    def make_translator(**decoding: Any) -> Translator:
        settings = {"max_length_factor": 1, "max_length_offset": 2, **decoding}
        return Translator(
            TorchEngine([model], small_tokenizers),
            small_tokenizers,
            DecodingConfig.model_validate(settings),
            (),
            make_stages,
        )

    return make_translator
