"""Whether an exported model translates as ours does: greedy outputs, and the scores of the tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.export.ctranslate2_engine import Engine

BATCH = 16  # sentences
LEAST_IDENTICAL, LARGEST_DIFFERENCE = 0.99, 1e-3  # of a model in fp32


@dataclass(frozen=True)
class Parity:
    """What a comparison of the two engines found."""

    sentences: int
    identical: int  # outputs
    score_difference: float  # the largest, of the log-probability of a token of our translations
    compute_type: str  # of the other engine; ours computes in fp32

    @property
    def is_close(self) -> bool:
        """Whether a model in fp32 may differ so much."""
        return self.identical >= LEAST_IDENTICAL * self.sentences and self.score_difference <= LARGEST_DIFFERENCE

    def __str__(self) -> str:
        return (
            f"greedy, {self.compute_type}: {self.identical:,} of {self.sentences:,} translations identical to those of "
            f"tmt in fp32, log-probabilities of tokens within {self.score_difference:.1e}"
        )


def compare(translator: Translator, engine: Engine, sources: Sequence[Sequence[int]]) -> Parity:
    """Translate source ids with both, and let both score our translations. Raises `UserError` for scores that are no
    numbers."""
    identical, difference = 0, 0.0
    greedy = translator.config.for_validation()
    for start in range(0, len(sources), BATCH):
        batch = [list(ids) for ids in sources[start : start + BATCH]]
        ours = [best for best, *_ in translator.translate_ids(batch, greedy)]
        theirs = [best for best, *_ in engine.translate_ids(batch, greedy)]
        identical += sum(found.ids == other.ids for found, other in zip(ours, theirs, strict=True))
        # one that reached the limit has no end symbol, and stands where the learned positions may end
        targets = [found.ids if found.finished else found.ids[:-1] for found in ours]
        for one, other in zip(
            translator.target_log_probs(batch, targets), engine.target_log_probs(batch, targets), strict=True
        ):
            gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
            if any(map(math.isnan, gaps)):
                raise UserError(
                    "export: log-probabilities of our translations are no numbers, in tmt or in CTranslate2; export "
                    "another checkpoint, or with another --quantization"
                )
            difference = max(difference, *gaps)
    return Parity(len(sources), identical, difference, engine.inner.compute_type)
