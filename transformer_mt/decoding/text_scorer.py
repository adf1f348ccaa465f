"""Scoring of given translations."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence

from transformer_mt.decoding.text_encoder import TextEncoder, check_lists, resolve_line_numbers
from transformer_mt.decoding.translation import Translation


class UnscoredPairWarning(UserWarning):
    """A pair to be scored was longer than the model can read."""


class TextScorer(TextEncoder, ABC):
    """Scores pairs of texts. A subclass says how ids are scored."""

    @abstractmethod
    def target_log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probabilities of the tokens of given translations and of EOS."""

    def score(
        self, sources: Sequence[str], targets: Sequence[str], line_numbers: Sequence[int] | None = None
    ) -> list[Translation]:
        """Return each target as a translation of its source, with the log-probabilities of the model.

        The score is minus infinity if a side is blank, also after normalisation. It is minus infinity, with an
        `UnscoredPairWarning`, if a side is longer than `max_source_length` or the model's positions. `line_numbers` are
        for warnings, by default 1, 2, ...
        """
        check_lists(sources=sources, targets=targets)
        line_numbers = resolve_line_numbers(len(sources), line_numbers)
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
