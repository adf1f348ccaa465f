"""Scores with 95 % confidence intervals, by the bootstrap of sacreBLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from transformer_mt.evaluation.metrics import Score, Scorer, score_corpus

BOOTSTRAP_SAMPLES = 1000
MAX_RESAMPLED_PAIRS = 10_000  # sacreBLEU resamples chrF++ in one array, which takes 1 GB for this many pairs


@dataclass(frozen=True)
class IntervalScore(Score):
    """A score with its confidence interval."""

    interval: tuple[float, float] | None
    """Mean of the bootstrap samples, minus and plus half the width of their central 95 %, as in `sacrebleu
    --confidence`. None for more than `MAX_RESAMPLED_PAIRS` pairs."""


def score_with_intervals(
    hypotheses: Sequence[str], references: Sequence[str], scorer: Scorer
) -> dict[str, IntervalScore]:
    """Compute BLEU, chrF, chrF++ and TER with confidence intervals. Keys are the names of the metrics."""
    return bootstrap(scorer.make_metrics(), scorer.detokenize(hypotheses), scorer.detokenize(references))


def bootstrap(
    metrics: Mapping[str, Metric], hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, IntervalScore]:
    """Score plain text and estimate the confidence interval of each metric.

    Uses `PairedTest` with a single system: `Metric.corpus_score(n_bootstrap=...)` raises a TypeError if only some
    samples score 0 (sacreBLEU 2.6.0).
    """
    scores: dict[str, IntervalScore] = {}
    if len(references) > MAX_RESAMPLED_PAIRS:
        for name, metric in metrics.items():
            score = score_corpus(metric, hypotheses, references)
            scores[name] = IntervalScore(score.value, score.signature, None)
        return scores
    test = PairedTest([("system", hypotheses)], metrics, [references], test_type="bs", n_samples=BOOTSTRAP_SAMPLES)
    signatures, results = test()
    for name, key in zip(metrics, signatures, strict=True):
        (result,) = cast("list[Result]", results[key])
        mean, half_width = float(result.mean or 0), float(result.ci or 0)
        scores[name] = IntervalScore(result.score, str(signatures[key]), (mean - half_width, mean + half_width))
    return scores
