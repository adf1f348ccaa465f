"""Modifiers of training pairs: capitals, typing errors, missing punctuation, joined sentences, and others.

They make a model robust to text that its corpus lacks. A modification is a pure function of (seed, epoch, rows), so a
resumed run sees the same pairs. Capitals and joining apply to whole batches, because such text has more tokens: a few
such sentences would add padding to all others. The other modifiers apply to single pairs.

Text is decoded from token ids, modified and encoded again, so that no other copy of the corpus is read.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import regex

from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.tokenizer import Pairs, TokenizerPair
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


RNG_STREAM = 0x6D6F64  # separates these random numbers from others with the same seed

Ids = list[list[int]]


class ModifiedBatch(NamedTuple):
    """Token ids of modified pairs, and the index of each in the unmodified batch.

    A joined pair has the index of its first part.
    """

    src: Ids
    tgt: Ids
    indices: list[int]


class BatchModifier:
    """Random modification of the pairs of a batch."""

    def __init__(
        self,
        config: ModifierConfig,
        tokenizers: TokenizerPair,
        seed: int,
        max_length: int,
    ) -> None:
        """Prepare the modifiers.

        `max_length` limits the tokens of each side, EOS included. A pair that would exceed it is not modified.
        """
        self.config, self.tokenizers, self.seed = config, tokenizers, seed
        self.max_tokens = max_length - 1  # without EOS

    def __call__(self, src: Ids, tgt: Ids, epoch: int, rows: Sequence[int]) -> ModifiedBatch:
        """Return the pairs of some corpus rows with the modifications of an epoch."""
        batch_rng = random.Random(f"{self.seed} {epoch} {rows[0]} {RNG_STREAM}")
        change_case = choose_case(self.config, batch_rng.random())
        is_joined = batch_rng.random() < self.config.join
        rngs = [random.Random(f"{self.seed} {epoch} {row} {RNG_STREAM + 1}") for row in rows]
        modifiers = [[name for name in PAIR_MODIFIERS if rng.random() < getattr(self.config, name)] for rng in rngs]
        changed = [i for i in range(len(rows)) if change_case or modifiers[i]]
        pairs = self._decode(src, tgt, [*range(len(rows))] if is_joined else changed)
        for i in changed:
            for name in modifiers[i]:
                pairs[i] = PAIR_MODIFIERS[name](*pairs[i], rngs[i])
            if change_case:
                pairs[i] = change_case(pairs[i][0]), change_case(pairs[i][1])
        src, tgt = self._replace(src, tgt, {i: pairs[i] for i in changed})
        return self._join(src, tgt, pairs) if is_joined else ModifiedBatch(src, tgt, [*range(len(rows))])

    def _decode(self, src: Ids, tgt: Ids, indices: Sequence[int]) -> dict[int, Pair]:
        sides = (
            tokenizer.decode([ids[i] for i in indices])
            for tokenizer, ids in ((self.tokenizers.src, src), (self.tokenizers.tgt, tgt))
        )
        return dict(zip(indices, zip(*sides, strict=True), strict=True))

    def _encode(self, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
        sides = (
            self.tokenizers.src.encode([src for src, _ in pairs]),
            self.tokenizers.tgt.encode([t for _, t in pairs]),
        )
        return [*zip(*sides, strict=True)]

    def _fits(self, src: Sequence[int], tgt: Sequence[int]) -> bool:
        return 0 < len(src) <= self.max_tokens and 0 < len(tgt) <= self.max_tokens

    def _replace(self, src: Ids, tgt: Ids, pairs: dict[int, Pair]) -> tuple[Ids, Ids]:
        """Replace the ids of modified pairs, except pairs that would exceed the maximum length."""
        src, tgt = [*src], [*tgt]
        for i, (new_src, new_tgt) in zip(pairs, self._encode([*pairs.values()]), strict=True):
            if self._fits(new_src, new_tgt):
                src[i], tgt[i] = new_src, new_tgt
        return src, tgt

    def _join(self, src: Ids, tgt: Ids, pairs: dict[int, Pair]) -> ModifiedBatch:
        """Join pairs 0 and 1, 2 and 3, and so on, where the result is not too long."""
        firsts = range(0, len(src) - 1, 2)
        joined = [tuple(join_sentences(*two) for two in zip(pairs[i], pairs[i + 1], strict=True)) for i in firsts]
        encoded = dict(zip(firsts, self._encode([(a, b) for a, b in joined]), strict=True))
        result = ModifiedBatch([], [], [])
        for i in range(len(src)):
            first = i - i % 2
            is_pair = first in encoded and self._fits(*encoded[first])
            if is_pair and i == first + 1:
                continue
            new_src, new_tgt = encoded[first] if is_pair else (src[i], tgt[i])
            result.src.append(new_src)
            result.tgt.append(new_tgt)
            result.indices.append(i)
        return result


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
        rng = random.Random(f"{self._seed} {RNG_STREAM + 2}")
        for src, tgt in self._pairs:
            change_case = choose_case(self._config, rng.random())
            yield (change_case(src), change_case(tgt)) if change_case else (src, tgt)
