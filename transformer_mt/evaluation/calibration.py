"""Fit of the probability that a translation is acceptable, and the expected calibration error (ECE).

`N` translations, `F` features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
