"""The flow of `tmt calibrate`: translate pairs, fit the confidence, and measure it on other pairs.

`N` translations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from transformer_mt.config.root import Config
from transformer_mt.decoding.confidence import (
    Calibration,
    ConfidenceRegression,
    Features,
    HeldOutFigures,
    log_length_ratio,
)
from transformer_mt.decoding.text_translator import Translation
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.calibration import (
    Array,
    Bin,
    expected_calibration_error,
    fit_logistic,
    reliability_bins,
    sentence_chrf_scores,
)
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.pipeline.data import load_split
from transformer_mt.pipeline.validation import list_validation_sources
from transformer_mt.system.files import write_text


@dataclass(frozen=True)
class Pairs:
    """Source sentences with references, and the scorer of their target language."""

    sources: Sequence[str]
    references: Sequence[str]
    scorer: Scorer

    def every_second(self, first: int) -> Pairs:
        """Return pairs `first`, `first + 2`, ..."""
        return Pairs(self.sources[first::2], self.references[first::2], self.scorer)


@dataclass(frozen=True)
class CalibrationReport:
    """A calibration, and the bins of its confidences on held-out translations."""

    calibration: Calibration
    bins: list[Bin]


class _Judged(NamedTuple):
    """A translation with its source, and whether it is acceptable."""

    source: str
    translation: Translation
    is_acceptable: bool


def read_validation_pairs(config: Config, tag: str | None) -> Pairs:
    """Return the validation pairs with this tag. Raises `UserError` if there are none."""
    corpus = load_split(config, "validation")
    parts = [part for part in list_validation_sources(config, corpus) if part.tag == tag]
    rows = [i for part in parts for i in range(part.first, part.end)]
    if not rows:
        tags = sorted({source.tag for source in config.data.validation_sources if source.tag})
        raise UserError(f"calibrate: no validation pair has the tag {tag}; pass --tag, one of {', '.join(tags)}")
    sources, references = corpus.column("src"), corpus.column("tgt")
    return Pairs([sources[i] for i in rows], [references[i] for i in rows], parts[0].scorer)


def calibrate(translator: Translator, pairs: Pairs, test_pairs: Pairs | None, min_chrf: float) -> CalibrationReport:
    """Fit the confidence of a run, measure it, and write `calibration.json`.

    Without `test_pairs`, every second pair is held out for the figures.

    Raises:
        UserError: All translations of the fit are acceptable, or none.
    """
    (member,) = translator.members
    fitted = _translate(translator, pairs if test_pairs else pairs.every_second(0), min_chrf)
    held_out = _translate(translator, test_pairs or pairs.every_second(1), min_chrf)
    fitted = [one for one in fitted if one.translation.finished and one.translation.token_scores]
    n_acceptable = sum(one.is_acceptable for one in fitted)
    if n_acceptable in (0, len(fitted)) or not held_out:
        raise UserError(
            f"calibrate: {n_acceptable:,} of {len(fitted):,} finished translations are acceptable (chrF of at least "
            f"{min_chrf:g}), and the fit needs both kinds;\nchoose another --min-chrf, or pass more pairs"
        )
    regression = _fit(fitted)
    figures, bins = _measure(regression, held_out)
    calibration = Calibration(
        step=member.step,
        weights_hash=member.weights_hash,
        decoding=translator.config,
        min_chrf=min_chrf,
        pairs=len(fitted),
        regression=regression,
        held_out=figures,
    )
    write_text(member.folder.calibration, calibration.model_dump_json(indent=1) + "\n")
    return CalibrationReport(calibration, bins)


def _translate(translator: Translator, pairs: Pairs, min_chrf: float) -> list[_Judged]:
    """Translate the pairs that are not blank, and judge the translations by their sentence-level chrF."""
    texts = enumerate(zip(pairs.sources, pairs.references, strict=True))
    rows = [i for i, (source, reference) in texts if source.strip() and reference.strip()]
    sources = [pairs.sources[i] for i in rows]
    translations = [best for best, *_ in translator.n_best(sources)]
    hypotheses = [translation.text for translation in translations]
    chrf = sentence_chrf_scores(hypotheses, [pairs.references[i] for i in rows], pairs.scorer)
    judgements = cast("list[bool]", (chrf >= min_chrf).tolist())
    return [_Judged(*each) for each in zip(sources, translations, judgements, strict=True)]


def _fit(judged: Sequence[_Judged]) -> ConfidenceRegression:
    ratios = [log_length_ratio(one.source, one.translation.text) for one in judged]
    usual_log_ratio = float(np.median(ratios))
    features = [
        Features.of(one.source, one.translation.text, one.translation.token_scores, usual_log_ratio) for one in judged
    ]
    labels = np.array([one.is_acceptable for one in judged])
    intercept, (mean, deviation) = fit_logistic(np.array(features), labels)
    return ConfidenceRegression(
        usual_log_ratio=usual_log_ratio,
        intercept=intercept,
        coefficients=(float(mean), float(deviation)),
    )


def _measure(regression: ConfidenceRegression, judged: Sequence[_Judged]) -> tuple[HeldOutFigures, list[Bin]]:
    """Compare raw probabilities and confidences with the judgements."""
    labels = np.array([one.is_acceptable for one in judged])
    before: Array = np.exp([one.translation.score_per_token for one in judged])
    after: Array = np.array(
        [
            regression.confidence(
                one.source, one.translation.text, one.translation.token_scores, finished=one.translation.finished
            )
            for one in judged
        ]
    )
    figures = HeldOutFigures(
        pairs=len(judged),
        acceptable=float(labels.mean()),
        ece_before=expected_calibration_error(before, labels),
        ece_after=expected_calibration_error(after, labels),
    )
    return figures, reliability_bins(after, labels)
