"""`tmt plan`: what it predicts for the tiny training, and refused input."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, read_folder

from transformer_mt.cli import plan as command
from transformer_mt.flows import configuration
from transformer_mt.flows import plan as planning
from transformer_mt.flows.plan import (
    Measurements,
    Plan,
    advise,
    list_event_steps,
)
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training.memory_estimate import MemoryPrediction
from transformer_mt.training.trainer import StepDone

QUICKSTART = configuration.find_preset("quickstart")
MEASURED = Measurements(
    setup_seconds=1,
    step_seconds=1,
    tokens_per_second=1000,
    padding=0.1,
    validation_seconds=1,
    checkpoint_seconds=1,
    peak_bytes=10,
)
BIG_ENOUGH = Plan(
    name="x",
    hardware="CPU",
    precision="fp32",
    threads=1,
    measured=MEASURED,
    parameters=1,
    memory=MemoryPrediction((1, 1, 1), 10, 100, "cpu"),
    batch_tokens=2048,
    accumulate=1,
    n_pairs=10,
    steps_per_epoch=10,
    steps=1500,
    may_stop_early=False,
    n_validations=2,
    n_checkpoints=2,
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for the temporary files of the plan."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(autouse=True)
def in_scratch(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))


@pytest.fixture(scope="module")
def tiny_plan(tiny: Path, scratch: Path) -> Plan:
    """The plan of the tiny training, from fewer steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tiny)
        patch.setattr(tempfile, "tempdir", str(scratch))
        patch.setattr(planning, "WARM_UP_STEPS", 1)
        patch.setattr(planning, "MEASURED_STEPS", 3)
        return planning.make_plan(configuration.load(Path("tiny.yaml")))


def test_the_plan_agrees_with_the_training(tiny_plan: Plan, tiny_run: Path, in_tiny: Path) -> None:
    run = RunFolder(tiny_run)
    assert tiny_plan.parameters == run.read_record().parameters
    assert (tiny_plan.steps, tiny_plan.n_validations, tiny_plan.n_checkpoints) == (12, 3, 3)
    assert tiny_plan.n_pairs == 50
    log = (in_tiny / "train.log").read_text(encoding="utf-8")
    assert " x ".join(map(str, tiny_plan.memory.largest_batch)) in log


def test_the_plan_is_printed_as_a_table_and_as_json(
    tiny_plan: Plan, in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "make_plan", lambda _: tiny_plan)
    table = assert_succeeded(tmt("plan", "tiny.yaml"))
    rows = [re.split("  +", line.strip(), maxsplit=1) for line in table.splitlines() if "  " in line]
    found = {name: value for name, value in rows if name != "to change"}
    assert found["parameters"] == f"{tiny_plan.parameters:,}"
    assert found["epoch"].endswith(" for 50 pairs")
    assert "12 steps" in found["time"]
    assert command.NOTE in table
    values: dict[str, Any] = json.loads(assert_succeeded(tmt("plan", "tiny.yaml", "--json")))
    assert values["hours"] == tiny_plan.hours
    assert values["measured"]["tokens_per_second"] == tiny_plan.measured.tokens_per_second > 0
    assert values["fits_memory"] is True
    assert values["memory"]["n_bytes"] == tiny_plan.memory.n_bytes


@pytest.mark.parametrize("interval", ["1 step", "7 steps", "1 epoch", "3 epochs"])
@pytest.mark.parametrize(("batches", "accumulate"), [(100, 1), (201, 2), (100, 3), (5, 7)])
def test_events_are_those_of_the_training_loop(interval: str, batches: int, accumulate: int) -> None:
    def epochs(step: int) -> int:
        return step * accumulate // batches

    milestones = (StepDone(step, epochs(step - 1), epochs(step)) for step in range(1, 1001))
    expected = [milestone.step for milestone in milestones if milestone.is_due(interval)]
    assert sorted(list_event_steps(interval, 1000, batches / accumulate)) == expected


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, []),
        ({"memory": replace(BIG_ENOUGH.memory, n_bytes=None)}, ["memory: batches.tokens=1024 batches.accumulate=2 "]),
        ({"memory": replace(BIG_ENOUGH.memory, n_bytes=10**15)}, ["memory: "]),
        ({"steps": 240_000, "n_validations": 0, "n_checkpoints": 0}, ["time: train.max_steps=86400 "]),
        ({"steps_per_epoch": 5000.0}, ["steps: an epoch has 5,000 steps"]),
    ],
)
def test_advice_names_what_does_not_fit(changes: dict[str, Any], advice: list[str]) -> None:
    found = list(advise(replace(BIG_ENOUGH, **changes)))
    assert len(found) == len(advice)
    assert all(line.startswith(start) for line, start in zip(found, advice, strict=True))


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_model_that_exceeds_the_memory_is_refused_before_it_is_allocated(
    command: str, in_tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.flows.train.make_model", None)
    size = ("model.d_model=65536", "model.encoder.n_layers=50", "name=huge")
    assert_user_error(
        tmt(command, "tiny.yaml", *size), "model: needs ", "TB before the first batch", "lower model.d_mo"
    )
    assert not (in_tiny / "runs" / "huge").exists()


def test_wrong_input_is_refused(tiny_run: Path, in_tiny: Path, scratch: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("plan", "runs/tiny"), "runs/tiny: is a directory; pass runs/tiny/config.yaml")
    assert_user_error(tmt("plan", "tiny.yaml", "data.train={src: missing, tgt: train.de}"), "missing: no such file")
    assert read_folder(scratch) == {}
