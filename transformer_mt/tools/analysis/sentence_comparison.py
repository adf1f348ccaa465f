"""Comparison of systems sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.evaluation.metrics import Scorer, Texts


@dataclass(frozen=True)
class SentenceComparison:
    """The translations of one sentence by all systems, with their sentence-level scores."""

    line: int
    source: str | None
    reference: str
    translations: list[str]
    chrf: list[float]

    @property
    def score_range(self) -> float:
        """Largest minus smallest chrF of the systems."""
        return max(self.chrf) - min(self.chrf)


def compare_sentences(
    systems: Sequence[Texts], sources: Texts | None, references: Texts, scorer: Scorer
) -> list[SentenceComparison]:
    """Compute the chrF of each sentence and system, in the order of the references."""
    chrf = [scorer.score_sentences(texts, references) for texts in systems]
    return [
        SentenceComparison(
            i + 1,
            None if sources is None else sources[i],
            reference,
            [texts[i] for texts in systems],
            [scores[i] for scores in chrf],
        )
        for i, reference in enumerate(references)
    ]


def find_most_different(
    systems: Sequence[Texts], sources: Texts | None, references: Texts, scorer: Scorer, count: int
) -> list[SentenceComparison]:
    """Return up to `count` sentences with the largest range of chrF. Sentences with range 0 are left out."""
    sentences = compare_sentences(systems, sources, references, scorer)
    different = [sentence for sentence in sentences if sentence.score_range > 0]
    return sorted(different, key=lambda sentence: -sentence.score_range)[:count]
