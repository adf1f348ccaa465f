"""Text to text: sentences become ids, are translated in batches of like length, and come back in order."""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Self

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.alignment import WordAlignment
from transformer_mt.decoding.beam_state import Hypothesis
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.errors import UserError

EMPTY_HYPOTHESIS = Hypothesis([], [], finished=True)  # the translation of nothing


@dataclass(frozen=True)
class Translation:
    """One translation of a text."""

    text: str
    score: float  # natural logarithm of its probability
    tokens: list[str]
    token_scores: list[float]  # of each token, and of the end symbol where it was found
    finished: bool  # False: it was cut at the longest that is allowed
    alignment: WordAlignment | None = None  # source word, target word; where it was asked for

    @property
    def score_per_token(self) -> float:
        """The mean over the tokens, the end symbol counted; 0 for the translation of nothing."""
        return self.score / max(1, len(self.token_scores))


class TextTranslator(ABC):
    """What translates texts, by way of ids; how these are searched is its heirs' affair."""

    def __init__(self, tokenizers: TokenizerPair, config: DecodingConfig, max_positions: int) -> None:
        """longest: the tokens of the longest sequence that can be read."""
        self.tokenizers, self.config, self.max_positions = tokenizers, config, max_positions

    @abstractmethod
    def translate_ids(
        self,
        sentences: list[list[int]],
        config: DecodingConfig,
        lines: Sequence[int] | None = None,
        prefixes: list[list[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """A batch of source ids -> their hypotheses, the best first; lines: without them, 1, 2, ..."""

    @abstractmethod
    def target_log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token of given translations, end symbol included."""

    @abstractmethod
    def word_alignments(
        self, texts: Sequence[str], sources: list[list[int]], found: list[list[Hypothesis]]
    ) -> Iterator[WordAlignment]:
        """Of each hypothesis, in order: which of its words belongs to which of the text, whose ids are a source."""

    @property
    def max_source_tokens(self) -> int:
        """Tokens of a source, control symbols not counted."""
        return min(self.config.max_source_length, self.max_positions - self.tokenizers.n_source_controls)

    def with_options(self, options: dict[str, Any]) -> Self:
        """The same translator with other options. Raises `UserError` for what they cannot be."""
        twin = copy.copy(self)
        twin.config = self.config.with_options(options)
        return twin

    def translate(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str] | None = None,
        lines: Sequence[int] | None = None,
        **options: Any,
    ) -> list[str]:
        """One line for each text, in order: an empty one where it is blank, or normalisation leaves nothing of it.

        The translation of a text begins with its beginning, where there are some. Options are the keys of the
        configuration's section `decoding`, such as `beam=1`. `lines` are the texts' numbers, which warnings name and on
        which sampling depends; by default they count from 1. A text that is longer than `max_source_length`, or than
        the model's positions, is cut, with a warning (`TruncatedSourceWarning`).
        """
        one_each: dict[str, Any] = {**options, "n_best": 1}
        found = self.n_best(texts, prefixes, lines, **one_each)
        return [translations[0].text for translations in found]

    def n_best(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str] | None = None,
        lines: Sequence[int] | None = None,
        *,
        alignments: bool = False,
        **options: Any,
    ) -> list[list[Translation]]:
        """Up to `n_best` translations of each text, the best first; one at least."""
        if options:
            return self.with_options(options).n_best(texts, prefixes, lines, alignments=alignments)
        _check_several(texts, prefixes)
        config = self.config
        lines = _numbers(texts, lines)
        coded = self.encode(texts, lines)
        forced = self._encode_prefixes(prefixes, lines) if prefixes is not None else None
        found = [[EMPTY_HYPOTHESIS] for _ in texts]
        worth = {i: len(coded[i]) for i, text in enumerate(texts) if text.strip() and coded[i]}
        for batch in batches(worth, config.batch_tokens // config.n_beams):
            sources, numbers = [coded[i] for i in batch], [lines[i] for i in batch]
            of_batch = [forced[i] for i in batch] if forced is not None else None
            for i, hypotheses in zip(batch, self.translate_ids(sources, config, numbers, of_batch), strict=True):
                found[i] = hypotheses[: config.n_best]
        links = self.word_alignments(texts, coded, found) if alignments else repeat(None)
        outputs = self.tokenizers.tgt.decode([one.ids for hypotheses in found for one in hypotheses])
        each = iter(zip(outputs, links, strict=False))
        return [[self._translation(one, *next(each)) for one in hypotheses] for hypotheses in found]

    def score(
        self, sources: Sequence[str], targets: Sequence[str], lines: Sequence[int] | None = None
    ) -> list[Translation]:
        """Each target as a translation of its source, with the log-probabilities that the model gives it.

        A pair with a blank side, or one of which normalisation leaves nothing, is no translation, and has minus
        infinity; so has, with a warning (`UnscoredPairWarning`), a pair with a side longer than `max_source_length` or
        than the model's positions. `lines` are the pairs' numbers, which warnings name.
        """
        _check_several(sources, targets)
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources and {len(targets)} targets: give one for each")
        numbers = _numbers(sources, lines)
        src, tgt = self.tokenizers.src.encode(sources), self.tokenizers.tgt.encode(targets)
        sides = zip(sources, targets, src, tgt, strict=True)
        whole = [bool(source.strip() and target.strip() and ids and other) for source, target, ids, other in sides]
        read = [i for i, line in enumerate(numbers) if whole[i] and self._has_room(line, src[i], tgt[i])]
        log_probs = dict(zip(read, self.target_log_probs([src[i] for i in read], [tgt[i] for i in read]), strict=True))
        return [self._given(target, tgt[i], log_probs.get(i)) for i, target in enumerate(targets)]

    def encode(self, texts: Sequence[str], lines: Sequence[int]) -> list[list[int]]:
        """The ids of texts, cut where they are too long, with a warning."""
        coded, limit = self.tokenizers.src.encode(texts), self.max_source_tokens
        for line, ids in zip(lines, coded, strict=True):
            if len(ids) > limit:
                warnings.warn(
                    TruncatedSourceWarning(f"line {line} has {len(ids)} tokens and was cut to {limit}"), stacklevel=3
                )
                del ids[limit:]
        return coded

    def _encode_prefixes(self, prefixes: Sequence[str], lines: Sequence[int]) -> list[list[int]]:
        """The ids of prefixes, without the white space at their ends, which belongs to the word behind it.

        Raises `UserError` where they are not as many as texts, or the model has no room.
        """
        if len(prefixes) != len(lines):
            raise UserError(f"{len(lines)} texts and {len(prefixes)} prefixes: give one for each, empty or not")
        coded = self.tokenizers.tgt.encode([prefix.rstrip() for prefix in prefixes])
        for line, ids in zip(lines, coded, strict=True):
            if self.tokenizers.tgt.unk_id in ids:
                words = "a word of the beginning of its translation, which is unknown there"
                warnings.warn(UnknownWordWarning(f"line {line}: the vocabulary lacks {words}"), stacklevel=3)
            if len(ids) >= self.max_positions:
                raise UserError(
                    f"line {line}: the beginning of its translation has {len(ids)} tokens, and the model has learnt "
                    f"{self.max_positions} positions: shorten it"
                )
        return coded

    def _has_room(self, line: int, src: list[int], tgt: list[int]) -> bool:
        """Whether the model reads that many tokens; with a warning where it does not."""
        limits = self.max_source_tokens, min(self.config.max_source_length, self.max_positions - 1)
        if len(src) <= limits[0] and len(tgt) <= limits[1]:
            return True
        has, read = (f"{one} source and {other} target tokens" for one, other in ((len(src), len(tgt)), limits))
        warnings.warn(UnscoredPairWarning(f"line {line} has {has}, and at most {read} are scored"), stacklevel=3)
        return False

    def _given(self, text: str, ids: list[int], log_probs: list[float] | None) -> Translation:
        if log_probs is None or math.isnan(sum(log_probs)):
            return Translation(text, -math.inf, self.tokenizers.tgt.tokens(ids), [], finished=True)
        return Translation(text, sum(log_probs), self.tokenizers.tgt.tokens(ids), log_probs, finished=True)

    def _translation(self, found: Hypothesis, text: str, alignment: WordAlignment | None) -> Translation:
        tokens = self.tokenizers.tgt.tokens(found.ids)
        return Translation(text.replace("\n", " "), found.score, tokens, found.log_probs, found.finished, alignment)


class UnknownWordWarning(UserWarning):
    """The vocabulary lacks a word of a prefix."""


class TruncatedSourceWarning(UserWarning):
    """A source was longer than `decoding.max_source_length`, or than the positions that the model has learnt."""


class UnscoredPairWarning(UserWarning):
    """A given translation, or its source, was longer than the model reads."""


def batches(lengths: dict[int, int], budget: int) -> Iterator[list[int]]:
    """Numbers of sentences of like length, the longest first, as many as fit into a budget of padded tokens."""
    batch: list[int] = []
    for i in sorted(lengths, key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * (lengths[batch[0]] + 1) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _check_several(*given: Sequence[str] | None) -> None:
    """Raise `UserError` for a text where a list of texts belongs: its letters would be taken for texts."""
    if any(isinstance(texts, str) for texts in given):
        raise UserError("one text is given where several are translated: give a list of texts")


def _numbers(texts: Sequence[str], lines: Sequence[int] | None) -> Sequence[int]:
    """Of the texts' lines: as they are given, or counted from 1. Raises `UserError` where they are not as many."""
    if lines is not None and len(lines) != len(texts):
        raise UserError(f"{len(texts)} texts and {len(lines)} numbers of lines: give one for each")
    return range(1, len(texts) + 1) if lines is None else lines
