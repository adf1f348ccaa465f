"""Calibrated confidence: the estimated probability that a translation is acceptable.

`tmt evaluate --calibrate` fits a logistic regression on two features of translations, measures it on other pairs, and
writes it into the run. It is valid for the weights and the decoding options that it was fitted with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from transformer_mt.config.section import Section
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.translator import Translation, Translator
from transformer_mt.errors import UserError
from transformer_mt.system.files import read_bytes, write_text
from transformer_mt.system.log import ProgressReport

if TYPE_CHECKING:
    from transformer_mt.evaluation.metrics import EvaluationSet

Array = NDArray[np.float64]

IGNORED_OPTIONS = ("engine", "n_best", "seed", "alignment_layer", "glossary", "tag")
"""Options that do not change how the quality of a translation depends on its features.

Tags are compared separately, for each text.
"""
N_BINS = 10  # of equal width, as usual for the ECE
PENALTY = 1.0  # of the squared coefficients, so that they stay finite if the features separate the labels
MAX_ITERATIONS = 100
TOLERANCE = 1e-9
ROUNDING = 1e-9  # a feature is constant if its standard deviation is at most this share of its largest value
MIN_OF_EACH_KIND = 10  # five for each coefficient (Vittinghoff & McCulloch 2007)


def log_length_ratio(source: str, text: str) -> float:
    """Return the logarithm of the ratio of both lengths in characters. One is added to each, for empty texts."""
    return math.log((len(text.strip()) + 1) / (len(source.strip()) + 1))


def compute_features(source: str, translation: Translation, usual_log_ratio: float) -> tuple[float, float]:
    """Return the mean log-probability of the tokens, and how far the log length ratio is from the usual one."""
    mean = sum(translation.token_scores) / len(translation.token_scores)
    return mean, abs(log_length_ratio(source, translation.text) - usual_log_ratio)


def apply_logistic(logits: Array) -> Array:
    """Return the logistic function, without overflow."""
    return 0.5 + 0.5 * np.tanh(logits / 2)


class ConfidenceRegression(Section):
    """A logistic regression on the features of a translation."""

    usual_log_ratio: float
    """median of the log length ratio"""
    intercept: float
    coefficients: tuple[float, float]

    def confidence(self, source: str, translation: Translation) -> float:
        """Return the probability that a translation is acceptable.

        It is 0 for a translation that was cut at the maximum length, and 1 for that of a blank line.
        """
        if not translation.finished:
            return 0.0
        if not translation.token_scores:
            return 1.0
        features = compute_features(source, translation, self.usual_log_ratio)
        logit = self.intercept + sum(map(float.__mul__, self.coefficients, features))
        return float(apply_logistic(np.array(logit)))


class HeldOutFigures(Section):
    """Figures of translations that were not used for fitting."""

    n_translations: int = Field(ge=1)
    acceptable: float = Field(ge=0, le=1)
    """share of acceptable translations"""
    ece_before: float = Field(ge=0, le=1)
    """expected calibration error of exp(mean token log-probability)"""
    ece_after: float = Field(ge=0, le=1)
    """expected calibration error of the confidence"""


class Calibration(Section):
    """The content of `calibration.json`: a fitted regression, and the model and options that it is valid for."""

    format: Literal[1] = 1
    step: int = Field(ge=0)
    """checkpoint that was calibrated"""
    weights_hash: str
    """first digits of the SHA-256 of its weights"""
    decoding: DecodingConfig
    """options of the translations"""
    min_chrf: float = Field(gt=0, le=100)
    """a translation is acceptable if its sentence-level chrF is at least this"""
    n_translations: int = Field(ge=1)
    """number of translations that the regression was fitted to"""
    sources_hash: str
    """first digits of the SHA-256 of the source sentences from which these translations were taken"""
    regression: ConfidenceRegression
    held_out: HeldOutFigures

    def digest(self) -> str:
        """Return a checksum of the content."""
        return sha256(self.model_dump_json().encode()).hexdigest()[:12]


# --- use --------------------------------------------------------------------------------------------------------------


def load_calibration(translator: Translator, tags: Sequence[str | None] | None = None) -> Calibration:
    """Read `calibration.json` of the run of a translator. `tags` has the tag of each text, by default `decoding.tag`.

    Raises:
        UserError: The translator is an ensemble or another engine, or the file is missing or damaged, or was fitted
            with other weights, options or tags.
    """
    if len(translator.runs) != 1:
        raise UserError(f"confidences are those of one run, and this translator has {len(translator.runs)}")
    (run,) = translator.runs
    folder = run.folder.path
    path = run.folder.calibration
    advice = f"fit one with these options: tmt evaluate {quote(str(folder))} --calibrate --checkpoint {run.step}"
    try:
        calibration = Calibration.model_validate_json(read_bytes(path))
    except FileNotFoundError:
        raise UserError(f"{folder}: has no calibration of confidences; {advice}") from None
    except ValidationError:
        raise UserError(f"{path}: is damaged, or of another version; {advice}") from None
    if calibration.weights_hash != run.weights_hash:
        raise UserError(
            f"{path}: belongs to step {calibration.step:,} ({calibration.weights_hash}), and the model is step "
            f"{run.step:,} ({run.weights_hash});\n{advice}"
        )
    fitted, used = (options.output_options() for options in (calibration.decoding, translator.config))
    changes = [
        f"{key} {fitted[key]} (now {value})"
        for key, value in used.items()
        if value != fitted[key] and key not in IGNORED_OPTIONS
    ]
    used_tags = [translator.config.tag] if tags is None else dict.fromkeys(tags)
    changes += [f"tag {calibration.decoding.tag} (now {tag})" for tag in used_tags if tag != calibration.decoding.tag]
    if changes:
        raise UserError(
            f"{path}: was fitted with other decoding options: {', '.join(changes[:3])};\nuse those, or {advice}"
        )
    return calibration


def add_confidences(
    n_best_lists: Sequence[Sequence[Translation]], sources: Sequence[str], calibration: Calibration
) -> list[list[Translation]]:
    """Return the translations of each source with their confidences."""
    confidence = calibration.regression.confidence
    return [
        [replace(translation, confidence=confidence(source, translation)) for translation in n_best]
        for source, n_best in zip(sources, n_best_lists, strict=True)
    ]


# --- fit --------------------------------------------------------------------------------------------------------------


class JudgedTranslation(NamedTuple):
    """A translation with its source, and whether it is acceptable."""

    source: str
    translation: Translation
    is_acceptable: bool


class ReliabilityBin(NamedTuple):
    """Translations whose confidence is in one of `N_BINS` ranges."""

    low: float
    high: float
    n_translations: int
    confidence: float  # mean
    acceptable: float  # share


def calibrate(
    translator: Translator, pairs: EvaluationSet, min_chrf: float
) -> tuple[Calibration, list[ReliabilityBin]]:
    """Fit the confidence of a run to every second pair, measure it on the others, and write `calibration.json`.

    The bins are those of the held-out pairs.

    Raises:
        UserError: Too few translations of the fit are acceptable or not acceptable.
    """

    def judge(pairs: EvaluationSet) -> list[JudgedTranslation]:
        with ProgressReport("translated", len(pairs.sources), "sentences").show() as progress:
            translations = [best for best, *_ in translator.n_best(pairs.sources, on_batch=progress.update)]
        return judge_translations(translations, pairs, min_chrf)

    (run,) = translator.runs
    sources_hash = hash_sources(pairs.sources)
    pairs = pairs.without_blanks()
    judged, held_out = (judge(pairs.select(range(start, len(pairs.sources), 2))) for start in (0, 1))
    fitted = [each for each in judged if each.translation.finished and each.translation.token_scores]
    n_acceptable = sum(judged.is_acceptable for judged in fitted)
    if min(n_acceptable, len(fitted) - n_acceptable) < MIN_OF_EACH_KIND:
        raise UserError(
            f"evaluate: {n_acceptable:,} of {len(fitted):,} finished translations are acceptable (chrF of at least "
            f"{min_chrf:g}), and the fit needs at least {MIN_OF_EACH_KIND} of each kind;\n"
            "choose another --min-chrf, or pass more pairs"
        )
    regression = _fit_regression(fitted)
    figures, bins = measure_calibration(regression, held_out)
    calibration = Calibration(
        step=run.step,
        weights_hash=run.weights_hash,
        decoding=translator.config,
        min_chrf=min_chrf,
        n_translations=len(fitted),
        sources_hash=sources_hash,
        regression=regression,
        held_out=figures,
    )
    write_text(run.folder.calibration, calibration.model_dump_json(indent=1) + "\n")
    return calibration, bins


def hash_sources(sources: Sequence[str]) -> str:
    """Return the first digits of the SHA-256 of source sentences."""
    return sha256("\n".join(sources).encode()).hexdigest()[:12]


def judge_translations(
    translations: Sequence[Translation], pairs: EvaluationSet, min_chrf: float
) -> list[JudgedTranslation]:
    """Return the translations of pairs, each with whether its sentence-level chrF is at least `min_chrf`."""
    chrf = pairs.scorer.score_sentences([translation.text for translation in translations], pairs.references)
    return [
        JudgedTranslation(source, translation, score >= min_chrf)
        for source, translation, score in zip(pairs.sources, translations, chrf, strict=True)
    ]


def _fit_regression(judged: Sequence[JudgedTranslation]) -> ConfidenceRegression:
    """Fit the probability that a translation is acceptable to finished translations with tokens."""
    pairs = [(source, translation) for source, translation, _ in judged]
    usual_log_ratio = float(np.median([log_length_ratio(source, translation.text) for source, translation in pairs]))
    features = np.array([compute_features(*pair, usual_log_ratio) for pair in pairs])  # [N, 2]
    intercept, (mean, deviation) = fit_logistic(features, np.array([each.is_acceptable for each in judged]))
    coefficients = (float(mean), float(deviation))
    return ConfidenceRegression(usual_log_ratio=usual_log_ratio, intercept=intercept, coefficients=coefficients)


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
        probabilities = apply_logistic(inputs @ weights)
        gradient = inputs.T @ (labels - probabilities) - penalty @ weights
        hessian = (inputs.T * (probabilities * (1 - probabilities))) @ inputs + penalty
        step = np.linalg.solve(hessian, gradient)
        weights += step
        if np.abs(step).max() < TOLERANCE:
            break
    coefficients = weights[1:] / deviation
    return float(weights[0] - coefficients @ mean), coefficients


def measure_calibration(
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
