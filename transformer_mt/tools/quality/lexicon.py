"""A small translation lexicon, learned from the corpus itself, that tells whether two sentences correspond.

IBM Model 1 (Brown et al. 1993) on the most frequent words of both languages. `V` source and `W` target words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import regex
from numpy.typing import NDArray

from transformer_mt.tools.languages.scripts import UNSPACED
from transformer_mt.tools.quality.signals import to_ascii_numbers

VOCABULARY = 4000  # words of each language; the table of probabilities takes 64 MB
MIN_WORD_COUNT = 3  # of a word in the vocabulary
ITERATIONS = 4
SMOOTHING = 0.1  # weight of the unigram probability in the mixture
SHARED_RARE_WORD = 3.0  # nats: a rare word, such as a name or a number, that both sides have
UNSHARED_RARE_WORD = -0.4  # nats: another rare word of the target
UNSHARED_NUMBER = -1.0  # nats: a number that the other side lacks
MAX_WORDS = 100  # longer sentences are truncated
MAX_LINKS = 6_000_000  # pairs of words that are learned from, each 50 bytes; fewer sentences if there are more

_WORD = regex.compile(rf"[{UNSPACED}]\p{{M}}*|[^\W{UNSPACED}]+")

Ids = NDArray[np.int32]


def tokenize_words(text: str) -> list[str]:
    """Split a text into casefolded words with ASCII digits. Each character of a script without spaces is a word."""
    return _WORD.findall(to_ascii_numbers(text.casefold()))[:MAX_WORDS]


@dataclass(frozen=True)
class EncodedSentence:
    """The frequent words of a sentence as ids; rare words and all numbers as text."""

    ids: Ids
    rare_or_number: frozenset[str]


@dataclass(frozen=True)
class Lexicon:
    """Probabilities of target words given source words."""

    src_ids: dict[str, int]  # from 1; 0 is the NULL word of IBM Model 1
    tgt_ids: dict[str, int]
    probabilities: NDArray[np.float32]  # [V + 1, W] of a target word given a source word
    unigram: NDArray[np.float32]  # [W]

    @classmethod
    def learn(cls, pairs: Sequence[tuple[str, str]]) -> Lexicon:
        """Learn from sentence pairs, most of which correspond. 20,000 pairs are plenty."""
        src_words, tgt_words = ([tokenize_words(pair[side]) for pair in pairs] for side in (0, 1))
        src_ids = {word: i for i, word in enumerate(_frequent(src_words), start=1)}
        tgt_ids = {word: i for i, word in enumerate(_frequent(tgt_words))}
        src = [[0, *(src_ids[word] for word in words if word in src_ids)] for words in src_words]
        tgt = [[tgt_ids[word] for word in words if word in tgt_ids] for words in tgt_words]
        n_links = sum(len(s) * len(t) for s, t in zip(src, tgt, strict=True))
        stride = max(1, -(-n_links // MAX_LINKS))
        src, tgt = src[::stride], tgt[::stride]
        counts = np.bincount(np.fromiter(chain.from_iterable(tgt), np.int64), minlength=len(tgt_ids))
        table = _train(src, tgt, len(src_ids) + 1, len(tgt_ids))
        return cls(src_ids, tgt_ids, table, (counts / max(1, counts.sum())).astype(np.float32))

    def encode(self, text: str, *, is_src: bool) -> EncodedSentence:
        """Look up the words of a sentence."""
        ids, words = self.src_ids if is_src else self.tgt_ids, tokenize_words(text)
        known = [ids[word] for word in words if word in ids]
        rare = frozenset(word for word in words if word not in ids or word.isdigit())
        return EncodedSentence(np.array(([0] if is_src else []) + known, np.int32), rare)

    def log_likelihood_ratio_of_texts(self, src: str, tgt: str) -> float:
        """Return the log-likelihood ratio of two sentences."""
        return self.log_likelihood_ratio(self.encode(src, is_src=True), self.encode(tgt, is_src=False))

    def log_likelihood_ratio_per_word(self, src: str, tgt: str) -> float:
        """Return the log-likelihood ratio of two sentences, divided by the words of the target."""
        target = self.encode(tgt, is_src=False)
        n_words = max(1, len(target.ids) + len(target.rare_or_number))
        return self.log_likelihood_ratio(self.encode(src, is_src=True), target) / n_words

    def log_likelihood_ratio(self, src: EncodedSentence, tgt: EncodedSentence) -> float:
        """Return how much more probable the target is given the source than without it, as a logarithm in nats.

        Rare words add constants. A ratio below 0 speaks against a translation.
        """
        ratio = 0.0
        if len(tgt.ids):
            p = self.probabilities[src.ids[:, None], tgt.ids].mean(0)  # [words of the target]
            unigram = self.unigram[tgt.ids]
            ratios = np.divide(p, unigram, out=np.ones_like(p), where=unigram > 0)  # 1: the word was not learned
            ratio = float(np.log((1 - SMOOTHING) * ratios + SMOOTHING).sum())
        if src.rare_or_number or tgt.rare_or_number:
            common = src.rare_or_number & tgt.rare_or_number
            n_numbers = sum(map(str.isdigit, src.rare_or_number ^ tgt.rare_or_number))
            ratio += (
                SHARED_RARE_WORD * len(common)
                + UNSHARED_RARE_WORD * len(tgt.rare_or_number - common)
                + UNSHARED_NUMBER * n_numbers
            )
        return ratio


def _frequent(sentences: Iterable[Sequence[str]]) -> list[str]:
    counts = Counter(chain.from_iterable(sentences))
    return [word for word, count in counts.most_common(VOCABULARY) if count >= MIN_WORD_COUNT]


def _train(src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], n_src: int, n_tgt: int) -> NDArray[np.float32]:
    """Estimate the probabilities by expectation maximisation, from uniform ones."""
    keys: list[NDArray[np.int64]] = []
    groups: list[NDArray[np.int64]] = []  # number of the target word that each key belongs to
    n_groups = 0
    for s, t in zip(src, tgt, strict=True):
        if t:
            keys.append((np.array(s)[None, :] * n_tgt + np.array(t)[:, None]).ravel())  # [words of t x words of s]
            groups.append(np.repeat(np.arange(n_groups, n_groups + len(t)), len(s)))
            n_groups += len(t)
    if not keys:
        return np.zeros((n_src, n_tgt), np.float32)
    key, group = np.concatenate(keys), np.concatenate(groups)
    cells, key = np.unique(key, return_inverse=True)  # only words that occur together have a probability
    row = cells // n_tgt
    p = np.ones(len(cells))
    for _ in range(ITERATIONS):
        share = p[key]
        share /= np.bincount(group, share, n_groups)[group]
        counts = np.bincount(key, share, len(cells))
        p = counts / np.bincount(row, counts, n_src)[row]
    table = np.zeros(n_src * n_tgt, np.float32)
    table[cells] = p
    return table.reshape(n_src, n_tgt)
