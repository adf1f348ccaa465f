"""`tmt evaluate --calibrate` with translations of known quality, and `tmt translate --confidence`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt import Translator
from transformer_mt.decoding.translator import Translation
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.analysis.confidence import load_calibration

N_PAIRS = 400
SEARCH = Translator.n_best  # which `pairs` replaces


def translate_as_well_as_the_source_says(
    _: Translator, texts: Sequence[str], *_arguments: Any, **_options: Any
) -> list[list[Translation]]:
    """Stand in for `n_best`: the log-probability is the number in the source, from which `pairs` makes references."""
    return [[Translation(text, float(text.split()[1]), [], [float(text.split()[1])], True)] for text in texts]


@pytest.fixture
def pairs(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write pairs whose reference equals the translation with a probability that depends on its score."""
    monkeypatch.setattr(Translator, "n_best", translate_as_well_as_the_source_says)
    dice = np.random.default_rng(3)
    scores = dice.uniform(-3, 0, N_PAIRS)
    is_good = dice.random(N_PAIRS) < 1 / (1 + np.exp(-(4 * scores + 6)))
    sources = [f"sentence {score:.4f}" for score in scores]
    references = [source if good else "QQ" for source, good in zip(sources, is_good, strict=True)]
    for name, lines in {"c.src": sources, "c.ref": references}.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ["--src", "c.src", "--ref", "c.ref"]


def read_json(text: str) -> dict[str, Any]:
    return json.loads(text)


def test_confidences_are_fitted_to_half_of_the_pairs_and_measured_on_the_rest(
    run_copy: Path, pairs: list[str], tmt: Tmt
) -> None:
    report = read_json(assert_succeeded(tmt("evaluate", run_copy, "--calibrate", *pairs, "--json")))
    calibration = report["calibration"]
    assert (calibration["n_translations"], calibration["held_out"]["n_translations"]) == (N_PAIRS / 2, N_PAIRS / 2)
    assert sum(each["n_translations"] for each in report["bins"]) == N_PAIRS / 2
    assert calibration == read_json((run_copy / "calibration.json").read_text(encoding="utf-8"))
    references = Path("c.ref").read_text(encoding="utf-8").split("\n")[1:-1:2]
    assert calibration["held_out"]["acceptable"] == pytest.approx(np.mean([line != "QQ" for line in references]))
    assert calibration["held_out"]["ece_after"] < 0.1 < calibration["held_out"]["ece_before"]
    slope, _ = calibration["regression"]["coefficients"]
    assert slope == pytest.approx(4, rel=0.4)  # of the process that made the pairs


def test_text_output_has_the_error_and_the_next_command(run_copy: Path, pairs: list[str], tmt: Tmt) -> None:
    printed = assert_succeeded(tmt("evaluate", run_copy, "--calibrate", *pairs))
    assert "acceptable: sentence-level chrF of at least 60" in printed
    assert "expected calibration error:" in printed
    assert printed.strip().endswith(f"next: tmt translate {run_copy} --confidence")


def test_pairs_of_one_kind_are_refused_and_nothing_is_written(run_copy: Path, pairs: list[str], tmt: Tmt) -> None:
    Path("c.ref").write_text("QQ\n" * N_PAIRS, encoding="utf-8")
    assert_user_error(tmt("evaluate", run_copy, "--calibrate", *pairs), "0 of 200 finished translations", "--min-chrf")
    assert not (run_copy / "calibration.json").exists()


def test_too_few_pairs_are_refused_and_an_older_calibration_is_kept(run_copy: Path, pairs: list[str], tmt: Tmt) -> None:
    assert_succeeded(tmt("evaluate", run_copy, "--calibrate", *pairs))
    before = (run_copy / "calibration.json").read_bytes()
    sources = ["good -0.1", "bad -0.1"] * 10
    Path("c.src").write_text("".join(f"{text}\n" for text in sources), encoding="utf-8")
    references = [text if text.startswith("good") else "QQ" for text in sources]
    Path("c.ref").write_text("".join(f"{text}\n" for text in references), encoding="utf-8")
    message = "10 of 10 finished translations are acceptable"  # every second pair is good
    assert_user_error(tmt("evaluate", run_copy, "--calibrate", *pairs), message, "at least 10 of each kind")
    assert (run_copy / "calibration.json").read_bytes() == before


