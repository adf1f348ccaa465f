"""Comparison of systems: scores with confidence intervals, significance, and the sentences that differ most."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result, _bootstrap_resample  # pyright: ignore[reportPrivateUsage]

from transformer_mt.evaluation.metrics import EvaluationSet, Scorer, Texts, score_corpus
from transformer_mt.tools.analysis.changed_sets import RobustnessScore

BOOTSTRAP_SAMPLES = 1000
MAX_RESAMPLED_PAIRS = 10_000  # sacreBLEU resamples chrF++ in one array, which takes 1 GB for this many pairs
MIN_DIFFERENT = 6
"""Minimum number of different translations for a p-value. If one system is better in 5 of 5, a sign test has
p = 2 / 2^5 = 0.06, but the bootstrap reports about 0.01."""


@dataclass(frozen=True)
class SystemScore:
    """The score of one system, and its difference from the first system (the baseline).

    The interval has the central 95 % of the bootstrap samples (Efron 1979), those of `sacrebleu --confidence`.
    That command prints their mean and half this width, which may leave the scale. A p-value is the probability of a
    difference at least as large if both systems were equally good.

    The baseline has no difference and no p-value. With more than `MAX_RESAMPLED_PAIRS` pairs, there are no interval
    and no p-value. With fewer than `MIN_DIFFERENT` different translations, there is no p-value.
    """

    score: float
    interval: tuple[float, float] | None = None
    difference: float | None = None
    p_bootstrap: float | None = None


@dataclass(frozen=True)
class MetricComparison:
    """The scores of all systems in one metric."""

    signature: str
    systems: list[SystemScore]

    @property
    def baseline(self) -> SystemScore:
        """The score of the first system, or of the only one."""
        return self.systems[0]

    def explain_missing_p_values(self, n_pairs: int) -> str:
        """Return why a difference has no p-value; empty if all have one."""
        if all(system.difference is None or system.p_bootstrap is not None for system in self.systems):
            return ""
        if n_pairs > MAX_RESAMPLED_PAIRS:
            return f"there are more than {MAX_RESAMPLED_PAIRS:,} pairs"
        return f"fewer than {MIN_DIFFERENT} lines differ from those of A"


@dataclass(frozen=True)
class Evaluation:
    """A test set with its translations and their scores. A file of translations sets only the first three fields."""

    data: EvaluationSet
    hypotheses: Texts
    scores: Mapping[str, MetricComparison]
    method: str = ""
    seconds: float | None = None
    """Time to translate the test set."""
    robustness: Sequence[RobustnessScore] = ()

    def to_json(self) -> dict[str, object]:
        """Return a JSON object."""
        metrics = {
            name.lower(): {
                "value": metric.baseline.score,
                "signature": metric.signature,
                "interval": metric.baseline.interval,
            }
            for name, metric in self.scores.items()
        }
        robustness = {"robustness": [asdict(each) for each in self.robustness]} if self.robustness else {}
        return {"pairs": len(self.hypotheses), "seconds": self.seconds, "metrics": metrics, **robustness}


def score_systems(
    systems: Sequence[Texts], references: Texts, scorer: Scorer, names: Collection[str] | None = None
) -> dict[str, MetricComparison]:
    """Score systems by each metric, or by the metrics `names`, and compare every system with the first one.

    The test is paired bootstrap resampling (Koehn 2004), as `sacrebleu --paired-bs` computes it.
    """
    references, systems = scorer.detokenize(references), [scorer.detokenize(texts) for texts in systems]
    metrics = {name: metric for name, metric in scorer.make_metrics().items() if names is None or name in names}
    p_values: dict[str, list[float | None]] = {}
    if len(systems) > 1 and len(references) <= MAX_RESAMPLED_PAIRS:
        p_values = _test_differences(metrics, systems, references)
    comparisons: dict[str, MetricComparison] = {}
    for name, metric in metrics.items():
        values = [score_corpus(metric, texts, references).value for texts in systems]
        intervals = [_find_interval(metric, texts, references) for texts in systems]
        scores = [SystemScore(values[0], intervals[0])]
        for i, p in enumerate(p_values.get(name, [None] * (len(systems) - 1)), start=1):
            scores.append(SystemScore(values[i], intervals[i], values[i] - values[0], p))
        comparisons[name] = MetricComparison(str(metric.get_signature()), scores)
    return comparisons


def _find_interval(metric: Metric, hypotheses: Texts, references: Texts) -> tuple[float, float] | None:
    """Return the central 95 % of the scores of bootstrap samples, and add the samples to the metric's signature.

    `Metric.corpus_score` of sacreBLEU 2.6.0 does not return them, and fails if only some samples score 0.
    """
    if len(references) > MAX_RESAMPLED_PAIRS:
        return None
    statistics = metric._extract_corpus_statistics(hypotheses, [references])  # pyright: ignore[reportPrivateUsage]
    metric.n_bootstrap = BOOTSTRAP_SAMPLES
    metric.seed, samples = _bootstrap_resample(statistics, metric, BOOTSTRAP_SAMPLES)
    scores = sorted(float(sample.score) for sample in samples)
    n_outside = BOOTSTRAP_SAMPLES // 40
    return scores[n_outside], scores[-1 - n_outside]


def _test_differences(
    metrics: Mapping[str, Metric], systems: Sequence[Texts], references: Texts
) -> dict[str, list[float | None]]:
    """Return the p-values of all systems but the first, by metric."""
    named: list[tuple[str, Texts]] = [(str(number), texts) for number, texts in enumerate(systems)]
    keys, results = PairedTest(named, metrics, [references], "bs", BOOTSTRAP_SAMPLES)()
    n_different = [sum(ours != first for ours, first in zip(texts, systems[0], strict=True)) for texts in systems]
    p_values: dict[str, list[float | None]] = {}
    for name, key in zip(metrics, keys, strict=True):
        first, *others = cast("list[Result]", results[key])
        p_values[name] = []
        for result, count in zip(others, n_different[1:], strict=True):
            if result.score == first.score:
                found = 1.0  # sacreBLEU counts larger differences only, and would report significance
            elif count >= MIN_DIFFERENT:
                found = result.p_value
            else:
                found = None
            p_values[name].append(found)
    return p_values


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
