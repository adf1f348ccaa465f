"""Paired significance tests of several systems on the same sentences, by sacreBLEU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from transformer_mt.evaluation.metrics import BOOTSTRAP_SAMPLES, MAX_RESAMPLED_PAIRS, Scorer, score_corpus

RANDOMISATION_TRIALS = 10_000
MIN_DIFFERENT = 6
"""Minimum number of different translations for a p-value. With 5, the exact randomisation test cannot fall below
2 / 2^5 = 0.06, but sacreBLEU reports 0.0001, because it does not count trials with an equal difference."""

Texts = Sequence[str]


@dataclass(frozen=True)
class SystemScore:
    """The score of one system, and its difference from the first system (the baseline).

    The difference is None for the baseline. A p-value is the probability of a difference at least as large if both
    systems were equally good. It is None for the baseline, for fewer than `MIN_DIFFERENT` different translations, and
    for more than `MAX_RESAMPLED_PAIRS` pairs.
    """

    score: float
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
    """Compare every system with the first one by each metric, or by the metrics `names`.

    The tests are paired bootstrap resampling (Koehn 2004) and paired approximate randomisation (Riezler and Maxwell
    2005), as `sacrebleu --paired-bs` and `--paired-ar` compute them.
    """
    references, systems = scorer.detokenize(references), [scorer.detokenize(texts) for texts in systems]
    metrics = {name: metric for name, metric in scorer.make_metrics().items() if names is None or name in names}
    if len(references) > MAX_RESAMPLED_PAIRS:
        return {name: _compare_scores(metric, systems, references) for name, metric in metrics.items()}
    named: list[tuple[str, Texts]] = [(str(number), texts) for number, texts in enumerate(systems)]
    signatures, bootstrap = PairedTest(named, metrics, [references], "bs", BOOTSTRAP_SAMPLES)()
    _, randomisation = PairedTest(named, metrics, [references], "ar", RANDOMISATION_TRIALS)()
    n_different = [sum(ours != first for ours, first in zip(texts, systems[0], strict=True)) for texts in systems]
    comparisons: dict[str, MetricComparison] = {}
    for name, key in zip(metrics, signatures, strict=True):
        signatures[key].update("ar", RANDOMISATION_TRIALS)
        by_bootstrap, by_randomisation = (cast("list[Result]", results[key]) for results in (bootstrap, randomisation))
        baseline = by_bootstrap[0].score
        scores = [SystemScore(baseline)]
        for i in range(1, len(systems)):
            score = by_bootstrap[i].score
            p_values = by_bootstrap[i].p_value, by_randomisation[i].p_value
            if score == baseline:
                p_values = 1.0, 1.0  # sacreBLEU counts larger differences only, and would report significance
            elif n_different[i] < MIN_DIFFERENT:
                p_values = None, None
            scores.append(SystemScore(score, score - baseline, *p_values))
        comparisons[name] = MetricComparison(str(signatures[key]), scores)
    return comparisons


def _compare_scores(metric: Metric, systems: Sequence[Texts], references: Texts) -> MetricComparison:
    """Compare scores without a significance test."""
    first, *others = [score_corpus(metric, texts, references).value for texts in systems]
    signature = str(metric.get_signature())
    return MetricComparison(signature, [SystemScore(first), *(SystemScore(score, score - first) for score in others)])
