"""The logistic regression minimises its loss, and the calibration error equals sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from transformer_mt.tools.analysis.confidence import (
    PENALTY,
    Array,
    compute_reliability_bins,
    expected_calibration_error,
    fit_logistic,
)


def random_examples(n: int) -> tuple[Array, Array]:
    """Return features of different scales, and labels that depend on them."""
    dice = np.random.default_rng(1)
    features = dice.normal([5.0, -300.0], [2.0, 40.0], (n, 2))
    logits = 1.5 * (features[:, 0] - 5) - 0.02 * (features[:, 1] + 300) + 0.5
    return features, (dice.random(n) < 1 / (1 + np.exp(-logits))).astype(float)


def test_the_gradient_of_the_penalised_loss_is_zero_at_the_fit() -> None:
    features, labels = random_examples(300)
    intercept, coefficients = fit_logistic(features, labels)
    mean, deviation = features.mean(0), features.std(0)
    inputs = torch.tensor((features - mean) / deviation)
    weights = torch.tensor(
        [intercept + coefficients @ mean, *coefficients * deviation], dtype=torch.float64, requires_grad=True
    )
    logits = weights[0] + inputs @ weights[1:]
    nll = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels), reduction="sum")
    (gradient,) = torch.autograd.grad(nll + 0.5 * PENALTY * (weights[1:] ** 2).sum(), weights)
    assert gradient.numpy() == pytest.approx(np.zeros(3), abs=1e-6)


def test_fit_is_finite_for_separable_and_constant_features() -> None:
    features = np.column_stack([np.arange(20.0), np.full(20, 7.0)])
    labels = np.arange(20) >= 10
    intercept, coefficients = fit_logistic(features, labels)
    logits = intercept + features @ coefficients
    assert np.isfinite(logits).all()
    assert ((logits > 0) == labels).all()
    assert coefficients[1] == pytest.approx(0)


def test_a_feature_that_is_constant_but_for_rounding_has_no_effect() -> None:
    features = np.column_stack([np.arange(20.0), [-0.3, -0.1 - 0.2] * 10])
    assert features[:, 1].std() > 0
    _, coefficients = fit_logistic(features, np.arange(20) % 3 == 0)
    assert abs(coefficients[1]) < 1e-6


def test_fit_converges_with_a_single_positive_label() -> None:
    features, _ = random_examples(500)
    labels = np.arange(500) == 0
    intercept, coefficients = fit_logistic(features, labels)
    probabilities = 1 / (1 + np.exp(-(intercept + features @ coefficients)))
    assert probabilities.sum() == pytest.approx(1, abs=1e-6)  # the intercept is not penalised


def test_calibration_error_is_the_weighted_distance_of_the_bins() -> None:
    confidences = np.array([0.0, 0.05, 0.31, 0.39, 0.92, 1.0])
    labels = np.array([False, True, True, False, True, True])
    bins = compute_reliability_bins(confidences, labels)
    assert [(each.low, each.n_translations, each.acceptable) for each in bins] == [
        (0.0, 2, 0.5),
        (0.3, 2, 0.5),
        (0.9, 2, 1.0),
    ]
    expected = (2 * abs(0.025 - 0.5) + 2 * abs(0.35 - 0.5) + 2 * abs(0.96 - 1)) / 6
    assert expected_calibration_error(bins) == pytest.approx(expected)


def test_calibration_error_of_true_probabilities_is_small() -> None:
    dice = np.random.default_rng(2)
    confidences = dice.random(50_000)
    labels = dice.random(50_000) < confidences
    assert expected_calibration_error(compute_reliability_bins(confidences, labels)) < 0.01
    assert expected_calibration_error(compute_reliability_bins(confidences**3, labels)) > 0.1
