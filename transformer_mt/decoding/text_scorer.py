"""Scoring of given translations, and what it has in common with translation."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence

from transformer_mt.data.markup.elements import MarkedText
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.decoding.translation import Translation
from transformer_mt.errors import UserError


class UnscoredPairWarning(UserWarning):
    """A pair to be scored was longer than the model can read."""


class TextScorer(ABC):
    """Scores pairs of texts. A subclass says how ids are scored."""

    def __init__(self, tokenizers: TokenizerPair, config: DecodingConfig, max_positions: int) -> None:
        """`max_positions` is the length of the longest sequence that the model can read."""
        self.tokenizers, self.config, self.max_positions = tokenizers, config, max_positions

    @abstractmethod
    def target_log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probabilities of the tokens of given translations and of EOS."""

    @property
    def max_source_tokens(self) -> int:
        """Maximum length of a source without control symbols."""
        return min(self.config.max_source_length, self.max_positions - self.tokenizers.n_source_controls)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], line_numbers: Sequence[int] | None = None
    ) -> list[Translation]:
        """Return each target as a translation of its source, with the log-probabilities of the model.

        The score is minus infinity if a side is blank, also after normalisation. It is minus infinity, with an
        `UnscoredPairWarning`, if a side is longer than `max_source_length` or the model's positions. `line_numbers` are
        for warnings, by default 1, 2, ...
        """
        check_lists(sources, targets)
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources and {len(targets)} targets: give one for each")
        line_numbers = resolve_line_numbers(sources, line_numbers)
        src, tgt = self.tokenizers.src.encode(sources), self.tokenizers.tgt.encode(targets)
        first = self.tag_ids(None, 1)[0]
        scored = [
            i
            for i, number in enumerate(line_numbers)
            if sources[i].strip() and targets[i].strip() and src[i] and tgt[i] and self._fits(number, src[i], tgt[i])
        ]
        found = self.target_log_probs([first + src[i] for i in scored], [tgt[i] for i in scored])
        log_probs = dict(zip(scored, found, strict=True))
        return [self._scored_target(text, tgt[i], log_probs.get(i)) for i, text in enumerate(targets)]

    def _fits(self, line_number: int, src: list[int], tgt: list[int]) -> bool:
        """Return whether the model can read a pair; warn otherwise."""
        limits = self.max_source_tokens, min(self.config.max_source_length, self.max_positions - 1)
        if len(src) <= limits[0] and len(tgt) <= limits[1]:
            return True
        sizes, maximum = (f"{one} source and {other} target tokens" for one, other in ((len(src), len(tgt)), limits))
        message = f"line {line_number} has {sizes}, and at most {maximum} are scored"
        warnings.warn(UnscoredPairWarning(message), stacklevel=3)
        return False

    def _scored_target(self, text: str, ids: list[int], log_probs: list[float] | None) -> Translation:
        """Return a given target with its log-probabilities; None and NaN become a score of minus infinity."""
        tokens = self.tokenizers.tgt.tokens(ids)
        if log_probs is None or math.isnan(sum(log_probs)):
            return Translation(text, -math.inf, tokens, [], finished=True)
        return Translation(text, sum(log_probs), tokens, log_probs, finished=True)

    def tag_ids(self, tags: Sequence[str | None] | None, n_texts: int) -> list[list[int]]:
        """Return the ids before each of some texts: that of its tag, or none.

        Raises:
            UserError: The model does not know a tag, or needs one.
        """
        chosen = [self.config.tag] * n_texts if tags is None else tags
        if self.tokenizers.needs_tag and None in chosen:
            known = ", ".join(self.tokenizers.src.tags)
            raise UserError(f"the model needs a tag for each source: pass --tag (decoding.tag), one of {known}")
        return [[] if tag is None else [self.tokenizers.src.tag_id(tag)] for tag in chosen]


def check_lists(*arguments: Sequence[str | MarkedText] | None) -> None:
    """Raise `UserError` for a string in place of a list, because its letters would be translated one by one."""
    if any(isinstance(texts, str) for texts in arguments):
        raise UserError("one text is given where several are translated: give a list of texts")


def resolve_line_numbers(texts: Sequence[str | MarkedText], line_numbers: Sequence[int] | None) -> Sequence[int]:
    """Return the given line numbers, or 1, 2, ... Raises `UserError` if there is not one per text."""
    if line_numbers is not None and len(line_numbers) != len(texts):
        raise UserError(f"{len(texts)} texts and {len(line_numbers)} line numbers: give one for each")
    return range(1, len(texts) + 1) if line_numbers is None else line_numbers
