"""Modifiers of training pairs: lower-case sources, typing errors, missing end punctuation.

They make a model robust to text that its corpus lacks.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import regex
from pydantic import Field

from transformer_mt.config.section import Section
from transformer_mt.data.batches import Modify
from transformer_mt.data.characters import to_lower_case, to_sentence_case
from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.trainers import Pairs


class ModifierConfig(Section):
    """Probabilities of random modifications of training pairs, from 0 (off) to 1."""

    lower_source: float = Field(default=0.0, ge=0, le=1)
    """probability that a source is in lower case, half of these with a capital at the start; the target is unchanged"""
    drop_end_punctuation: float = Field(default=0.0, ge=0, le=1)
    """probability that a pair loses the punctuation at its end, on both sides"""
    typos: float = Field(default=0.0, ge=0, le=1)
    """probability that a source has typing errors: swapped, missing, double and wrong letters"""


# --- modifiers --------------------------------------------------------------------------------------------------------

LETTERS_PER_TYPO = 25

_GRAPHEME = regex.compile(r"\X")
_END_PUNCTUATION = regex.compile(r"[\p{P}\s]+$")


def drop_end_punctuation(src: str, tgt: str, _rng: random.Random) -> Pair:
    """Remove the punctuation at the end of both sides, if both have some and something is left."""
    left = _END_PUNCTUATION.sub("", src), _END_PUNCTUATION.sub("", tgt)
    return left if all(left) and left[0] != src and left[1] != tgt else (src, tgt)


def add_typos(src: str, tgt: str, rng: random.Random) -> Pair:
    """Swap, drop, double or replace letters of the source: one for each `LETTERS_PER_TYPO`, and at least one."""
    graphemes: list[str] = _GRAPHEME.findall(src)
    letters = [i for i, grapheme in enumerate(graphemes) if unicodedata.category(grapheme[0]).startswith("L")]
    for i in rng.sample(letters, min(len(letters), max(1, len(letters) // LETTERS_PER_TYPO))):
        kind = rng.randrange(4)
        if kind == 0 and i + 1 in letters:
            graphemes[i], graphemes[i + 1] = graphemes[i + 1], graphemes[i]
        else:
            graphemes[i] = ["", 2 * graphemes[i], graphemes[rng.choice(letters)]][max(0, kind - 1)]
    changed = "".join(graphemes)
    return (changed if changed.strip() else src), tgt


def lower_source(src: str, tgt: str, rng: random.Random) -> Pair:
    """Write the source in lower case or in sentence case, each with the same probability."""
    return (to_lower_case if rng.random() < 0.5 else to_sentence_case)(src), tgt


PAIR_MODIFIERS: dict[str, Callable[[str, str, random.Random], Pair]] = {
    "drop_end_punctuation": drop_end_punctuation,
    "typos": add_typos,
    "lower_source": lower_source,
}
"""Modifiers by key of the configuration, in the order in which they are applied."""


def make_modify(config: ModifierConfig) -> Modify:
    """Return the function that modifies the pairs of a batch."""
    return partial(_modify, config)


def _modify(config: ModifierConfig, pairs: Sequence[Pair], rng: random.Random) -> list[Pair]:
    modified: list[Pair] = []
    for src, tgt in pairs:
        for name, change in PAIR_MODIFIERS.items():
            if rng.random() < getattr(config, name):
                src, tgt = change(src, tgt, rng)
        modified.append((src, tgt))
    return modified


RNG_STREAM = 0x6D6F66  # separates these random numbers from others with the same seed


class TokenizerTrainingPairs:
    """Training pairs of the tokenizers, with lower-case sources as in the training of the model.

    Without them, a tokenizer would split some lower-case words into letters. Each iteration yields the same pairs.
    """

    def __init__(self, pairs: Pairs, config: ModifierConfig, seed: int) -> None:
        self._pairs, self._config, self._seed = pairs, config, seed

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs in order."""
        rng = random.Random(f"{self._seed} {RNG_STREAM}")
        for src, tgt in self._pairs:
            yield lower_source(src, tgt, rng) if rng.random() < self._config.lower_source else (src, tgt)
