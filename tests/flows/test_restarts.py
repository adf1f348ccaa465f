"""Starting over, resuming and refusing to start: what happens to the run folder."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, read_curves

from transformer_mt.flows import configuration
from transformer_mt.flows.resolve import find_questionable_settings
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


# --- Warnings before the first step about settings that will have no effect -------------------------------------------

QUICKSTART = configuration.find_preset("quickstart")


def find_keys(*overrides: str, n_batches: int = 200, longest: int = 100) -> list[str]:
    config = configuration.load(QUICKSTART, overrides)
    n_steps = config.train.last_step(n_batches / config.batches.accumulate)
    return [key for key, _ in find_questionable_settings(config, n_batches, longest, n_steps)]


@pytest.mark.parametrize(
    "overrides",
    [
        ("schedule.kind=inverse_sqrt", "schedule.warmup_steps=6000"),
        ("schedule.kind=cosine", "schedule.total_steps=9000"),
        ("schedule.kind=linear", "schedule.decay_steps=50"),
        ("batches.tokens=99",),
        ("batches.accumulate=201", "train.log_every=1"),
        ("validation.every=26 epochs",),
        ("validation.patience=11",),
        ("model.dropout.attention=0.95",),
        ("loss.label_smoothing=0.99",),
        ("model.max_positions=99",),
    ],
)
def test_a_setting_without_effect_is_named(overrides: tuple[str, ...]) -> None:
    limits = ("train.max_steps=5000", "validation.every=500", "schedule.warmup_steps=10", "model.positions=sinusoidal")
    key = overrides[-1].partition("=")[0] if overrides[0] != "batches.accumulate=201" else "batches.accumulate"
    assert key not in find_keys(*limits)
    assert key in find_keys(*limits, *overrides)


def test_the_quickstart_and_a_training_without_end_have_no_such_setting() -> None:
    assert find_keys() == []
    assert find_keys("train.max_steps=null", "schedule.kind=inverse_sqrt") == []
