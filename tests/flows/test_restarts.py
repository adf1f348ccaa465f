"""Starting over, resuming and refusing to start: what happens to the run folder."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, read_curves

from transformer_mt.errors import UserError
from transformer_mt.flows.evaluation import Validator
from transformer_mt.runs.folder import RunFolder

TRAIN = ("train", "--config", "tiny.yaml")


def test_restart_does_not_move_a_run_that_is_being_trained(run_copy: Path, tmt: Tmt) -> None:
    with RunFolder(run_copy).locked():
        assert_user_error(tmt(*TRAIN, "--restart", "train.max_steps=1"), "another process is training this run")
    assert not list(run_copy.parent.glob("tiny.*"))


def test_curves_are_not_doubled_when_training_starts_again_without_a_checkpoint(run_copy: Path, tmt: Tmt) -> None:
    shutil.rmtree(run_copy / "checkpoints")
    assert_succeeded(tmt(*TRAIN))
    lines = (run_copy / "metrics.jsonl").read_text().splitlines()
    entries = Counter((json.loads(line)["step"], max(json.loads(line))) for line in lines)
    assert max(entries.values()) == 1
    assert list(read_curves(run_copy)["valid/loss"]) == [4, 8, 12]


def test_test_scores_are_measured_again_after_resuming_from_an_earlier_checkpoint(run_copy: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt(*TRAIN, "--checkpoint", "8"))
    assert "test/unseen/bleu" in (run_copy / "metrics.jsonl").read_text()


def test_two_runs_moved_aside_in_one_second_get_different_names(tmp_path: Path) -> None:
    for _ in range(2):
        run = RunFolder(tmp_path / "run")
        run.path.mkdir()
        (run.path / "x").touch()
        run.move_aside()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("in_tiny", "with_figures")
def test_a_figure_that_fails_does_not_cost_the_checkpoint(tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise UserError("no figure")

    monkeypatch.setattr(Validator, "draw", fail)
    assert_user_error(tmt(*TRAIN, "name=no-figure"), "no figure")
    assert RunFolder(Path("runs/no-figure")).find_checkpoint("last").step == 4
