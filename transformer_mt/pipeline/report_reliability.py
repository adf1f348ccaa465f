"""Reliability diagram of a run with a calibration, for `tmt report`.

`N` translations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_mt.decoding.confidence import read_calibration
from transformer_mt.decoding.text_translator import Translation
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.calibration import (
    Bin,
    expected_calibration_error,
    reliability_bins,
    sentence_chrf_scores,
)
from transformer_mt.pages.charts import Chart, draw_bars
from transformer_mt.pipeline.report_facts import ReportedRun
from transformer_mt.pipeline.shared_evaluation import EvaluationSet, Tags, Warn


class Reliability(NamedTuple):
    """How well confidences agree with the share of acceptable translations."""

    bins: list[Bin]
    chart: Chart
    error: float  # expected calibration error
    min_chrf: float  # of an acceptable translation


def measure_reliability(
    run: ReportedRun,
    translator: Translator,
    data: EvaluationSet,
    tags: Tags,
    translations: Sequence[Translation],
    warn: Warn,
) -> Reliability | None:
    """Compare the confidences of the translations of a set with their sentence-level chrF.

    Return None for a run without `calibration.json`, or, with a warning, if it is not valid for this model.
    """
    rows = [i for i, source in enumerate(data.sources) if source.strip() and data.references[i].strip()]
    if not run.folder.calibration.exists() or not rows:
        return None
    try:
        calibration = read_calibration(run.folder)
        calibration.check(translator.members[0], translator.config, tags or [translator.config.tag])
    except UserError as error:
        warn(f"the reliability diagram is left out: {error}")
        return None
    shown = [translations[i] for i in rows]
    chrf = sentence_chrf_scores([one.text for one in shown], [data.references[i] for i in rows], data.scorer)
    confidence = calibration.regression.confidence
    confidences = np.array(
        [
            confidence(data.sources[i], one.text, one.token_scores, finished=one.finished)
            for i, one in zip(rows, shown, strict=True)
        ]
    )  # [N]
    labels = chrf >= calibration.min_chrf  # [N]
    bins = reliability_bins(confidences, labels)
    values = {"mean confidence": [one.confidence for one in bins], "acceptable": [one.acceptable for one in bins]}
    chart = draw_bars("Confidence and share of acceptable translations", [f"{one.low:.1f}" for one in bins], values)
    return Reliability(bins, chart, expected_calibration_error(confidences, labels), calibration.min_chrf)
