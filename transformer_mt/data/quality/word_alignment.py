"""Word alignment of sentence pairs with a small bilingual dictionary: few links, and most of them right.

The dictionary has word pairs that are likely in both directions of IBM Model 1. In a sentence pair, words are linked
one to one, the likeliest pair first (competitive linking, Melamed 2000). Similar relative positions are preferred.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.quality.lexicon import Lexicon, find_words
from transformer_mt.data.text_files import Pair
from transformer_mt.system.files import make_once, write_text
from transformer_mt.system.logging import log_rank0

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
