"""Parity check of an exported model: greedy translations and token scores against ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.export.ctranslate2_translator import CTranslate2Translator

BATCH = 16  # sentences
MIN_IDENTICAL, MAX_DIFFERENCE = 0.99, 1e-3  # of a float32 model


@dataclass(frozen=True)
class Parity:
    """The result of comparing both engines."""

    sentences: int
    identical: int
    """Number of identical translations."""
    score_difference: float
    """Largest difference between the log-probabilities of a token in our translations."""
    compute_type: str
    """How CTranslate2 computes. Our model computes in fp32."""

    @property
    def is_close(self) -> bool:
        """Accept the differences that rounding causes in a float32 model."""
        return self.identical >= MIN_IDENTICAL * self.sentences and self.score_difference <= MAX_DIFFERENCE

    def __str__(self) -> str:
        return (
            f"greedy, {self.compute_type}: {self.identical:,} of {self.sentences:,} translations identical to those of "
            f"tmt in fp32, log-probabilities of tokens within {self.score_difference:.1e}"
        )


def compare(translator: Translator, exported: CTranslate2Translator, sources: Sequence[Sequence[int]]) -> Parity:
    """Translate source ids with both engines, and score our translations with both.

    Raises `UserError` if a score is NaN.
    """
    n_identical, difference = 0, 0.0
    config = translator.config.for_validation()
    for start in range(0, len(sources), BATCH):
        batch = [list(ids) for ids in sources[start : start + BATCH]]
        ours = [best for best, *_ in translator.translate_ids(batch, config)]
        theirs = [best for best, *_ in exported.translate_ids(batch, config)]
        n_identical += sum(one.ids == other.ids for one, other in zip(ours, theirs, strict=True))
        # An unfinished translation may fill all learned positions. Scoring adds EOS, so its last token is dropped.
        targets = [one.ids if one.finished else one.ids[:-1] for one in ours]
        log_probs = zip(
            translator.target_log_probs(batch, targets), exported.target_log_probs(batch, targets), strict=True
        )
        for our_scores, their_scores in log_probs:
            gaps = [abs(a - b) for a, b in zip(our_scores, their_scores, strict=True)]
            if any(map(math.isnan, gaps)):
                raise UserError(
                    "export: log-probabilities of our translations are NaN, in tmt or in CTranslate2; export another "
                    "checkpoint, or with another --quantization"
                )
            difference = max(difference, *gaps)
    return Parity(len(sources), n_identical, difference, exported.engine.compute_type)
