"""Statistics of a parallel corpus."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from transformer_mt.data.corpus import BLOCK_SIZE, log_progress
from transformer_mt.data.text_files import SentencePair
from transformer_mt.tools.languages.scripts import UNSPACED_SCRIPTS, find_script

LETTERS_PER_SPACE = 20  # text with more letters per space has no spaces between words
SAMPLE_SIZE = 20_000  # pairs, spread evenly over the corpus, in which characters are counted


@dataclass
class SideStatistics:
    """Statistics of one language."""

    sample: list[str]
    script: str  # Unicode name of the most frequent one, such as LATIN
    is_spaced: bool  # words are separated by spaces
    n_characters: int  # different characters of the sample
    unit: str  # "words", or "characters" in a text without spaces between words
    n_units: int
    lengths: dict[int, int]  # percentile -> units per sentence


@dataclass
class CorpusStatistics:
    """Statistics of both languages of a corpus."""

    n_pairs: int  # without those that have an empty side
    n_empty: int
    n_copies: int  # pairs whose sides are equal
    src: SideStatistics
    tgt: SideStatistics


@dataclass
class _Side:
    """Counts of one language while the corpus is read."""

    n_words: array[int] = field(default_factory=lambda: array("i"))  # per sentence
    n_characters: array[int] = field(default_factory=lambda: array("i"))  # per sentence, without spaces

    def add(self, text: str) -> None:
        words = text.split()
        self.n_words.append(len(words))
        self.n_characters.append(sum(map(len, words)))


def inspect_pairs(pairs: Iterable[SentencePair]) -> CorpusStatistics:
    """Read all pairs and return their statistics. Empty pairs are only counted."""
    n_empty, n_copies, stride = 0, 0, 1
    sample: list[tuple[str, str]] = []
    sides, remaining = (_Side(), _Side()), iter(pairs)
    blocks = iter(lambda: [*islice(remaining, BLOCK_SIZE)], list[SentencePair]())
    for pair in chain.from_iterable(log_progress(blocks, "read")):
        if not (pair.src.strip() and pair.tgt.strip()):
            n_empty += 1
            continue
        if len(sides[0].n_words) % stride == 0:
            sample.append((pair.src, pair.tgt))
            if len(sample) == 2 * SAMPLE_SIZE:
                sample, stride = sample[::2], 2 * stride
        n_copies += pair.src == pair.tgt
        sides[0].add(pair.src)
        sides[1].add(pair.tgt)
    src, tgt = (_compute_statistics(side, [pair[i] for pair in sample]) for i, side in enumerate(sides))
    return CorpusStatistics(len(sides[0].n_words), n_empty, n_copies, src, tgt)


def _compute_statistics(side: _Side, sample: list[str]) -> SideStatistics:
    characters = Counter(chain.from_iterable(sample))
    letters = {character: count for character, count in characters.items() if character.isalpha()}
    scripts = Counter[str]()
    for letter, count in letters.items():
        scripts[find_script(letter)] += count
    script = scripts.most_common(1)[0][0] if scripts else "none"
    n_letters, n_gaps = sum(letters.values()), sum(len(text.split()) - 1 for text in sample)
    is_spaced = n_gaps * LETTERS_PER_SPACE >= n_letters
    if script not in UNSPACED_SCRIPTS and n_letters <= LETTERS_PER_SPACE * len(sample):
        is_spaced = True  # a line of a few letters may be one word, so that only its script tells
    units = np.frombuffer(side.n_words if is_spaced else side.n_characters, np.int32)
    return SideStatistics(
        sample=sample,
        script=script,
        is_spaced=is_spaced,
        n_characters=len(characters),
        unit="words" if is_spaced else "characters",
        n_units=int(units.sum()),
        lengths={p: int(np.percentile(units, p)) if len(units) else 0 for p in (50, 95, 100)},
    )
