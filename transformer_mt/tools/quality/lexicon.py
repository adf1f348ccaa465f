"""A small translation lexicon, learned from the corpus itself, that tells whether two sentences correspond.

IBM Model 1 (Brown et al. 1993) on the most frequent words of both languages. `V` source and `W` target words.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path

import numpy as np
import regex
from numpy.typing import NDArray

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.text_files import Pair
from transformer_mt.system.files import make_once, write_text
from transformer_mt.system.log import log_rank0
from transformer_mt.tools.languages.scripts import UNSPACED

VOCABULARY = 4000  # words of each language; the table of probabilities takes 64 MB
MIN_WORD_COUNT = 3  # of a word in the vocabulary
ITERATIONS = 4
SMOOTHING = 0.1  # weight of the unigram probability in the mixture
SHARED_RARE_WORD = 3.0  # nats: a rare word, such as a name or a number, that both sides have
UNSHARED_RARE_WORD = -0.4  # nats: another rare word of the target
UNSHARED_NUMBER = -1.0  # nats: a number that the other side lacks
MAX_WORDS = 100  # longer sentences are truncated
MAX_LINKS = (
    6_000_000  # pairs of words that are learned from, each 50 bytes of memory; fewer sentences if there are more
)

_WORD = regex.compile(rf"[{UNSPACED}]\p{{M}}*|[^\W{UNSPACED}]+")

Ids = NDArray[np.int32]


def tokenize_words(text: str) -> list[str]:
    """Split a text into words without case; each character of a script without spaces is a word."""
    return _WORD.findall(text.casefold())[:MAX_WORDS]


def find_words(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a text."""
    return [match.span() for match in islice(_WORD.finditer(text), MAX_WORDS)]


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

    def log_likelihood_ratio(self, src: EncodedSentence, tgt: EncodedSentence) -> float:
        """Return how much more probable the target is given the source than without it, as a logarithm in nats.

        Rare words add constants. A ratio below 0 speaks against a translation.
        """
        ratio = 0.0
        if len(tgt.ids):
            p = self.probabilities[src.ids[:, None], tgt.ids].mean(0)  # [words of the target]
            ratio = float(np.log((1 - SMOOTHING) * p / self.unigram[tgt.ids] + SMOOTHING).sum())
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


FORMAT = 1  # of the file, and of the method: part of the key of the cache
SAMPLE_SIZE = 20_000  # pairs of each source that the dictionary is learned from
MIN_SCORE = 0.03  # product of both probabilities of a word pair
MIN_LINK_SCORE = 0.015  # the same with the factor of the positions
DIAGONAL = 4.0  # a pair loses this factor, as a logarithm, per difference of its relative positions
N_FREQUENT = 50  # most frequent words of a language, most of which are function words


@dataclass(frozen=True)
class AlignedPair:
    """A sentence pair with one-to-one links between its words."""

    src: str
    tgt: str
    src_words: list[tuple[int, int]]  # start and end of each word
    tgt_words: list[tuple[int, int]]
    links: dict[int, int]  # target word by source word
    content: frozenset[int]  # source words that are not among the most frequent ones of the language

    def with_word(self, i: int, word: str) -> AlignedPair:
        """Return the pair with a word of the source replaced."""
        start, end = self.src_words[i]
        shift = len(word) - (end - start)
        later = [(start + shift, end + shift) for start, end in self.src_words[i + 1 :]]
        src_words = [*self.src_words[:i], (start, end + shift), *later]
        return replace(self, src=self.src[:start] + word + self.src[end:], src_words=src_words)