def test_the_next_command_needs_the_same_options(run_copy: Path, pairs: list[str], tmt: Tmt) -> None:
    printed = assert_succeeded(tmt("evaluate", run_copy, "--calibrate", *pairs, "--beam", "3", "--checkpoint", "last"))
    assert printed.strip().endswith(f"next: tmt translate {run_copy} --confidence, with the same options")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--src", "x"], "--src and --ref go together"),
        (["RUN", "--min-chrf", "0"], "--min-chrf: 0"),
        (["RUN", "--min-chrf", "nan"], "--min-chrf: nan"),
        (["RUN", "--output", "f"], "--calibrate uses other options; leave out --output"),
        (["RUN", "RUN"], "--calibrate needs one run"),
    ],
)
def test_wrong_arguments_are_refused(words: list[str], message: str, tiny_run: Path, tmt: Tmt) -> None:
    words = [str(tiny_run) if word == "RUN" else word for word in words]
    assert_user_error(tmt("evaluate", "--calibrate", *words), message)


def test_validation_pairs_are_the_default(run_copy: Path, tmt: Tmt) -> None:
    """The tiny model finishes no translation."""
    assert_user_error(tmt("evaluate", run_copy, "--calibrate"), "0 of 0 finished translations")


def test_translate_adds_a_column_and_a_key(
    run_copy: Path, pairs: list[str], tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_succeeded(tmt("evaluate", run_copy, "--calibrate", *pairs))
    monkeypatch.setattr(Translator, "n_best", SEARCH)
    plain = assert_succeeded(tmt("translate", run_copy, "one two", "")).split("\n")
    lines = assert_succeeded(tmt("translate", run_copy, "one two", "", "--confidence")).split("\n")
    assert lines == [f"0.0000\t{plain[0]}", "1.0000\t", ""]  # the first was cut, the second is blank
    tsv = assert_succeeded(tmt("translate", run_copy, "one two", "--confidence", "--format", "tsv"))
    assert tsv.rstrip("\n").split("\t")[-2:] == ["0.0000", plain[0]]
    found = read_json(assert_succeeded(tmt("translate", run_copy, "one two", "--confidence", "--format", "json")))
    assert found["translations"][0]["confidence"] == 0.0
    assert_user_error(tmt("translate", run_copy, "one", "--confidence", "--beam", "2"), "beam 5 (now 2)")
    assert_user_error(tmt("translate", run_copy, "one", "--confidence", "--ensemble", run_copy), "leave out --ensemble")


def test_translate_without_a_calibration_names_the_command(tiny_run: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("translate", tiny_run, "one", "--confidence"), f"tmt evaluate {tiny_run} --calibrate")


def test_resumed_output_needs_the_same_calibration(
    run_copy: Path, pairs: list[str], tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_succeeded(tmt("evaluate", run_copy, "--calibrate", *pairs))
    monkeypatch.setattr(Translator, "n_best", SEARCH)
    Path("in").write_bytes(b"one\n" * 1000 + b"\xff\n")
    command = ("translate", run_copy, "--input", "in", "--output", "out", "--confidence", "--beam", "5")
    assert tmt(*command).returncode == 2
    path = run_copy / "calibration.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"min_chrf": 60', '"min_chrf": 59', 1), encoding="utf-8")
    assert_user_error(tmt(*command, "--resume"), "out.part", "--confidence")


def test_exported_weights_keep_the_calibration_of_their_checkpoint(
    run_copy: Path, pairs: list[str], tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_succeeded(tmt("evaluate", run_copy, "--calibrate", *pairs))
    monkeypatch.setattr(Translator, "n_best", SEARCH)
    steps = [info.step for info in RunFolder.open(run_copy).list_checkpoints()]
    best = RunFolder.open(run_copy).find_checkpoint("best").step
    for step in steps:
        out = Path(f"weights-{step}")
        assert_succeeded(tmt("export", run_copy, "--to", "weights", "--output", out, "--checkpoint", step))
        assert (out / "calibration.json").exists() == (step == best)
    assert load_calibration(Translator.load(f"weights-{best}")).step == best
    assert_succeeded(tmt("export", run_copy, "--average", len(steps), "--output", "mean"))
    assert not Path("mean/calibration.json").exists()
