"""Fit of the probability that a translation is acceptable, and the expected calibration error (ECE).

`N` translations, `F` features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_mt.evaluation.metrics import Scorer

Array = NDArray[np.float64]

N_BINS = 10  # of equal width, as usual for the ECE
PENALTY = 1.0  # of the squared coefficients, so that they stay finite if the features separate the labels
MAX_ITERATIONS = 100
TOLERANCE = 1e-9


class Bin(NamedTuple):
    """Translations whose confidence is in one of `N_BINS` ranges."""

    low: float
    high: float
    translations: int
    confidence: float  # mean
    acceptable: float  # share


def sentence_chrf_scores(hypotheses: Sequence[str], references: Sequence[str], scorer: Scorer) -> Array:
    """Return the chrF of each translation. [N]."""
    metric = scorer.all_metrics()["chrF"]
    pairs = zip(scorer.detokenize(hypotheses), scorer.detokenize(references), strict=True)
    return np.array([metric.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs])


def fit_logistic(features: Array, labels: NDArray[Any]) -> tuple[float, Array]:
    """Fit a logistic regression by Newton's method. Returns intercept and coefficients. [N, F], [N] -> [F].

    A small penalty is on the coefficients of the standardised features.
    """
    mean, deviation = features.mean(0), features.std(0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    inputs = np.column_stack([np.ones(len(features)), (features - mean) / deviation])  # [N, F + 1]
    penalty = np.diag([0.0, *np.full(features.shape[1], PENALTY)])
    weights = np.zeros(inputs.shape[1])
    for _ in range(MAX_ITERATIONS):
        probabilities = logistic(inputs @ weights)
        gradient = inputs.T @ (labels - probabilities) - penalty @ weights
        hessian = (inputs.T * (probabilities * (1 - probabilities))) @ inputs + penalty
        step = np.linalg.solve(hessian, gradient)
        weights += step
        if np.abs(step).max() < TOLERANCE:
            break
    coefficients = weights[1:] / deviation
    return float(weights[0] - coefficients @ mean), coefficients


def logistic(logits: Array) -> Array:
    """Return the logistic function of each logit, without overflow."""
    return 0.5 + 0.5 * np.tanh(logits / 2)


def reliability_bins(confidences: Array, labels: NDArray[Any]) -> list[Bin]:
    """Return the bins that hold translations, the lowest confidence first."""
    indices = np.minimum((confidences * N_BINS).astype(int), N_BINS - 1)
    found: list[Bin] = []
    for i in np.unique(indices):
        rows = indices == i
        share = float(labels[rows].mean())
        found.append(
            Bin(float(i / N_BINS), float((i + 1) / N_BINS), int(rows.sum()), float(confidences[rows].mean()), share)
        )
    return found


def expected_calibration_error(confidences: Array, labels: NDArray[Any]) -> float:
    """Return the mean of |confidence - share of acceptable translations| over bins (Guo et al. 2017)."""
    bins = reliability_bins(confidences, labels)
    return sum(one.translations * abs(one.confidence - one.acceptable) for one in bins) / len(labels)
