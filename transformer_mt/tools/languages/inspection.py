"""Statistics of a parallel corpus, read once in constant memory: sizes, lengths, scripts, spaces between words."""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from transformer_mt.data.corpus import split_into_blocks
from transformer_mt.data.text_files import SentencePair

SAMPLE_SIZE = 20_000  # pairs, spread evenly over the corpus, in which characters are counted
UNSPACED_SCRIPTS = {
    "HAN": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    "HIRAGANA": "\u3041-\u309f",
    "KATAKANA": "\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "THAI": "\u0e00-\u0e7f",
    "LAO": "\u0e80-\u0eff",
    "KHMER": "\u1780-\u17ff",
    "MYANMAR": "\u1000-\u109f",
    "TIBETAN": "\u0f00-\u0fff",
}
"""Scripts that put no spaces between words, with the ranges of their characters."""
LETTERS_PER_SPACE = 20  # text with more letters per space has no spaces between words
MIN_CHARACTER_COUNT = 2  # a rarer character belongs to no vocabulary; see tokenizer.min_frequency


@dataclass
class SideStatistics:
    """Statistics of one language."""

    sample: list[str]
    script: str  # Unicode name of the most frequent one, such as LATIN
    is_spaced: bool  # words are separated by spaces
    n_characters: int  # different characters of the sample, except those that occur once
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
    sides = _Side(), _Side()
    for pair in chain.from_iterable(split_into_blocks(iter(pairs), "read")):
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
    n_gaps = sum(len(text.split()) - 1 for text in sample)
    spaced = is_spaced(script, sum(letters.values()), n_gaps, len(sample))
    units = np.frombuffer(side.n_words if spaced else side.n_characters, np.int32)
    return SideStatistics(
        sample=sample,
        script=script,
        is_spaced=spaced,
        n_characters=sum(count >= MIN_CHARACTER_COUNT for count in characters.values()),
        unit="words" if spaced else "characters",
        n_units=int(units.sum()),
        lengths={p: int(np.percentile(units, p)) if len(units) else 0 for p in (50, 95, 100)},
    )


def find_script(letter: str) -> str:
    """Return the script of a letter, in the words of its Unicode name: LATIN, CYRILLIC, HAN, HANGUL, ..."""
    name = unicodedata.name(letter, "unknown").split("-")[0].split()[0]
    return "HAN" if name == "CJK" else name


def is_spaced(script: str, n_letters: int, n_gaps: int, n_lines: int) -> bool:
    """Return whether spaces separate words.

    A line of a few letters may be one word, so that only its script tells.
    """
    if n_gaps * LETTERS_PER_SPACE >= n_letters:
        return True
    return script not in UNSPACED_SCRIPTS and n_letters <= LETTERS_PER_SPACE * n_lines
