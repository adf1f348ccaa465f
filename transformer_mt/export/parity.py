"""Parity check of an exported model: compare greedy translations and token scores with ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.export.ctranslate2_translator import CTranslate2Translator

BATCH_SENTENCES = 16
MIN_IDENTICAL, MAX_DIFFERENCE = 0.99, 1e-3  # thresholds for a float32 model


@dataclass(frozen=True)
class Parity:
    """The result of comparing both engines."""

    sentences: int
    identical: int
    """Number of identical translations."""
    score_difference: float
    """Largest difference between the log-probabilities of a token in our translations."""
    compute_type: str
    """Type in which CTranslate2 computed. Our model computed in fp32."""

    @property
    def is_close(self) -> bool:
        """True if rounding explains the differences of a float32 model."""
        return self.identical >= MIN_IDENTICAL * self.sentences and self.score_difference <= MAX_DIFFERENCE

    def __str__(self) -> str:
        return (
            f"greedy, {self.compute_type}: {self.identical:,} of {self.sentences:,} translations identical to those of "
            f"tmt in fp32, log-probabilities of tokens within {self.score_difference:.1e}"
        )


def compare(translator: Translator, exported: CTranslate2Translator, sources: Sequence[Sequence[int]]) -> Parity:
    """Translate source ids and score our translations with both engines. Raises `UserError` if a score is NaN."""
    n_identical, difference = 0, 0.0
    config = translator.config.for_validation()
    for start in range(0, len(sources), BATCH_SENTENCES):
        batch = [list(ids) for ids in sources[start : start + BATCH_SENTENCES]]
        ours = [best for best, *_ in translator.translate_ids(batch, config)]
        theirs = [best for best, *_ in exported.translate_ids(batch, config)]
        n_identical += sum(one.ids == other.ids for one, other in zip(ours, theirs, strict=True))
        # Scoring adds EOS, so an unfinished translation that fills all learned positions must lose its last token.
        targets = [one.ids if one.finished else one.ids[:-1] for one in ours]
        log_probs = (engine.target_log_probs(batch, targets) for engine in (translator, exported))
        for our_scores, their_scores in zip(*log_probs, strict=True):
            gaps = [abs(a - b) for a, b in zip(our_scores, their_scores, strict=True)]
            if any(map(math.isnan, gaps)):
                raise UserError(
                    "export: log-probabilities of our translations are NaN, in tmt or in CTranslate2; export another "
                    "checkpoint, or with another --quantization"
                )
            difference = max(difference, *gaps)
    return Parity(len(sources), n_identical, difference, exported.engine.compute_type)
