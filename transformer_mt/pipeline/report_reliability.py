"""Reliability diagram of a run with a calibration, for `tmt report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transformer_mt.decoding.confidence import Calibration
from transformer_mt.decoding.translation import Translation
from transformer_mt.evaluation.calibration import ReliabilityBin
from transformer_mt.pages.charts import Chart, draw_bars
from transformer_mt.pipeline.calibration import CalibrationPairs, hash_sources, judge_translations, measure
from transformer_mt.pipeline.evaluation_sets import EvaluationSet


class Reliability(NamedTuple):
    """How well confidences agree with the share of acceptable translations."""

    bins: list[ReliabilityBin]
    chart: Chart
    error: float  # expected calibration error
    min_chrf: float  # of an acceptable translation
    is_fitted_to_set: bool  # the confidences were fitted to pairs of the same set


def measure_reliability(
    calibration: Calibration, data: EvaluationSet, translations: Sequence[Translation]
) -> Reliability | None:
    """Compare the confidences of the translations of a set with their sentence-level chrF.

    Pairs with a blank side are left out. Return None if there are no others.
    """
    pairs = zip(data.sources, data.references, strict=True)
    rows = [i for i, (source, reference) in enumerate(pairs) if source.strip() and reference.strip()]
    if not rows:
        return None
    sources, references = ([texts[i] for i in rows] for texts in (data.sources, data.references))
    judged = judge_translations(
        [translations[i] for i in rows], CalibrationPairs(sources, references, data.scorer), calibration.min_chrf
    )
    figures, bins = measure(calibration.regression, judged)
    values = {
        "mean confidence": [bin_.confidence for bin_ in bins],
        "acceptable": [bin_.acceptable for bin_ in bins],
    }
    return Reliability(
        bins,
        draw_bars("Confidence and share of acceptable translations", [f"{bin_.low:.1f}" for bin_ in bins], values),
        figures.ece_after,
        calibration.min_chrf,
        calibration.sources_hash == hash_sources(data.sources),
    )
