"""The training loop: skipped steps, divergence, stop signals, splitting, averaging and the log."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from math import exp, nan
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from pydantic import TypeAdapter, ValidationError

from transformer_mt.data.batches import StreamPosition
from transformer_mt.flows.evaluation import Validator
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training import trainer
from transformer_mt.training.train_step import BatchLoss, LossScale, StepMetrics, TrainStep
from transformer_mt.training.trainer import LogWindow, Progress, StepDone
from transformer_mt.training.training_config import Interval, TrainConfig, ValidationConfig

TRAIN = ("train", "--config", "tiny.yaml", "keep.last=9", "train.log_every=1")
IsPoisoned = Callable[[int, float], bool]
"""Tells whether the gradients of a step become NaN, given the step and its learning rate."""
CONSTANT = ("schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3")


@pytest.fixture
def here(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("tiny.yaml", "train.en", "train.de", "valid.en", "valid.de", "test.en", "test.de"):
        shutil.copy(tiny / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer, "MAX_SKIPPED", 3)
    return tmp_path


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[IsPoisoned], list[tuple[int, float]]]:
    """`poison(is_poisoned)`: make gradients NaN. Returns a growing list of all steps with their learning rates."""

    def poison(is_poisoned: IsPoisoned) -> list[tuple[int, float]]:
        call, forward, steps = TrainStep.__call__, BatchLoss.forward, list[tuple[int, float]]()

        def record(self: TrainStep, step: int, learning_rate: float, batches: Any) -> StepMetrics:
            assert self.model.training
            steps.append((step, learning_rate))
            return call(self, step, learning_rate, batches)

        def spoil(self: BatchLoss, batch: Any) -> dict[str, torch.Tensor]:
            losses = forward(self, batch)
            if steps and is_poisoned(*steps[-1]):
                losses["loss"].register_hook(lambda gradient: gradient * torch.nan)
            return losses

        monkeypatch.setattr(TrainStep, "__call__", record)
        monkeypatch.setattr(BatchLoss, "forward", spoil)
        return steps

    return poison


def entries() -> list[dict[str, Any]]:
    lines = Path("runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry for line in lines if "train/loss" in (entry := json.loads(line))]


def test_step_with_nan_gradients_is_skipped_and_its_lines_are_logged(here, tmt, poison) -> None:
    poison(lambda step, _: step == 6)
    done = tmt(*TRAIN)
    assert done.returncode == 0, done.stderr
    (message,) = [line for line in done.stderr.splitlines() if "skipped" in line]
    assert message.startswith("step 6 skipped: the gradient of the loss is not finite (train.en:")
    assert [entry["train/skipped_steps"] for entry in entries()] == [0.0] * 5 + [1.0] * 7
    assert [entry["train/loss"] for entry in entries()][5] == "nan"


def test_each_step_uses_and_logs_its_learning_rate(here, tmt, poison) -> None:
    taken = poison(lambda *_: False)
    assert tmt(*TRAIN).returncode == 0
    assert [step for step, _ in taken] == list(range(1, 13))
    assert [rate for _, rate in taken] == [entry["train/learning_rate"] for entry in entries()]
    assert [rate / taken[0][1] for _, rate in taken[:5]] == pytest.approx([1, 2, 3, 4, 5])  # warmup_steps 5


def test_degenerate_translations_are_reported_once_and_after_the_warm_up(here, tmt) -> None:
    done = tmt(*TRAIN, "validation.every=3", "schedule.warmup_steps=5")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "degenerate output" in line]
    assert line.startswith("step 6  warning")


@pytest.mark.parametrize("log_every", [1, 12])
def test_divergence_ends_the_run_with_the_command_that_resumes_before_it(here, tmt, poison, log_every) -> None:
    """Checkpoints are at steps 4 and 8, and the gradients are NaN from step 6 on. Metrics are read at step 8."""
    is_poisoned = [True]
    taken = poison(lambda step, _: step >= 6 and is_poisoned[0])
    done = tmt(*TRAIN, *CONSTANT, f"train.log_every={log_every}")
    assert done.returncode == 2
    assert "not finite for 3 steps in a row from step 6 on (learning rate 0.002)" in done.stderr
    assert "lower schedule.peak" in done.stderr
    command = "tmt train --config runs/tiny/config.yaml --checkpoint 4"
    assert command in done.stderr
    assert taken[-1] == (8, 2e-3)
    is_poisoned[0] = False
    run = RunFolder(here / "runs" / "tiny")
    assert "the gradient was not finite for 3 steps in a row" in run.read_record().failed
    done = tmt(*command.split()[1:])
    assert (done.returncode, "resuming after step 4" in done.stderr) == (0, True), done.stderr
    assert not run.read_record().failed and "failed" not in run.readme.read_text(encoding="utf-8")


def test_divergence_in_the_last_steps_is_noticed(here, tmt, poison) -> None:
    poison(lambda step, _: step >= 10)
    done = tmt(*TRAIN, *CONSTANT, "train.log_every=12")
    assert done.returncode == 2
    assert "from step 10 on" in done.stderr


def test_overflows_that_lower_the_loss_scale_do_not_end_the_run(here, tmt, poison) -> None:
    """More steps in a row overflow than may be skipped, until the scale is small enough."""
    poison(lambda step, _: step <= 4)
    done = tmt(*TRAIN, "precision=fp16")
    assert done.returncode == 0, done.stderr
    assert "skipped" not in done.stderr
    found = entries()
    assert [entry["train/skipped_steps"] for entry in found] == [1.0, 2.0, 3.0] + 9 * [4.0]
    assert [entry["train/loss_scale"] for entry in found] == [LossScale.INITIAL / 2 ** min(i, 4) for i in range(12)]


def test_overflow_at_the_minimum_of_the_loss_scale_is_divergence(here, tmt, poison, monkeypatch) -> None:
    monkeypatch.setattr(LossScale, "MINIMUM", LossScale.INITIAL / 4)
    poison(lambda step, _: step >= 5)
    done = tmt(*TRAIN, *CONSTANT, "precision=fp16")
    assert done.returncode == 2
    assert "not finite for 3 steps in a row from step 7 on" in done.stderr
    assert "precision: fp32" in done.stderr and "--checkpoint 4" in done.stderr


def test_checkpoints_are_kept_while_steps_are_skipped(here, tmt, poison) -> None:
    """keep.last is 1, and the checkpoint of step 4 is better than that of step 2, before the skipped steps."""
    poison(lambda step, _: step >= 4)
    settings = (*CONSTANT, "keep.last=1", "keep.best=1", "validation.every=2", "validation.metric=loss")
    done = tmt(*TRAIN, *settings)
    assert done.returncode == 2
    assert "--checkpoint 2" in done.stderr


def test_the_checkpoint_of_a_stop_is_not_recommended(here, tmt, poison) -> None:
    signals = iter([True])

    def stop_then_fail(step: int, _: float) -> bool:
        if step == 5 and next(signals, False):
            os.kill(os.getpid(), signal.SIGTERM)
        return step >= 7

    poison(stop_then_fail)
    settings = (*TRAIN, *CONSTANT)
    assert tmt(*settings).returncode == 143
    assert RunFolder(here / "runs" / "tiny").find_checkpoint("last").step == 5
    done = tmt(*settings, "validation.every=100")
    assert (done.returncode, "--checkpoint 4" in done.stderr) == (2, True), done.stderr


def test_signal_during_the_last_validation_stops_the_run(here, tmt, monkeypatch) -> None:
    call, times = Validator.__call__, iter(range(3))

    def stop(self: Validator) -> Any:
        if next(times) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(self)

    monkeypatch.setattr(Validator, "__call__", stop)
    done = tmt(*TRAIN, "train.max_steps=11")
    assert done.returncode == 143
    assert "same command resumes" in done.stderr
    done = tmt(*TRAIN, "train.max_steps=11")
    assert (done.returncode, "unseen (6 pairs" in done.stderr) == (0, True)


def test_divergence_before_the_first_checkpoint_ends_the_run_and_its_readme_says_so(here, tmt, poison) -> None:
    poison(lambda *_: True)
    done = tmt(*TRAIN)
    assert done.returncode == 2
    assert "start again with --restart" in done.stderr and "--checkpoint" not in done.stderr
    readme = RunFolder(here / "runs" / "tiny").readme.read_text(encoding="utf-8")
    assert re.search(r"^- Status: failed.*: .*the gradient was not finite.*start again with --restart$", readme, re.M)


def test_split_batch_is_counted_and_logged(here, tmt, monkeypatch) -> None:
    forward, failed = BatchLoss.forward, list[int]()

    def starve(self: BatchLoss, batch: Any) -> dict[str, torch.Tensor]:
        if torch.is_grad_enabled() and len(failed) < 2 and len(batch.src) > 1:
            failed.append(len(batch.src))
            raise torch.OutOfMemoryError("none left")
        return forward(self, batch)

    monkeypatch.setattr("transformer_mt.flows.resolve.log_predicted_memory", lambda *_: None)
    monkeypatch.setattr(BatchLoss, "forward", starve)
    done = tmt(*TRAIN)
    assert done.returncode == 0, done.stderr
    assert f"out of memory: a batch of {failed[0]} pairs is split (train.en:" in done.stderr
    assert failed[1] == (failed[0] + 1) // 2
    assert entries()[-1]["train/split_batches"] == 2


def test_pair_that_does_not_fit_alone_is_named(here, tmt, monkeypatch) -> None:
    def starve(*_: Any) -> Any:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(BatchLoss, "forward", starve)
    done = tmt(*TRAIN)
    assert done.returncode == 2
    assert "this pair alone does not fit into memory; lower data.max_length" in done.stderr
    assert "Traceback" not in done.stderr


SETTINGS = (
    "seed=2",
    "tokenizer.sampling=0.5",
    "batches.accumulate=2",
    "batches.tokens=128",
    "model.dropout.residual=0.5",
    "loss.label_smoothing=0.3",
    "optimizer.clip_norm=1e-12",
    "optimizer.betas=[0.5, 0.5]",
    "schedule.peak=1e-5",
)


@pytest.mark.slow
def test_each_setting_changes_the_weights(here, tmt) -> None:
    def train(name: str, *settings: str) -> dict[str, torch.Tensor]:
        done = tmt(*TRAIN, "train.max_steps=3", f"name={name}", *settings)
        assert done.returncode == 0, done.stderr
        checkpoint = RunFolder(here / "runs" / name).find_checkpoint("last")
        return safetensors.torch.load_file(checkpoint.path / "model.safetensors")

    plain = train("plain")
    for number, setting in enumerate(SETTINGS):
        other = train(f"other{number}", setting)
        assert not all(torch.equal(weight, other[name]) for name, weight in plain.items()), setting


# --- How often something happens, and when it is due ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("500", "500 steps"),
        ("1", "1 step"),
        ("2 step", "2 steps"),
        ("1_000 steps", "1000 steps"),
        (" 1 epoch ", "1 epoch"),
    ],
)
def test_interval_is_normalised(written: object, read: str) -> None:
    adapter = TypeAdapter[str](Interval)
    assert adapter.validate_python(written) == read
    assert adapter.validate_python(read) == read


@pytest.mark.parametrize("written", ["0", "1.5", "1 hour", "1 epoch 2", "5_", "1__0 steps", None])
def test_invalid_interval_is_refused(written: object) -> None:
    with pytest.raises(ValidationError, match="neither a number of steps"):
        TypeAdapter[str](Interval).validate_python(written)


@pytest.mark.parametrize(
    ("interval", "step", "before", "now", "due"),
    [
        (None, 10, 0, 1, False),
        ("1 step", 7, 0, 0, True),
        ("5 steps", 11, 0, 1, False),
        ("1000 steps", 1000, 0, 0, True),
        ("1 epoch", 10, 0, 1, True),
        ("2 epochs", 10, 0, 1, False),
        ("2 epochs", 10, 1, 4, True),  # a step that is longer than an epoch
        ("3 epochs", 10, 3, 5, False),
    ],
)
def test_milestone_ends_an_interval(interval: str | None, step: int, before: int, now: int, due: bool) -> None:
    assert StepDone(step, epochs_before=before, epochs=now).is_due(interval) is due


# --- the best score, and the end --------------------------------------------------------------------------------------


def test_logged_means_are_per_target_token_or_padded_token() -> None:
    window = LogWindow(grad_norm=0.5, seconds=8.0, seconds_waiting=2.0)
    window.add(
        {"loss": 30.0, "nll": 20.0, "n_tgt": 10.0, "n_src": 12.0, "n_padded": 30.0, "nll/a": 6.0, "n_tgt/a": 2.0}
    )
    window.add({"loss": 10.0, "nll": 20.0, "n_tgt": 10.0, "n_src": 8.0, "n_padded": 20.0, "nll/a": 6.0, "n_tgt/a": 2.0})
    assert window.scalars() == pytest.approx(
        {
            "train/loss": 2.0,
            "train/nll": 2.0,
            "train/ppl": exp(2.0),
            "train/gradient_norm": 0.5,
            "train/data_wait": 0.25,
            "train/padding": 0.2,
            "train/nll/a": 3.0,
            "train/share/a": 0.2,
        }
    )


@pytest.mark.parametrize(
    ("metric", "scores", "best_step", "without_improvement"),
    [
        ("bleu", [nan, 5.0, 4.0, 4.0], 2, 2),
        ("bleu", [5.0, 5.0, 6.0, nan], 3, 1),
        ("loss", [nan, 5.0, 6.0, 4.0, 4.0], 4, 1),
        ("loss", [nan, nan], 1, 1),
    ],
)
def test_best_score_and_validations_since_are_recorded(
    metric: str, scores: list[float], best_step: int, without_improvement: int
) -> None:
    progress = Progress()
    for progress.step, score in enumerate(scores, start=1):
        progress.record_score(metric, score)
    assert (progress.best_step, progress.without_improvement) == (best_step, without_improvement)
    assert progress.last_validated == len(scores)
    assert repr(progress.best_score) == repr(scores[best_step - 1])


def test_warm_up_does_not_use_up_patience() -> None:
    progress = Progress()
    for progress.step, (score, rises) in enumerate([(0.0, True), (0.0, True), (0.0, True), (0.0, False)], start=1):
        assert progress.without_improvement == 0
        progress.record_score("bleu", score, is_warming_up=rises)
    assert (progress.best_step, progress.without_improvement) == (1, 1)


@pytest.mark.parametrize(
    ("limits", "patience", "reason"),
    [
        ({"max_steps": 7}, None, "train.max_steps 7 reached"),
        ({"max_steps": 8}, None, None),
        ({"max_steps": None, "max_epochs": 3}, None, "train.max_epochs 3 reached"),
        ({"max_steps": None, "max_epochs": 4}, None, None),
        ({"max_steps": 8}, 2, "no better bleu in 2 validations"),
        ({"max_steps": 8}, 3, None),
    ],
)
def test_stop_reason_names_the_limit(limits: dict[str, int | None], patience: int | None, reason: str | None) -> None:
    progress = Progress(step=7, position=StreamPosition(epoch=3), without_improvement=2)
    config, validation = TrainConfig.model_validate(limits), ValidationConfig(patience=patience)
    assert progress.stop_reason(config, validation) == reason
