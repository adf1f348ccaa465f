"""Subword regularisation: in each epoch, a training sentence is segmented into different tokens of the same text.

It uses BPE-dropout (Provilkov et al. 2020). Before each merge, every possible merge is dropped with probability `rate`,
and the remaining merge that was learned first is applied. The word is done when no merge remains. Rate 0 gives the
canonical segmentation, rate 1 gives characters.

The segmentation is a pure function of (seed, epoch, side, row), so a resumed run sees the same tokens. The caches store
only what does not depend on random numbers.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from transformer_mt.data.encoding import Rows, Sentences
from transformer_mt.data.tokenizers.tokenizer import BYTE_TOKENS, Tokenizer
from transformer_mt.errors import UserError

# bounds of the caches: about 150 MB in total
MAX_CACHED_WORDS = 2**15
MAX_CACHED_LENGTH = 32  # characters of a cached word
MAX_CACHED_STATES = 100_000  # partly merged words

SPACE = "[ \u2581]"  # first character of a word: a space, or SentencePiece's replacement for it

Uniform = Callable[[], float]  # returns the next random number in [0, 1)
Draw = Callable[[Uniform], list[int]]  # draws the ids of one segmentation of a word


class SubwordSampler:
    """Random segmentation for one language: replaces the ids of a sentence by other ids of the same text."""

    def __init__(self, tokenizer: Tokenizer, rate: float, seed: int, max_length: int) -> None:
        """Create a sampler. Raises `UserError` if the tokens mark the ends of words."""
        self.tokenizer, self.seed = tokenizer, seed
        self.max_length = max_length  # a sentence that would have more ids keeps its canonical segmentation
        self._normalizer = tokenizer.backend.normalizer
        self._pre_tokenizer = tokenizer.backend.pre_tokenizer
        self._model: Any = tokenizer.backend.model
        model: dict[str, Any] = json.loads(tokenizer.to_json())["model"]
        if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
            raise UserError(
                "tokenizer.sampling: not supported for this vocabulary file, whose tokens mark the ends of words; set 0"
            )
        self._make_draw = BpeVocabulary(model, rate).make_draw
        spans_words = any(re.search(f".{SPACE}", entry) for entry in tokenizer.backend.get_vocab())
        self._word_start = None if spans_words else re.compile(f"(?={SPACE})")
        self._cached_look_up = lru_cache(maxsize=MAX_CACHED_WORDS)(self._look_up)

    def __call__(self, ids: list[int], epoch: int, side: int, row: int) -> list[int]:
        """Return the ids of a corpus row in an epoch.

        Ids that their text does not encode to are unchanged, such as those of a truncated character.
        """
        uniform = random.Random(((self.seed << 64 | epoch) << 1 | side) << 64 | row).random
        drawn = self._draw(ids, uniform)
        return drawn if len(drawn) <= self.max_length else ids

    def _draw(self, ids: list[int], uniform: Uniform) -> list[int]:
        look_up, cached = self._look_up, self._cached_look_up
        words = [cached(word) if len(word) <= MAX_CACHED_LENGTH else look_up(word) for word in self._words(ids)]
        if [i for canonical, _ in words for i in canonical] != ids:
            return ids
        return [i for _, draw in words for i in draw(uniform)]

    def _words(self, ids: list[int]) -> list[str]:
        """Split the text of the ids as the tokenizer does, and at spaces too if no vocabulary entry contains one."""
        text = self.tokenizer.decode([ids])[0]
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        words = [text]
        if self._pre_tokenizer is not None:
            words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(text)]
        if self._word_start is None:
            return words
        return [part for word in words for part in self._word_start.split(word) if part]

    def _look_up(self, word: str) -> tuple[list[int], Draw]:
        canonical: list[int] = [token.id for token in self._model.tokenize(word)]
        return canonical, self._make_draw(word) or (lambda _: canonical)


# --- pairs ------------------------------------------------------------------------------------------------------------


def sample_pairs(
    samplers: Sequence[SubwordSampler], sides: Sequence[Sentences], rows: Rows, epoch: int
) -> list[Sentences]:
    """Return sampled ids of the source and the target of some corpus rows in an epoch."""
    return [
        [sampler([*map(int, ids)], epoch, side, row) for ids, row in zip(sentences, rows.tolist(), strict=True)]
        for side, (sampler, sentences) in enumerate(zip(samplers, sides, strict=True))
    ]


# --- BPE-dropout ------------------------------------------------------------------------------------------------------


def _spell(character: str, vocabulary: dict[str, int], byte_fallback: bool) -> list[int]:
    """Return the id of a character, or else the ids of its bytes, or else an empty list."""
    if character in vocabulary:
        return [vocabulary[character]]
    names = [BYTE_TOKENS[byte] for byte in character.encode()] if byte_fallback else []
    return [vocabulary[name] for name in names] if all(name in vocabulary for name in names) else []


class BpeVocabulary:
    """Entries and merges of a BPE vocabulary, with the dropout rate of the merges."""

    def __init__(self, model: dict[str, Any], rate: float) -> None:
        self.vocabulary: dict[str, int] = model["vocab"]
        self.byte_fallback, self.rate = bool(model["byte_fallback"]), rate
        self.n_cached_states = 0
        ids = self.vocabulary
        self.merges = {
            (ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in enumerate(model["merges"])
        }

    def make_draw(self, word: str) -> Draw | None:
        """Return the draw of a word by BPE-dropout, or None if the vocabulary cannot spell it."""
        spelled = [_spell(character, self.vocabulary, self.byte_fallback) for character in word]
        return MergeState(self, tuple(i for ids in spelled for i in ids)).draw if all(spelled) else None


class MergeState:
    """A partly merged word. It caches the states that follow, one for each possible merge."""

    __slots__ = ("following", "ids", "merges", "vocabulary")

    def __init__(self, vocabulary: BpeVocabulary, ids: tuple[int, ...]) -> None:
        self.vocabulary, self.ids = vocabulary, ids
        found = [(vocabulary.merges.get(pair), at) for at, pair in enumerate(pairwise(ids))]
        # (rank, position, merged id), the merge that was learned first comes first
        self.merges = sorted((merge[0], at, merge[1]) for merge, at in found if merge is not None)
        self.following: list[MergeState | None] = [None] * len(self.merges)

    def draw(self, uniform: Uniform) -> list[int]:
        """Draw a segmentation by BPE-dropout."""
        state, rate, choice = self, self.vocabulary.rate, 0
        while choice < len(state.merges):
            if uniform() < rate:
                choice += 1  # dropped for this step only
            else:
                state, choice = state._apply(choice), 0
        return list(state.ids)

    def _apply(self, choice: int) -> MergeState:
        known = self.following[choice]
        if known is not None:
            return known
        _, at, merged = self.merges[choice]
        state = MergeState(self.vocabulary, (*self.ids[:at], merged, *self.ids[at + 2 :]))
        if self.vocabulary.n_cached_states < MAX_CACHED_STATES and len(self.ids) <= MAX_CACHED_LENGTH:
            self.vocabulary.n_cached_states += 1
            self.following[choice] = state
        return state
