"""Commands on a CUDA device print and write what they do on the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import assert_succeeded, read_metrics

pytestmark = pytest.mark.slow
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")

COMMANDS = {
    "translate": "translate RUN --input test.en --beam 4 --n-best 3 --format json",
    "translate with alignments": "translate RUN --input test.en --alignments",
    "translate by sampling": "translate RUN --input test.en --sample",
    "score": "translate RUN --input test.en --score-targets test.de",
    "explain": "explain RUN one --json",
}


def mask_numbers(text: str) -> tuple[str, list[float]]:
    """Separate decimal numbers, which differ by rounding, from the rest."""
    return NUMBER.sub("N", text), [float(number) for number in NUMBER.findall(text)]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_output_is_that_of_the_cpu(command: str, run_copy: Path, tmt) -> None:
    arguments = [run_copy if part == "RUN" else part for part in command.split()]
    outputs = [assert_succeeded(tmt(*arguments, "--device", d, "--precision", "fp32")) for d in ("cpu", "cuda")]
    (expected, expected_numbers), (found, numbers) = map(mask_numbers, outputs)
    assert found == expected
    assert numbers == pytest.approx(expected_numbers, abs=1e-3)


TRAININGS = {
    "plain": (),
    "accumulated": ("batches.accumulate=2",),
    "muon": ("optimizer.kind=muon",),
    "mixture": ("data.train=[{src: train.en, tgt: train.de, name: a}, {src: valid.en, tgt: valid.de, name: b}]",),
}


@pytest.mark.parametrize("overrides", TRAININGS.values(), ids=list(TRAININGS))
def test_training_has_the_losses_of_the_cpu(overrides: tuple[str, ...], run_copy: Path, tmt) -> None:
    fixed = ("precision=fp32", "model.d_model=32", "model.dropout.residual=0", "model.dropout.embedding=1e-9")
    for device in ("cpu", "cuda"):
        name = (f"name={device}", f"device={device}")
        assert_succeeded(tmt("train", "--config", "tiny.yaml", *fixed, *overrides, *name))
    expected, found = (read_metrics(run_copy.parent / device) for device in ("cpu", "cuda"))
    assert found.keys() == expected.keys()
    for metric in expected:
        if metric.startswith(("train/loss", "train/nll", "valid/loss")):
            numbers, wanted = ([float(value) for value in metrics[metric].values()] for metrics in (found, expected))
            assert numbers == pytest.approx(wanted, rel=1e-2, nan_ok=True), metric


@pytest.mark.parametrize(
    "command",
    [
        "export RUN --average 2 --output mean",
        "evaluate RUN --device cuda --precision bf16",
        "report RUN --output report.html --device cuda",
        "explain RUN one --html page.html --device cuda",
    ],
)
def test_command_succeeds(command: str, run_copy: Path, tmt) -> None:
    config = run_copy / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("device: cpu", "device: cuda"), encoding="utf-8")
    assert_succeeded(tmt(*(run_copy if part == "RUN" else part for part in command.split())))
