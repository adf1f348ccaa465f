"""The flow of `tmt calibrate`: translate pairs, fit the confidence, and measure it on other pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_mt.decoding.translator import Translation, Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import EvaluationSet
from transformer_mt.system.files import write_text
from transformer_mt.system.log import ProgressReport
from transformer_mt.tools.analysis.confidence import (
    Calibration,
    ConfidenceRegression,
    Features,
    HeldOutFigures,
    log_length_ratio,
)

Array = NDArray[np.float64]

N_BINS = 10  # of equal width, as usual for the ECE
PENALTY = 1.0  # of the squared coefficients, so that they stay finite if the features separate the labels
MAX_ITERATIONS = 100
TOLERANCE = 1e-9
ROUNDING = 1e-9  # standard deviation of a constant feature, relative to its values, at most


class ReliabilityBin(NamedTuple):
    """Translations whose confidence is in one of `N_BINS` ranges."""

    low: float
    high: float
    n_translations: int
    confidence: float  # mean
    acceptable: float  # share


def fit_logistic(features: Array, labels: NDArray[Any]) -> tuple[float, Array]:
    """Fit a logistic regression by Newton's method. Returns intercept and coefficients. [N, F], [N] -> [F].

    A small penalty is on the coefficients of the standardised features. A constant feature has a coefficient near 0.
    """
    mean, deviation = features.mean(0), features.std(0)
    is_constant = deviation <= ROUNDING * np.abs(features).max(0)
    deviation = np.where(is_constant, 1.0, deviation)
    inputs = np.column_stack([np.ones(len(features)), (features - mean) / deviation])  # [N, F + 1]
    penalty = np.diag([0.0, *np.full(features.shape[1], PENALTY)])
    weights = np.zeros(inputs.shape[1])
    for _ in range(MAX_ITERATIONS):
        probabilities = 0.5 + 0.5 * np.tanh(inputs @ weights / 2)  # the logistic function, without overflow
        gradient = inputs.T @ (labels - probabilities) - penalty @ weights
        hessian = (inputs.T * (probabilities * (1 - probabilities))) @ inputs + penalty
        step = np.linalg.solve(hessian, gradient)
        weights += step
        if np.abs(step).max() < TOLERANCE:
            break
    coefficients = weights[1:] / deviation
    return float(weights[0] - coefficients @ mean), coefficients


def compute_reliability_bins(confidences: Array, labels: NDArray[Any]) -> list[ReliabilityBin]:
    """Return the bins that hold translations, the lowest confidence first."""
    indices = np.minimum((confidences * N_BINS).astype(int), N_BINS - 1)
    bins: list[ReliabilityBin] = []
    for i in np.unique(indices):
        rows = indices == i
        mean, share = float(confidences[rows].mean()), float(labels[rows].mean())
        bins.append(ReliabilityBin(float(i / N_BINS), float((i + 1) / N_BINS), int(rows.sum()), mean, share))
    return bins


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the mean of |confidence - share of acceptable translations| over bins (Guo et al. 2017)."""
    total = sum(bin_.n_translations for bin_ in bins)
    return sum(bin_.n_translations * abs(bin_.confidence - bin_.acceptable) for bin_ in bins) / total


MIN_OF_EACH_KIND = 10  # five for each coefficient (Vittinghoff & McCulloch 2007)


@dataclass(frozen=True)
class CalibrationReport:
    """A calibration, and the bins of its confidences on held-out translations."""

    calibration: Calibration
    bins: list[ReliabilityBin]


class JudgedTranslation(NamedTuple):
    """A translation with its source, and whether it is acceptable."""

    source: str
    translation: Translation
    is_acceptable: bool