@dataclass(frozen=True)
class WordDictionary:
    """Words and their likely translations."""

    translations: Mapping[str, Mapping[str, float]]  # product of the probabilities of both directions
    known_src: frozenset[str]  # words that were frequent enough to learn translations
    known_tgt: frozenset[str]
    frequent_src: frozenset[str]

    @classmethod
    def learn(cls, sources: Iterable[Sequence[Pair]]) -> WordDictionary:
        """Learn from sentence pairs of one or several sources, each of which has one pair of languages."""
        translations = defaultdict[str, dict[str, float]](dict)
        known_src, known_tgt, frequent = set[str](), set[str](), set[str]()
        for pairs in sources:
            forward, backward = Lexicon.learn(pairs), Lexicon.learn([(tgt, src) for src, tgt in pairs])
            # row 0 of both tables is the NULL word
            products = forward.probabilities[1:] * backward.probabilities[1:].T  # [V, W]
            src_words, tgt_words = [*forward.src_ids], [*forward.tgt_ids]
            for i, j in np.argwhere(products >= MIN_SCORE).tolist():
                found = translations[src_words[i]]
                found[tgt_words[j]] = max(found.get(tgt_words[j], 0.0), round(float(products[i, j]), 4))
            known_src.update(src_words)
            known_tgt.update(tgt_words)
            frequent.update(src_words[:N_FREQUENT])
        return cls(dict(translations), frozenset(known_src), frozenset(known_tgt), frozenset(frequent))

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        write_text(path, json.dumps(asdict(self), ensure_ascii=False, default=sorted))

    @classmethod
    def load(cls, path: Path) -> WordDictionary:
        """Read the file that `save` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        sets = (frozenset[str](content[name]) for name in ("known_src", "known_tgt", "frequent_src"))
        return cls(content["translations"], *sets)

    def align(self, src: str, tgt: str) -> AlignedPair:
        """Link words of a sentence pair."""
        src_spans, tgt_spans = find_words(src), find_words(tgt)
        src_words = [src[start:end].casefold() for start, end in src_spans]
        tgt_words = [tgt[start:end].casefold() for start, end in tgt_spans]
        links = self._link(src_words, tgt_words)
        _fill_gaps(links, len(src_words), len(tgt_words))
        content = frozenset(i for i, word in enumerate(src_words) if word not in self.frequent_src)
        return AlignedPair(src, tgt, src_spans, tgt_spans, links, content)

    def _link(self, src_words: Sequence[str], tgt_words: Sequence[str]) -> dict[int, int]:
        """Return the links between words that are translations, and between equal rare words and numbers."""
        occurrences = defaultdict[str, list[int]](list)
        for j, word in enumerate(tgt_words):
            occurrences[word].append(j)
        candidates: list[tuple[float, int, int]] = []
        for i, word in enumerate(src_words):
            translations = self.translations.get(word, {})
            if word in occurrences and (word.isdigit() or word not in self.known_src or word not in self.known_tgt):
                translations = {**translations, word: 1.0}
            position = i / len(src_words)
            candidates += [
                (score * math.exp(-DIAGONAL * abs(position - j / len(tgt_words))), i, j)
                for translation, score in translations.items()
                for j in occurrences.get(translation, ())
            ]
        candidates = [candidate for candidate in candidates if candidate[0] >= MIN_LINK_SCORE]
        candidates.sort(key=lambda candidate: (-candidate[0], *candidate[1:]))
        links, used = dict[int, int](), set[int]()
        for _, i, j in candidates:
            if i not in links and j not in used:
                links[i] = j
                used.add(j)
        return links


def learn_dictionary(corpus: ParallelCorpus, cache_dir: Path) -> WordDictionary:
    """Return the dictionary of a corpus. It is learned once and cached."""
    settings = json.dumps([FORMAT, corpus.key, corpus.fingerprint])
    path = cache_dir / f"dictionary-{sha256(settings.encode()).hexdigest()[:16]}.json"

    def make() -> None:
        log_rank0("data: learning which words are translations of each other")
        sources = (source.sample(SAMPLE_SIZE) for source in corpus.split_sources())
        WordDictionary.learn(sources).save(path)

    make_once(path, make)
    return WordDictionary.load(path)


def _fill_gaps(links: dict[int, int], n_src: int, n_tgt: int) -> None:
    """Link two words without links if the words before both are linked, and the words after both too."""
    used = {*links.values()}
    ends = {-1: -1, n_src: n_tgt}
    for i in range(n_src):
        before = ends[-1] if i == 0 else links.get(i - 1)
        after = ends[n_src] if i == n_src - 1 else links.get(i + 1)
        if i not in links and before is not None and after == before + 2 and before + 1 not in used:
            links[i] = before + 1
            used.add(before + 1)
