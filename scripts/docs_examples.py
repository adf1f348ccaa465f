"""The worked examples of docs/transformer.md, computed with the package. Figures and tests use them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer_mt.data.tokenizers import trainers
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.search import BeamState, beam_candidates, beam_search
from transformer_mt.model.attention import KeysValues, causal_mask, explicit_attention
from transformer_mt.training.loss import explicit_cross_entropy

# --- byte-pair encoding -----------------------------------------------------------------------------------------------

WORD_COUNTS = {"der": 5, "den": 3, "er": 2, "wieder": 1}


def learn_merges(count: int) -> list[str]:
    """Return the first merges of byte-pair encoding on `WORD_COUNTS`, each as "left right"."""
    config = TokenizerConfig(kind="bpe", vocab_size=300, merges=count, min_frequency=1)
    texts = [word for word, n in WORD_COUNTS.items() for _ in range(n)]
    backend = trainers.train(config, lambda: iter(texts))
    merges: list[list[str]] = json.loads(backend.to_str())["model"]["merges"]
    return [" ".join(part.replace(" ", "▁") for part in merge) for merge in merges]


# --- attention --------------------------------------------------------------------------------------------------------

WORDS = ["the", "dog", "sleeps"]
QUERIES = torch.tensor([[1.0, 1, 0, 0], [1, 0, 0, 1], [0, 1, 0, 1]])  # [3, E]
KEYS = torch.tensor([[2.0, 0, 0, 0], [0, 2, 0, 2], [0, 0, 2, 2]])
VALUES = torch.tensor([[4.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 4]])


def scaled_scores() -> Tensor:
    """Return Q K^T / sqrt(E). [3, 3]."""
    return QUERIES @ KEYS.T / math.sqrt(QUERIES.size(1))


def attention_by_hand(*, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the context [3, E] and the attention weights [3, 3] of the example."""
    mask = causal_mask(len(WORDS)) if causal else None
    context, weights = explicit_attention(QUERIES[None, None], KeysValues(KEYS[None, None], VALUES[None, None]), mask)
    return context[0, 0], weights[0, 0]


# --- label smoothing --------------------------------------------------------------------------------------------------


def loss_of_label(probability: float, smoothing: float, vocabulary: int) -> float:
    """Return the smoothed loss if the label gets this probability and the other classes share the rest equally."""
    rest = (1 - probability) / (vocabulary - 1)
    logits = torch.tensor([[0.0, probability, *[rest] * (vocabulary - 1)]]).log()  # the pad symbol first
    return float(explicit_cross_entropy(logits, torch.tensor([1]), 0, smoothing)[0])


# --- beam search ------------------------------------------------------------------------------------------------------

Prefix = tuple[str, ...]

NEXT_WORDS: dict[Prefix, dict[str, float]] = {
    (): {"Der": 0.6, "Ein": 0.4},
    ("Der",): {"Hund": 0.4, "Hase": 0.3, "Wolf": 0.3},
    ("Ein",): {"Hund": 0.9, "</s>": 0.1},
    ("Der", "Hund"): {"schläft": 0.55, "</s>": 0.45},
    ("Ein", "Hund"): {"schläft": 0.6, "</s>": 0.4},
    ("Der", "Hund", "schläft"): {"</s>": 0.6, "tief": 0.4},
    ("Ein", "Hund", "schläft"): {"</s>": 0.6, "tief": 0.4},
}
"""The probabilities of the next word in a tiny model, for each prefix of a translation."""
VOCABULARY = ["<s>", "</s>", "Der", "Ein", "Hund", "Hase", "Wolf", "schläft", "tief"]
MAX_LENGTH = 5


class WordCache:
    """The words of each beam so far, in place of keys and values."""

    def __init__(self) -> None:
        self.beams: list[Prefix] = [()]
        self.kept: set[Prefix] = set()  # every prefix that was a beam

    def reorder(self, parents: Tensor) -> None:
        """Let beam k continue former beam parents[0, k]. [1, K]."""
        self.beams = [self.beams[int(parent)] for parent in parents[0]]

    def select(self, rows: Tensor) -> None:
        """Do nothing: there is one sentence."""


def next_log_probs(tokens: Tensor, cache: WordCache) -> Iterator[Tensor]:
    """Look up the next words of each beam. [1, K] -> [1, K, V]."""
    cache.beams = [(*beam, VOCABULARY[int(token)]) for beam, token in zip(cache.beams, tokens[0], strict=True)]
    prefixes = [beam[1:] for beam in cache.beams]  # without <s>
    cache.kept.update(prefix for prefix in prefixes if prefix in NEXT_WORDS)
    known = [NEXT_WORDS.get(prefix, {}) for prefix in prefixes]
    yield torch.tensor([[[words.get(word, 0.0) for word in VOCABULARY] for words in known]]).log()


class Found(NamedTuple):
    """A finished translation."""

    words: Prefix  # with </s>
    probability: float
    ranking_score: float


def search(beam: int, length_penalty_exponent: float = 1.0) -> tuple[list[Found], set[Prefix]]:
    """Return the translations that a search finds, the best first, and the prefixes that it kept as beams."""
    config, cache = DecodingConfig(beam=beam, length_penalty_exponent=length_penalty_exponent), WordCache()
    bos, eos = VOCABULARY.index("<s>"), VOCABULARY.index("</s>")
    state = BeamState(torch.tensor([MAX_LENGTH]), beam, bos, eos, config.length_normalize)
    (hypotheses,) = beam_search(next_log_probs, cache, state, beam_candidates)
    found = [
        Found((*(VOCABULARY[i] for i in each.ids), "</s>"), math.exp(each.score), each.ranking_score)
        for each in hypotheses
    ]
    return found, cache.kept


def probability_of(prefix: Prefix) -> float:
    """Return the product of the probabilities of the words of a prefix."""
    return math.prod(NEXT_WORDS[prefix[:i]][word] for i, word in enumerate(prefix))


# --- BLEU -------------------------------------------------------------------------------------------------------------

HYPOTHESIS = "Der alte Hund schläft in dem Garten."
REFERENCE = "Der alte Hund liegt ruhig in dem Garten."


def words_of(text: str) -> list[str]:
    """Return the words, the full stop apart, as sacreBLEU's tokenizer 13a does here."""
    return text.replace(".", " .").split()


def ngrams(text: str, n: int) -> Counter[tuple[str, ...]]:
    """Count the sequences of n words."""
    words = words_of(text)
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def matches(n: int) -> tuple[int, int]:
    """Return how many n-grams of the hypothesis occur in the reference, and how many there are."""
    found = ngrams(HYPOTHESIS, n)
    return (found & ngrams(REFERENCE, n)).total(), found.total()


def brevity_penalty(hypothesis_length: float, reference_length: float) -> float:
    """Return BLEU's factor for translations that are too short."""
    return min(1.0, math.exp(1 - reference_length / hypothesis_length))


def bleu_by_hand() -> dict[str, Any]:
    """Return the parts of BLEU: precisions, their geometric mean, the brevity penalty and the score."""
    precisions = [found / total for found, total in map(matches, range(1, 5))]
    mean = math.prod(precisions) ** (1 / 4)
    penalty = brevity_penalty(len(words_of(HYPOTHESIS)), len(words_of(REFERENCE)))
    return {"precisions": precisions, "mean": mean, "penalty": penalty, "score": 100 * mean * penalty}