def calibrate(
    translator: Translator, pairs: EvaluationSet, test_pairs: EvaluationSet | None, min_chrf: float
) -> CalibrationReport:
    """Fit the confidence of a run, measure it, and write `calibration.json`.

    Without `test_pairs`, every second pair is held out for the figures.

    Raises:
        UserError: The test pairs are blank, or too few translations of the fit are acceptable or not acceptable.
    """
    (member,) = translator.members
    sources_hash = hash_sources(pairs.sources)
    pairs = pairs.without_blanks()
    n_pairs = len(pairs.sources)
    if test_pairs is not None:
        test_pairs = test_pairs.without_blanks()
        if not test_pairs.sources:
            raise UserError("calibrate: no pair of --test-src and --test-ref has text on both sides; pass other files")
    fitted = judge(translator, pairs if test_pairs else pairs.select(range(0, n_pairs, 2)), min_chrf)
    fitted = [judged for judged in fitted if judged.translation.finished and judged.translation.token_scores]
    n_acceptable = sum(judged.is_acceptable for judged in fitted)
    if min(n_acceptable, len(fitted) - n_acceptable) < MIN_OF_EACH_KIND:
        raise UserError(
            f"calibrate: {n_acceptable:,} of {len(fitted):,} finished translations are acceptable (chrF of at least "
            f"{min_chrf:g}), and the fit needs at least {MIN_OF_EACH_KIND} of each kind;\n"
            "choose another --min-chrf, or pass more pairs"
        )
    held_out = judge(translator, test_pairs or pairs.select(range(1, n_pairs, 2)), min_chrf)
    regression = fit_regression(fitted)
    figures, bins = measure(regression, held_out)
    calibration = Calibration(
        step=member.step,
        weights_hash=member.weights_hash,
        decoding=translator.config,
        min_chrf=min_chrf,
        n_translations=len(fitted),
        sources_hash=sources_hash,
        regression=regression,
        held_out=figures,
    )
    write_text(member.folder.calibration, calibration.model_dump_json(indent=1) + "\n")
    return CalibrationReport(calibration, bins)


def hash_sources(sources: Sequence[str]) -> str:
    """Return the first digits of the SHA-256 of source sentences."""
    return sha256("\n".join(sources).encode()).hexdigest()[:12]


def judge(translator: Translator, pairs: EvaluationSet, min_chrf: float) -> list[JudgedTranslation]:
    """Translate pairs, and judge the translations by their sentence-level chrF."""
    with ProgressReport("calibrate: translated", len(pairs.sources), "sentences").show() as progress:
        translations = [best for best, *_ in translator.n_best(pairs.sources, on_batch=progress.update)]
    return judge_translations(translations, pairs, min_chrf)


def judge_translations(
    translations: Sequence[Translation], pairs: EvaluationSet, min_chrf: float
) -> list[JudgedTranslation]:
    """Return the translations of pairs, each with whether its sentence-level chrF is at least `min_chrf`."""
    chrf = pairs.scorer.score_sentences([translation.text for translation in translations], pairs.references)
    return [
        JudgedTranslation(source, translation, score >= min_chrf)
        for source, translation, score in zip(pairs.sources, translations, chrf, strict=True)
    ]


def fit_regression(judged: Sequence[JudgedTranslation]) -> ConfidenceRegression:
    """Fit the probability that a translation is acceptable to finished translations with tokens."""
    pairs = [(source, translation) for source, translation, _ in judged]
    ratios = [log_length_ratio(source, translation.text) for source, translation in pairs]
    usual_log_ratio = float(np.median(ratios))
    features = np.array([Features.of(*pair, usual_log_ratio) for pair in pairs])  # [N, 2]
    labels = np.array([is_acceptable for _, _, is_acceptable in judged])  # [N]
    intercept, (mean, deviation) = fit_logistic(features, labels)
    return ConfidenceRegression(
        usual_log_ratio=usual_log_ratio,
        intercept=intercept,
        coefficients=(float(mean), float(deviation)),
    )


def measure(
    regression: ConfidenceRegression, judged: Sequence[JudgedTranslation]
) -> tuple[HeldOutFigures, list[ReliabilityBin]]:
    """Compare raw probabilities and confidences with the judgements. The bins are those of the confidences."""
    labels = np.array([is_acceptable for _, _, is_acceptable in judged])  # [N]
    before: Array = np.exp([translation.score_per_token for _, translation, _ in judged])  # [N]
    after: Array = np.array([regression.confidence(source, translation) for source, translation, _ in judged])  # [N]
    bins = compute_reliability_bins(after, labels)
    figures = HeldOutFigures(
        n_translations=len(judged),
        acceptable=float(labels.mean()),
        ece_before=expected_calibration_error(compute_reliability_bins(before, labels)),
        ece_after=expected_calibration_error(bins),
    )
    return figures, bins
