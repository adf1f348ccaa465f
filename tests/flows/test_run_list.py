"""`tmt runs`: the status of each run, its values, and damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, read_folder, read_metrics

from transformer_mt.flows.run_overview import list_runs
from transformer_mt.runs.folder import HOLDER_FILE, lock_folder
from transformer_mt.runs.records import read_manifest, write_manifest


@pytest.fixture
def run_copy(run_copy: Path) -> Path:
    """A copy of the tiny run that is alone in its folder: other tests may have trained beside the original."""
    for path in run_copy.parent.iterdir():
        if path != run_copy:
            shutil.rmtree(path)
    return run_copy


def edit_metadata(run: Path, **changes: Any) -> None:
    """Change keys of `run.json`. None removes a key."""
    path = run / "run.json"
    record = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}), encoding="utf-8")


def status(run: Path) -> str:
    (listed,) = list_runs(run)
    return listed.status


def test_finished_run_is_listed_with_the_values_of_its_files(run_copy: Path, tmt: Tmt) -> None:
    (listed,) = json.loads(assert_succeeded(tmt("runs", "--json")))["runs"]
    record, metrics = json.loads((run_copy / "run.json").read_text(encoding="utf-8")), read_metrics(run_copy)
    assert listed["name"] == run_copy.name
    assert listed["status"] == "finished" and listed["problem"] is None
    assert (listed["step"], listed["max_steps"]) == (12, 12)
    assert (listed["metric"], listed["score"]) == ("loss", min(metrics["valid/loss"].values()))
    assert listed["hours"] == max(record["hours"], *metrics["train/hours"].values())
    assert listed["parameters"] == record["parameters"]
    assert listed["n_bytes"] == sum(map(len, read_folder(run_copy).values()))
    assert listed["directions"] == ["en-de"]
    header, row = assert_succeeded(tmt("runs")).splitlines()
    assert header.split()[:4] == ["run", "status", "steps", "best"]
    assert row.split()[:5] == ["tiny", "finished", "12", "of", "12"]


def test_listing_changes_nothing(run_copy: Path) -> None:
    before = read_folder(run_copy)
    list_runs(run_copy.parent)
    assert read_folder(run_copy) == before


def test_status_follows_the_lock_and_the_record(run_copy: Path) -> None:
    assert status(run_copy) == "finished"
    edit_metadata(run_copy, last_step=8)  # resumed with a higher train.max_steps, and stopped
    assert status(run_copy) == "stopped"
    edit_metadata(run_copy, ended=None, last_step=None)
    assert status(run_copy) == "stopped"
    with lock_folder(run_copy):
        assert status(run_copy) == "running"
        holder = (run_copy / HOLDER_FILE).read_text(encoding="utf-8")
    (run_copy / HOLDER_FILE).write_text(holder, encoding="utf-8")  # as a killed process leaves it
    assert status(run_copy) == "stopped"
    edit_metadata(run_copy, failed="the gradient was not finite\nlower schedule.peak")
    assert status(run_copy) == "failed"
    edit_metadata(run_copy, failed=None, exported={"what": "the mean"})
    assert status(run_copy) == "weights only"


def test_unfinished_run_has_the_step_and_hours_of_its_last_log_entry(run_copy: Path) -> None:
    edit_metadata(run_copy, ended=None, last_step=None, hours=None)
    with (run_copy / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n".join([*["x" * 100] * 1000, '{"step": 15, "train/hours": 7.5}', '{"step": 18, "tra']))
    (listed,) = list_runs(run_copy)
    assert (listed.step, listed.hours) == (15, 7.5)


def test_damaged_lines_of_the_metrics_are_skipped(run_copy: Path, tmt: Tmt) -> None:
    lines = ['{"step": "abc"}', '{"step": 1e400}', '{"step": 20, "train/hours": "x"}', "[1]", "7", "[" * 2000, "\xff"]
    with (run_copy / "metrics.jsonl").open("a", encoding="latin-1") as file:
        file.write("\n".join(['{"step": 15, "valid/loss": "nan"}', *lines, ""]))
    assert "15 of 12" in assert_succeeded(tmt("runs"))


def test_json_has_no_numbers_that_are_not_finite(run_copy: Path, tmt: Tmt) -> None:
    for path in run_copy.glob("checkpoints/*/checkpoint.json"):
        record = read_manifest(path)
        write_manifest(path, {**record, "scores": {"loss": float("nan")}})
    printed = assert_succeeded(tmt("runs", "--json"))
    (listed,) = json.loads(printed, parse_constant=pytest.fail)["runs"]
    assert listed["score"] is None


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "checkpoints/step-000008/checkpoint.json"])
def test_damaged_run_is_listed_and_does_not_stop_the_table(name: str, run_copy: Path, tmt: Tmt) -> None:
    shutil.copytree(run_copy, run_copy.with_name("intact"))
    text = (run_copy / name).read_bytes()
    (run_copy / name).write_bytes(text[: len(text) // 3] + b"\n: [")
    intact, damaged, problem = assert_succeeded(tmt("runs")).splitlines()[1:]
    assert intact.split()[:2] == ["intact", "finished"]
    assert damaged.split()[:2] == ["tiny", "damaged"]
    assert "tiny" in problem and Path(name).name in problem


def test_runs_are_found_in_folders_and_behind_links_and_other_folders_are_skipped(run_copy: Path) -> None:
    runs = run_copy.parent
    (runs / "sweep").mkdir()
    shutil.copytree(run_copy, runs / "sweep" / "one")
    shutil.copytree(run_copy, runs / ".hidden")
    shutil.copytree(run_copy, run_copy / "plots" / "inside")
    (runs / "notes").mkdir()
    (runs / "notes" / "config.yaml").write_text("", encoding="utf-8")
    (runs / "linked").symlink_to(run_copy)
    (runs / "circle").symlink_to(runs)
    (runs / "broken").symlink_to(runs / "nothing")
    (runs / "self").symlink_to(runs / "self")
    assert [one.name for one in list_runs(runs)] == ["linked", "sweep/one", "tiny"]


def test_missing_folder_is_an_error_and_an_empty_one_is_not(tmp_path: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("runs", tmp_path / "none"), "none: no such folder")
    assert assert_succeeded(tmt("runs", tmp_path)) == f"{tmp_path}: has no runs\n"
    assert json.loads(assert_succeeded(tmt("runs", tmp_path, "--json")))["runs"] == []
