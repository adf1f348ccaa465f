"""Statistics of a parallel corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice

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


@dataclass
class CorpusStatistics:
    """Statistics of both languages of a corpus."""

    n_pairs: int  # without those that have an empty side
    n_empty: int
    n_copies: int  # pairs whose sides are equal
    src: SideStatistics
    tgt: SideStatistics


def inspect_pairs(pairs: Iterable[SentencePair]) -> CorpusStatistics:
    """Read all pairs and return their statistics. Empty pairs are only counted."""
    n_pairs = n_empty = n_copies = 0
    sample: list[tuple[str, str]] = []
    stride, remaining = 1, iter(pairs)
    blocks = iter(lambda: [*islice(remaining, BLOCK_SIZE)], list[SentencePair]())
    for pair in chain.from_iterable(log_progress(blocks, "read")):
        if not (pair.src.strip() and pair.tgt.strip()):
            n_empty += 1
            continue
        if n_pairs % stride == 0:
            sample.append((pair.src, pair.tgt))
            if len(sample) == 2 * SAMPLE_SIZE:
                sample, stride = sample[::2], 2 * stride
        n_pairs += 1
        n_copies += pair.src == pair.tgt
    src, tgt = (_compute_statistics([pair[i] for pair in sample]) for i in (0, 1))
    return CorpusStatistics(n_pairs, n_empty, n_copies, src, tgt)


def _compute_statistics(sample: list[str]) -> SideStatistics:
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
    return SideStatistics(sample, script, is_spaced, len(characters))
