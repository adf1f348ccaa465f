"""Modifiers of training pairs: capitals, typing errors, missing punctuation, joined sentences, and others.

They make a model robust to text that its corpus lacks. Capitals and joining apply to whole batches, because such text
has more tokens: a few such sentences would add padding to all others. The other modifiers apply to single pairs.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce

import regex

from transformer_mt.data.batches import ModifiedPair, Modify
from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.trainers import Pairs
from transformer_mt.tools.augmentation.modifier_config import ModifierConfig
from transformer_mt.tools.languages.scripts import UNSPACED

LETTERS_PER_TYPO = 25

_GRAPHEME = regex.compile(r"\X")
_WORD_START = regex.compile(r"(?<![\w'’])\w")
_END_PUNCTUATION = regex.compile(r"[\p{P}\s]+$")
_INNER_PUNCTUATION = regex.compile(r"[,;:\-–—]")
_NUMBER = regex.compile(r"(?<![\d.,])\d+(?![\d.,]*\d)")
_NAME = regex.compile(r"(?<=\s)\p{Lu}\p{L}{2,}")
_UNSPACED_END = regex.compile(rf"[{UNSPACED}]\W*$")


def choose_case(config: ModifierConfig, value: float) -> Callable[[str], str] | None:
    """Return the change of case that a random number from 0 to 1 selects, or None."""
    for probability, change in ((config.upper, str.upper), (config.title, title_case), (config.lower, str.lower)):
        if value < probability:
            return change
        value -= probability
    return None


def title_case(text: str) -> str:
    """Return a text in which each word starts with a capital."""
    return _WORD_START.sub(lambda match: match[0].upper(), text)


def join_sentences(first: str, second: str) -> str:
    """Join two sentences, with a space unless the script has none between words."""
    return first.rstrip() + ("" if _UNSPACED_END.search(first) else " ") + second.lstrip()


def drop_end_punctuation(src: str, tgt: str, _rng: random.Random) -> Pair:
    """Remove the punctuation at the end of both sides, if both have some and something is left."""
    left = _END_PUNCTUATION.sub("", src), _END_PUNCTUATION.sub("", tgt)
    return left if all(left) and left[0] != src and left[1] != tgt else (src, tgt)


def add_typos(src: str, tgt: str, rng: random.Random) -> Pair:
    """Exchange, drop or double letters of the source: one for each `LETTERS_PER_TYPO`, and at least one."""
    graphemes: list[str] = _GRAPHEME.findall(src)
    letters = [i for i, grapheme in enumerate(graphemes) if unicodedata.category(grapheme[0]).startswith("L")]
    for i in rng.sample(letters, min(len(letters), max(1, len(letters) // LETTERS_PER_TYPO))):
        kind = rng.randrange(3)
        if kind == 0 and i + 1 in letters:
            graphemes[i], graphemes[i + 1] = graphemes[i + 1], graphemes[i]
        else:
            graphemes[i] = "" if kind == 1 else 2 * graphemes[i]
    changed = "".join(graphemes)
    return (changed if changed.strip() else src), tgt


def disturb_punctuation(src: str, tgt: str, rng: random.Random) -> Pair:
    """Drop, double or displace each punctuation mark inside the source with a probability of a half."""

    def disturb(match: regex.Match[str]) -> str:
        return rng.choice([match[0]] * 3 + ["", 2 * match[0], f" {match[0]}"])

    return _INNER_PUNCTUATION.sub(disturb, src), tgt


def replace_numbers(src: str, tgt: str, rng: random.Random) -> Pair:
    """Replace each number that occurs exactly once on each side by a random one of the same length."""
    common = [n for n in _NUMBER.findall(src) if _NUMBER.findall(src).count(n) == 1 == _NUMBER.findall(tgt).count(n)]
    new = {
        number: str(rng.randrange(10 ** (len(number) - 1) if len(number) > 1 else 0, 10 ** len(number)))
        for number in common
        if number.isascii()
    }

    def replace(match: regex.Match[str]) -> str:
        return new.get(match[0], match[0])

    return _NUMBER.sub(replace, src), _NUMBER.sub(replace, tgt)


def replace_names(src: str, tgt: str, rng: random.Random) -> Pair:
    """Replace a capitalised word that occurs once inside both sides by its letters in another order."""
    common = [
        name for name in _NAME.findall(src) if src.count(name) == 1 == tgt.count(name) and name in _NAME.findall(tgt)
    ]
    if not common:
        return src, tgt
    name = rng.choice(common)
    letters = [*name.lower()]
    rng.shuffle(letters)
    invented = "".join(letters).capitalize()
    return src.replace(name, invented), tgt.replace(name, invented)


PAIR_MODIFIERS: dict[str, Callable[[str, str, random.Random], Pair]] = {
    "replace_numbers": replace_numbers,
    "replace_names": replace_names,
    "drop_end_punctuation": drop_end_punctuation,
    "typos": add_typos,
    "punctuation": disturb_punctuation,
}
"""Modifiers of single pairs, by key of the configuration, in the order in which they are applied."""


def make_modify(config: ModifierConfig) -> Modify | None:
    """Return the function that modifies the pairs of a batch, or None if the configuration has no modifier."""
    return partial(_modify, config) if config.is_active else None


def _modify(config: ModifierConfig, pairs: Sequence[Pair], rng: random.Random) -> list[ModifiedPair]:
    change_case = choose_case(config, rng.random())
    is_joined = rng.random() < config.join
    modified: list[ModifiedPair] = []
    for i, (src, tgt) in enumerate(pairs):
        for name, change in PAIR_MODIFIERS.items():
            if rng.random() < getattr(config, name):
                src, tgt = change(src, tgt, rng)
        if change_case is not None:
            src, tgt = change_case(src), change_case(tgt)
        modified.append(ModifiedPair(src, tgt, (i,)))
    return [_join(modified[i : i + 2]) for i in range(0, len(modified), 2)] if is_joined else modified


def _join(pairs: Sequence[ModifiedPair]) -> ModifiedPair:
    """Join two pairs. A single one stays as it is."""
    return reduce(
        lambda a, b: ModifiedPair(join_sentences(a.src, b.src), join_sentences(a.tgt, b.tgt), (*a.origins, *b.origins)),
        pairs,
    )


RNG_STREAM = 0x6D6F66  # separates these random numbers from others with the same seed


class TokenizerTrainingPairs:
    """Training pairs of the tokenizers, with random changes of case as in the training of the model.

    Without these changes, a tokenizer would split upper-case words into letters. Each iteration yields the same pairs.
    """

    def __init__(self, pairs: Pairs, config: ModifierConfig, seed: int) -> None:
        self._pairs, self._config, self._seed = pairs, config, seed

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs in order."""
        rng = random.Random(f"{self._seed} {RNG_STREAM}")
        for src, tgt in self._pairs:
            change_case = choose_case(self._config, rng.random())
            yield (change_case(src), change_case(tgt)) if change_case else (src, tgt)
