"""The logistic regression is compared with a numerical optimiser, the calibration error with sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.evaluation.calibration import (
    PENALTY,
    Array,
    expected_calibration_error,
    fit_logistic,
    reliability_bins,
    sentence_chrf_scores,
)
from transformer_mt.evaluation.metrics import Scorer


def random_examples(n: int) -> tuple[Array, Array]:
    """Return features of different scales, and labels that depend on them."""
    dice = np.random.default_rng(1)
    features = dice.normal([5.0, -300.0], [2.0, 40.0], (n, 2))
    logits = 1.5 * (features[:, 0] - 5) - 0.02 * (features[:, 1] + 300) + 0.5
    return features, (dice.random(n) < 1 / (1 + np.exp(-logits))).astype(float)


def test_fit_is_the_minimum_that_a_numerical_optimiser_finds() -> None:
    features, labels = random_examples(300)
    intercept, coefficients = fit_logistic(features, labels)
    inputs = torch.tensor((features - features.mean(0)) / features.std(0))
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = weights[0] + inputs @ weights[1:]
        nll = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels), reduction="sum")
        value = nll + 0.5 * PENALTY * (weights[1:] ** 2).sum()
        value.backward()  # pyright: ignore[reportUnknownMemberType]
        return value

    optimizer.step(loss)  # pyright: ignore[reportUnknownMemberType, reportArgumentType]
    expected = (weights[0] + inputs @ weights[1:]).detach().numpy()
    assert intercept + features @ coefficients == pytest.approx(expected, abs=1e-5)


def test_fit_is_finite_for_separable_and_constant_features() -> None:
    features = np.column_stack([np.arange(20.0), np.full(20, 7.0)])
    labels = np.arange(20) >= 10
    intercept, coefficients = fit_logistic(features, labels)
    logits = intercept + features @ coefficients
    assert np.isfinite(logits).all()
    assert ((logits > 0) == labels).all()
    assert coefficients[1] == pytest.approx(0)


def test_fit_converges_with_a_single_positive_label() -> None:
    features, _ = random_examples(500)
    labels = np.arange(500) == 0
    intercept, coefficients = fit_logistic(features, labels)
    probabilities = 1 / (1 + np.exp(-(intercept + features @ coefficients)))
    assert probabilities.sum() == pytest.approx(1, abs=1e-6)  # the intercept is not penalised


def test_calibration_error_is_the_weighted_distance_of_the_bins() -> None:
    confidences = np.array([0.0, 0.05, 0.31, 0.39, 0.92, 1.0])
    labels = np.array([False, True, True, False, True, True])
    bins = reliability_bins(confidences, labels)
    assert [(one.low, one.translations, one.acceptable) for one in bins] == [
        (0.0, 2, 0.5),
        (0.3, 2, 0.5),
        (0.9, 2, 1.0),
    ]
    expected = (2 * abs(0.025 - 0.5) + 2 * abs(0.35 - 0.5) + 2 * abs(0.96 - 1)) / 6
    assert expected_calibration_error(confidences, labels) == pytest.approx(expected)


def test_calibration_error_of_true_probabilities_is_small() -> None:
    dice = np.random.default_rng(2)
    confidences = dice.random(50_000)
    labels = dice.random(50_000) < confidences
    assert expected_calibration_error(confidences, labels) < 0.01
    assert expected_calibration_error(confidences**3, labels) > 0.1


def test_sentence_chrf_is_that_of_sacrebleu() -> None:
    hypotheses, references = ["Ein Hund läuft .", "Eine Katze"], ["Ein Hund rennt .", "Zwei Katzen"]
    found = sentence_chrf_scores(hypotheses, references, Scorer("13a", "de"))
    expected = [CHRF().sentence_score(one, [other]).score for one, other in zip(hypotheses, references, strict=True)]
    assert found.tolist() == expected
    upper = [text.upper() for text in hypotheses]
    moses = Scorer("13a", "de", "moses")  # ignores case, and joins tokens
    assert sentence_chrf_scores(upper, references, moses) == pytest.approx(
        sentence_chrf_scores(hypotheses, references, moses)
    )
