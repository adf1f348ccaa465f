"""Subword regularisation: in each epoch a training sentence is cut into other pieces of the same text.

bpe, byte_bpe: BPE-dropout (Provilkov et al. 2020). Before each merge, every merge that is possible is left out with
probability `rate`; of the others the earliest learnt one is done; where none is left, the word stays as it is. Rate 0
is the canonical segmentation, rate 1 is characters.

unigram: Kudo (2018). A word's segmentation is drawn from all that there are, with a probability in proportion to its
likelihood to the power of (1 - rate) / rate (forward filtering, backward sampling). Rate 0 is the canonical, likeliest
segmentation; 0.5 draws by likelihood; 1 draws evenly.

The segmentation is a pure function of (seed, epoch, side, row), so a run that resumes sees what it would have seen.
What is remembered of a word is only what does not depend on chance.
"""

from __future__ import annotations

import json
import math
import random
import re
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from transformer_mt.data.tokenizers.components import BYTE_TOKENS
from transformer_mt.data.tokenizers.pretrained import kind_of
from transformer_mt.data.tokenizers.tokenizer import Tokenizer
from transformer_mt.errors import UserError

# what is remembered at most: some 150 MB
WORDS = 2**15
LONGEST = 32  # characters of such a word
SPACE = "[ \u2581]"  # of text, and of SentencePiece: a word begins with it
STATES = 100_000  # of all words, on their way from characters to pieces

Dice = Callable[[], float]  # the next random number from 0 to 1


class Word(Protocol):
    """A word whose segmentation can be drawn."""

    def draw(self, dice: Dice) -> list[int]: ...


class SubwordSampler:
    """Segmentations for one language: ids in, other ids of the same text out."""

    def __init__(self, tokenizer: Tokenizer, rate: float, seed: int, longest: int) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.longest = longest  # a sentence that would have more ids stays as it was
        self._prepare = tokenizer.backend.normalizer
        self._cut = tokenizer.backend.pre_tokenizer
        self._model: Any = tokenizer.backend.model
        self._make = make_words(tokenizer, rate)
        crosses = any(re.search(f".{SPACE}", piece) for piece in tokenizer.backend.get_vocab())
        self._spaces = None if crosses else re.compile(f"(?={SPACE})")
        self._remembered = lru_cache(maxsize=WORDS)(self._look_up)

    def __call__(self, ids: list[int], epoch: int, side: int, row: int) -> list[int]:
        """The ids of a row in an epoch. What cannot be cut into its words again, such as half a character, stays."""
        look_up, remembered = self._look_up, self._remembered
        words = [remembered(word) if len(word) <= LONGEST else look_up(word) for word in self._words(ids)]
        if [i for canonical, _ in words for i in canonical] != ids:
            return ids
        dice = random.Random(((self.seed << 64 | epoch) << 1 | side) << 64 | row).random
        drawn = [i for _, word in words for i in word.draw(dice)]
        return drawn if len(drawn) <= self.longest else ids

    def _words(self, ids: list[int]) -> list[str]:
        text = self.tokenizer.decode([ids])[0]
        if self._prepare is not None:
            text = self._prepare.normalize_str(text)
        words = [word for word, _ in self._cut.pre_tokenize_str(text)] if self._cut is not None else [text]
        if self._spaces is None:
            return words
        return [part for word in words for part in self._spaces.split(word) if part]

    def _look_up(self, word: str) -> tuple[list[int], Word]:
        canonical: list[int] = [token.id for token in self._model.tokenize(word)]
        return canonical, self._make(word) or Fixed(canonical)


SubwordSamplers = tuple[SubwordSampler, SubwordSampler]  # of the source and of the target


def make_words(tokenizer: Tokenizer, rate: float) -> Callable[[str], Word | None]:
    """What makes words of text; None for a word that the vocabulary cannot spell, which keeps its one segmentation."""
    model: dict[str, Any] = json.loads(tokenizer.to_json())["model"]
    if kind_of(tokenizer.backend) == "unigram":
        return UnigramWords(model, rate).make
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise UserError("tokenizer.sampling: this tokenizer's file marks the ends of words in its pieces; set 0")
    return BpeWords(model, rate).make


class Fixed:
    """A word with one segmentation."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def draw(self, dice: Dice) -> list[int]:
        return self.ids


def _spell(character: str, vocabulary: dict[str, int], fallback: bool) -> list[int]:
    """A character's ids: its entry, or its bytes, or none."""
    if character in vocabulary:
        return [vocabulary[character]]
    names = [BYTE_TOKENS[byte] for byte in character.encode()] if fallback else []
    return [vocabulary[name] for name in names] if all(name in vocabulary for name in names) else []


