"""Confidence intervals of scores, and significance of their differences between systems."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from transformer_mt.evaluation.metrics import Score, Scorer, Texts, score_corpus

BOOTSTRAP_SAMPLES, RANDOMISATION_TRIALS = 1000, 10_000
MAX_RESAMPLED_PAIRS = 10_000  # sacreBLEU resamples chrF++ in one array, which takes 1 GB for this many pairs
MIN_DIFFERENT = 6
"""Minimum number of different translations for a p-value. With 5, the exact randomisation test cannot fall below
2 / 2^5 = 0.06, but sacreBLEU reports 0.0001, because it does not count trials with an equal difference."""


@dataclass(frozen=True)
class SystemScore:
    """The score of one system, and its difference from the first system (the baseline).

    The interval is the mean of the bootstrap samples, minus and plus half the width of their central 95 %, as in
    `sacrebleu --confidence`. A p-value is the probability of a difference at least as large if both systems were
    equally good.

    The baseline has no difference and no p-values. With more than `MAX_RESAMPLED_PAIRS` pairs, there are no interval
    and no p-values. With fewer than `MIN_DIFFERENT` different translations, there are no p-values.
    """

    score: float
    interval: tuple[float, float] | None = None
    difference: float | None = None
    p_bootstrap: float | None = None
    p_randomisation: float | None = None


@dataclass(frozen=True)
class MetricComparison:
    """The scores of all systems in one metric."""

    signature: str
    systems: list[SystemScore]


def compare_systems(
    systems: Sequence[Texts], references: Texts, scorer: Scorer, names: Collection[str] | None = None
) -> dict[str, MetricComparison]:
    """Score systems by each metric, or by the metrics `names`, and compare every system with the first one.

    The tests are paired bootstrap resampling (Koehn 2004) and paired approximate randomisation (Riezler and Maxwell
    2005), as `sacrebleu --paired-bs` and `--paired-ar` compute them.
    """
    references, systems = scorer.detokenize(references), [scorer.detokenize(texts) for texts in systems]
    metrics = {name: metric for name, metric in scorer.make_metrics().items() if names is None or name in names}
    if len(references) > MAX_RESAMPLED_PAIRS:
        return {name: _compare_scores(metric, systems, references) for name, metric in metrics.items()}
    # PairedTest also for one system: Metric.corpus_score(n_bootstrap=...) raises a TypeError if only some samples
    # score 0 (sacreBLEU 2.6.0).
    named: list[tuple[str, Texts]] = [(str(number), texts) for number, texts in enumerate(systems)]
    signatures, bootstrap = PairedTest(named, metrics, [references], "bs", BOOTSTRAP_SAMPLES)()
    randomisation = bootstrap
    if len(systems) > 1:
        _, randomisation = PairedTest(named, metrics, [references], "ar", RANDOMISATION_TRIALS)()
        for signature in signatures.values():
            signature.update("ar", RANDOMISATION_TRIALS)
    n_different = [sum(ours != first for ours, first in zip(texts, systems[0], strict=True)) for texts in systems]
    comparisons: dict[str, MetricComparison] = {}
    for name, key in zip(metrics, signatures, strict=True):
        by_bootstrap, by_randomisation = (cast("list[Result]", results[key]) for results in (bootstrap, randomisation))
        baseline = by_bootstrap[0].score
        scores: list[SystemScore] = []
        for i, result in enumerate(by_bootstrap):
            mean, half_width = float(result.mean or 0), float(result.ci or 0)
            difference, p_values = None, (None, None)
            if i > 0:
                difference = result.score - baseline
                if difference == 0:
                    p_values = 1.0, 1.0  # sacreBLEU counts larger differences only, and would report significance
                elif n_different[i] >= MIN_DIFFERENT:
                    p_values = result.p_value, by_randomisation[i].p_value
            scores.append(SystemScore(result.score, (mean - half_width, mean + half_width), difference, *p_values))
        comparisons[name] = MetricComparison(str(signatures[key]), scores)
    return comparisons


def _compare_scores(metric: Metric, systems: Sequence[Texts], references: Texts) -> MetricComparison:
    first, *others = [score_corpus(metric, texts, references).value for texts in systems]
    scores = [SystemScore(first), *(SystemScore(score, difference=score - first) for score in others)]
    return MetricComparison(str(metric.get_signature()), scores)


@dataclass(frozen=True)
class IntervalScore(Score):
    """A score with its confidence interval. The interval is None for more than `MAX_RESAMPLED_PAIRS` pairs."""

    interval: tuple[float, float] | None


def score_with_intervals(hypotheses: Texts, references: Texts, scorer: Scorer) -> dict[str, IntervalScore]:
    """Compute BLEU, chrF, chrF++ and TER with confidence intervals. Keys are the names of the metrics."""
    return {
        name: IntervalScore(comparison.systems[0].score, comparison.signature, comparison.systems[0].interval)
        for name, comparison in compare_systems([hypotheses], references, scorer).items()
    }
