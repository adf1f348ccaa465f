"""Confidences equal the formula computed by hand, and hold only for the model and options of their fit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import RUN_RECORD

from transformer_mt.data.data_config import DataConfig
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import LoadedRun
from transformer_mt.decoding.line_splitting import LineChunker
from transformer_mt.decoding.translator import Translation, Translator
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import FORMAT, RunFolder
from transformer_mt.tools.analysis.confidence import (
    Calibration,
    ConfidenceRegression,
    HeldOutFigures,
    add_confidences,
    load_calibration,
)

REGRESSION = ConfidenceRegression(usual_log_ratio=0.1, intercept=2.0, coefficients=(3.0, -0.5))
HELD_OUT = HeldOutFigures(n_translations=10, acceptable=0.5, ece_before=0.2, ece_after=0.1)


def make_calibration(config: DecodingConfig, **changes: Any) -> Calibration:
    values: dict[str, Any] = {
        "step": 7,
        "weights_hash": "abc",
        "decoding": config,
        "min_chrf": 60,
        "n_translations": 20,
        "sources_hash": "123",
        "regression": REGRESSION,
        "held_out": HELD_OUT,
    }
    return Calibration.model_validate({**values, **changes})


@pytest.fixture
def calibrated(make_translator: Callable[..., Translator], tmp_path: Path) -> Translator:
    """A translator that was loaded from a run with a calibration."""
    translator = make_translator(beam=2, max_length_offset=10)
    data = DataConfig.model_validate({"src_lang": "en", "tgt_lang": "de", "train": {"builtin": "quickstart"}})
    run = RunFolder(tmp_path)
    run.config.write_text(json.dumps({"decoding": translator.config.model_dump()}), encoding="utf-8")
    run.metadata.write_text(json.dumps({**RUN_RECORD, "format": FORMAT}), encoding="utf-8")
    translator.runs = [LoadedRun(run, data, translator.tokenizers, 7, "abc", None)]
    run.calibration.write_text(make_calibration(translator.config).model_dump_json(), encoding="utf-8")
    return translator


def expected_confidence(source: str, translation: Translation) -> float:
    """Repeat the formula."""
    mean = sum(translation.token_scores) / len(translation.token_scores)
    deviation = abs(math.log((len(translation.text) + 1) / (len(source) + 1)) - 0.1)
    return 1 / (1 + math.exp(-(2.0 + 3.0 * mean - 0.5 * deviation)))


def test_confidence_is_the_logistic_function_of_score_and_length(calibrated: Translator) -> None:
    sources = ["The old dog sleeps.", "", "My aunt reads."]
    plain = calibrated.n_best(sources, n_best=2)
    found = add_confidences(plain, sources, load_calibration(calibrated))
    finished = 0
    for source, with_confidence, without in zip(sources, found, plain, strict=True):
        for one, other in zip(with_confidence, without, strict=True):
            assert other.confidence is None
            assert (one.text, one.token_scores) == (other.text, other.token_scores)
            if not source:
                assert one.confidence == 1.0
            elif not one.finished:
                assert one.confidence == 0.0
            else:
                finished += 1
                assert one.confidence == pytest.approx(expected_confidence(source, one))
    assert finished >= 2


def test_extreme_scores_do_not_overflow() -> None:
    surely_bad = REGRESSION.confidence("a", Translation("b", -1e6, ["b"], [-1e6], finished=True))
    assert surely_bad == 0.0
    steep = ConfidenceRegression(usual_log_ratio=0, intercept=1e9, coefficients=(0, 0))
    assert steep.confidence("a", Translation("b", -1.0, ["b"], [-1.0], finished=True)) == 1.0


def test_missing_calibration_names_the_command(calibrated: Translator) -> None:
    calibrated.runs[0].folder.calibration.unlink()
    with pytest.raises(UserError, match=r"has no calibration.*tmt evaluate .* --calibrate"):
        load_calibration(calibrated)


@pytest.mark.parametrize("content", ["", "[1]", '{"format": 2}', pytest.param(None, id="not-finite")])
def test_damaged_calibration_is_refused(calibrated: Translator, content: str | None) -> None:
    path = calibrated.runs[0].folder.calibration
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("2.0", "NaN", 1) if content is None else content, encoding="utf-8")
    with pytest.raises(UserError, match=r"calibration.json: is damaged, or of another version; fit one .*tmt evaluate"):
        load_calibration(calibrated)


def test_calibration_of_other_weights_is_refused(calibrated: Translator) -> None:
    (run,) = calibrated.runs
    calibrated.runs = [run._replace(step=9, weights_hash="def")]
    with pytest.raises(
        UserError, match=r"(?s)belongs to step 7.*is step 9.*tmt evaluate .* --calibrate --checkpoint 9"
    ):
        load_calibration(calibrated)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"beam": 3}, r"beam 2 \(now 3\)"),
        ({"repetition_penalty": 1.5}, r"repetition_penalty 1.0 \(now 1.5\)"),
        ({"sample": True}, r"sample False \(now True\)"),
    ],
)
def test_calibration_of_other_options_is_refused(calibrated: Translator, options: dict[str, Any], change: str) -> None:
    with pytest.raises(UserError, match=rf"(?s){change}.*tmt evaluate .* --calibrate"):
        load_calibration(calibrated.with_options(options))


def test_calibration_holds_for_its_own_tag_only(calibrated: Translator) -> None:
    assert load_calibration(calibrated, [None]).step == 7
    with pytest.raises(UserError, match=r"tag None \(now 2fr\)"):
        load_calibration(calibrated, [None, "2fr"])


def test_options_of_the_output_keep_the_calibration(calibrated: Translator) -> None:
    assert load_calibration(calibrated.with_options({"n_best": 2, "seed": 5, "batch_tokens": 100}))


def test_an_ensemble_has_no_confidence(calibrated: Translator) -> None:
    calibrated.runs = [*calibrated.runs, *calibrated.runs]
    with pytest.raises(UserError, match="confidences are those of one run"):
        load_calibration(calibrated)


def test_confidence_of_a_line_is_the_lowest_of_its_sentences() -> None:
    chunker = LineChunker("en", "de", lambda texts: [len(text) for text in texts], 10, "always")
    parts = [[Translation(f"{value}.", -1.0, [], [], True, confidence=value)] for value in (0.7, 0.2, 0.9)]
    (line,) = chunker.join("A. B. C.", ["A. ", "B. ", "C."], parts)
    assert line.confidence == 0.2
    without = [[Translation("x.", -1.0, [], [], True)] for _ in range(2)]
    assert chunker.join("A. B.", ["A. ", "B."], without)[0].confidence is None