# --- BPE-dropout ------------------------------------------------------------------------------------------------------


class BpeWords:
    """The merges of a vocabulary, and the rate at which they are left out."""

    def __init__(self, model: dict[str, Any], rate: float) -> None:
        self.vocabulary: dict[str, int] = model["vocab"]
        self.fallback, self.rate = bool(model["byte_fallback"]), rate
        self.states = 0  # that are remembered
        ids = self.vocabulary
        self.merges = {
            (ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in enumerate(model["merges"])
        }

    def make(self, word: str) -> Word | None:
        spelt = [_spell(character, self.vocabulary, self.fallback) for character in word]
        return BpeState(self, tuple(i for ids in spelt for i in ids)) if all(spelt) else None


class BpeState:
    """A word after some merges, and the states that one more merge leads to, the earliest learnt merge first."""

    __slots__ = ("after", "ids", "merges", "words")

    def __init__(self, words: BpeWords, ids: tuple[int, ...]) -> None:
        self.words, self.ids = words, ids
        found = [(words.merges.get(pair), at) for at, pair in enumerate(pairwise(ids))]
        self.merges = sorted((merge[0], at, merge[1]) for merge, at in found if merge is not None)
        self.after: list[BpeState | None] = [None] * len(self.merges)

    def draw(self, dice: Dice) -> list[int]:
        state, rate, choice = self, self.words.rate, 0
        while choice < len(state.merges):
            if dice() < rate:
                choice += 1  # left out; at the next merge it may be possible again
            else:
                state, choice = state.step(choice), 0
        return list(state.ids)

    def step(self, choice: int) -> BpeState:
        known = self.after[choice]
        if known is not None:
            return known
        _, at, merged = self.merges[choice]
        state = BpeState(self.words, (*self.ids[:at], merged, *self.ids[at + 2 :]))
        if self.words.states < STATES and len(self.ids) <= LONGEST:
            self.words.states += 1
            self.after[choice] = state
        return state


# --- Unigram ----------------------------------------------------------------------------------------------------------


class UnigramWords:
    """The pieces of a vocabulary with their scores, sharpened or flattened by the rate."""

    def __init__(self, model: dict[str, Any], rate: float) -> None:
        entries: list[tuple[str, float]] = model["vocab"]
        self.vocabulary = {piece: i for i, (piece, _) in enumerate(entries)}
        self.fallback = bool(model["byte_fallback"])
        self.power = (1.0 - rate) / rate if rate > 0.0 else math.inf
        self.scores = [score for _, score in entries]
        self.longest = max(map(len, self.vocabulary), default=1)
        self.unknown = min(self.scores, default=0.0) - 10.0

    def make(self, word: str) -> Word | None:
        if self.power == math.inf:
            return None
        ends: list[list[tuple[int, list[int], float]]] = [[] for _ in range(len(word) + 1)]
        for end in range(1, len(word) + 1):
            for start in range(max(0, end - self.longest), end):
                found = self.vocabulary.get(word[start:end])
                if found is not None:
                    ends[end].append((start, [found], self.power * self.scores[found]))
            if not any(start == end - 1 for start, _, _ in ends[end]):
                spelt = _spell(word[end - 1], self.vocabulary, self.fallback)
                if not spelt:
                    return None
                ends[end].append((end - 1, spelt, self.power * self.unknown))
        return Lattice(ends)


class Lattice:
    """All segmentations of a word: for each place, the pieces that end there and the chance of each to be the last."""

    def __init__(self, ends: list[list[tuple[int, list[int], float]]]) -> None:
        total = [0.0]  # the logarithm of the summed weight of all ways to a place
        self.pieces: list[list[tuple[int, list[int]]]] = [[]]
        self.chances: list[list[float]] = [[]]
        for pieces in ends[1:]:
            weights = [total[start] + score for start, _, score in pieces]
            most = max(weights)
            sums = np.cumsum(np.exp(np.array(weights) - most))
            total.append(most + math.log(sums[-1]))
            self.pieces.append([(start, ids) for start, ids, _ in pieces])
            self.chances.append((sums / sums[-1]).tolist())

    def draw(self, dice: Dice) -> list[int]:
        place, found = len(self.pieces) - 1, list[list[int]]()
        while place:
            chances = self.chances[place]
            choice = bisect_right(chances, dice()) if len(chances) > 1 else 0
            place, ids = self.pieces[place][min(choice, len(chances) - 1)]
            found.append(ids)
        return [i for ids in reversed(found) for i in ids]
