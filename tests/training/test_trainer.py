"""The loop: steps whose gradient is not finite, the way back, and what the log says of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from transformer_mt import Translator
from transformer_mt.data.bucketing import BucketedBatches
from transformer_mt.pipeline.validation import Validator
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training import trainer
from transformer_mt.training.train_step import Part, Taken, TrainStep

TRAIN = ("train", "--config", "tiny.yaml", "keep.last=9", "train.log_every=1")
Sick = Callable[[int, float], bool]  # whether a step, with its learning rate, ends badly


@pytest.fixture
def here(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("tiny.yaml", "train.en", "train.de", "valid.en", "valid.de", "test.en", "test.de"):
        shutil.copy(tiny / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer, "MOST_SKIPPED", 3)
    return tmp_path


@pytest.fixture
def infect(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sick], list[tuple[int, float]]]:
    """Poison the gradients of some steps; returns the list of all steps taken, with their learning rates."""

    def infect(sick: Sick) -> list[tuple[int, float]]:
        train_step, sum_up, taken = TrainStep.update, TrainStep.sum_up, list[tuple[int, float]]()

        def watch(self: TrainStep, step: int, learning_rate: float, batches: Any) -> Taken:
            assert self.model.training
            taken.append((step, learning_rate))
            return train_step(self, step, learning_rate, batches)

        def poison(self: TrainStep, batch: Any) -> Part:
            part = sum_up(self, batch)
            spoilt = [gradient * (torch.nan if sick(*taken[-1]) else 1) for gradient in part.gradients]
            return part._replace(gradients=spoilt)

        monkeypatch.setattr(TrainStep, "update", watch)
        monkeypatch.setattr(TrainStep, "sum_up", poison)
        return taken

    return infect


def entries() -> list[dict[str, Any]]:
    lines = Path("runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry for line in lines if "train/loss" in (entry := json.loads(line))]


def test_a_step_that_is_not_finite_is_skipped_and_its_lines_are_named(here, tmt, infect) -> None:
    infect(lambda step, _: step == 6)
    done = tmt(*TRAIN)
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "skipped" in line]
    assert told.startswith("step 6 skipped: the gradient of the loss is not finite (train.en:")
    assert [entry["train/skipped_steps"] for entry in entries()] == [0.0] * 5 + [1.0] * 7
    assert [entry["train/loss"] for entry in entries()][5] == "nan"


def test_each_step_has_its_learning_rate(here, tmt, infect) -> None:
    """The first step uses the rate of step 1; what is logged is what was used."""
    taken = infect(lambda *_: False)
    assert tmt(*TRAIN).returncode == 0
    assert [step for step, _ in taken] == list(range(1, 13))
    assert [rate for _, rate in taken] == [entry["train/learning_rate"] for entry in entries()]
    assert [rate / taken[0][1] for _, rate in taken[:5]] == pytest.approx([1, 2, 3, 4, 5])  # warmup_steps 5


def test_after_several_in_a_row_it_goes_back_with_half_the_learning_rate(here, tmt, infect) -> None:
    """Checkpoints stand at 4 and 8: trouble from step 6 on goes away with a smaller rate, and no curve is doubled."""
    taken = infect(lambda step, rate: step >= 6 and rate > 1.5e-3)
    done = tmt(*TRAIN, "schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3")
    assert done.returncode == 0, done.stderr
    assert "not finite for 3 steps in a row from step 6 on: back to step 4 with half the learning rate" in done.stderr
    assert taken == [(step, 2e-3) for step in range(1, 9)] + [(step, 1e-3) for step in range(5, 13)]
    assert [entry["step"] for entry in entries()] == list(range(1, 13))
    assert [entry["train/learning_rate"] for entry in entries()][3:5] == [2e-3, 1e-3]
    state = torch.load(
        RunFolder(here / "runs" / "tiny").find_checkpoint("last").path / "training.pt", weights_only=True
    )
    assert state["progress"]["returns"] == 1
    hours = [entry["train/hours"] for entry in entries()]
    assert sorted(hours) == hours  # those of the steps that were lost count, too


@pytest.mark.parametrize("log_every", [1, 12])
def test_a_bad_stretch_counts_also_where_it_ends_before_it_is_read(here, tmt, infect, log_every) -> None:
    """The figures of several steps are read at once: what follows does not depend on when."""
    taken = infect(lambda step, rate: 6 <= step <= 9 and rate > 1.5e-3)
    settings = ("schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3", "validation.every=5")
    done = tmt(*TRAIN, *settings, f"train.log_every={log_every}")
    assert done.returncode == 0, done.stderr
    assert "from step 6 on: back to step 5 with half the learning rate" in done.stderr
    assert taken[-7:] == [(step, 1e-3) for step in range(6, 13)]


@pytest.mark.parametrize("log_every", [1, 12])
def test_a_bad_end_is_no_end(here, tmt, infect, log_every) -> None:
    """Steps 10 to 12 fail, and 12 is the last: also where nobody reads their figures before."""
    taken = infect(lambda step, rate: step >= 10 and rate > 1.5e-3)
    settings = ("schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3")
    done = tmt(*TRAIN, *settings, f"train.log_every={log_every}")
    assert done.returncode == 0, done.stderr
    assert "from step 10 on: back to step 8 with half the learning rate" in done.stderr
    assert taken[-4:] == [(step, 1e-3) for step in range(9, 13)]


def test_what_a_run_may_go_back_to_stays(here, tmt, infect) -> None:
    """One checkpoint is kept, and the one of step 4, with the weights of step 3, is better."""
    infect(lambda step, rate: step >= 4 and rate > 1.5e-3)
    settings = ("schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3", "train.log_every=12")
    done = tmt(*TRAIN, *settings, "keep.last=1", "validation.every=2", "validation.metric=loss")
    assert done.returncode == 0, done.stderr
    assert "from step 4 on: back to step 2 with half the learning rate" in done.stderr
    run = RunFolder(here / "runs" / "tiny")
    assert len(run.checkpoint_folders()) <= 2


def test_what_a_run_is_about_to_go_back_to_stays(here, tmt, infect) -> None:
    """Steps 5 to 7 fail; all of it is read at step 8, which did not fail, and there one checkpoint is kept."""
    infect(lambda step, rate: 5 <= step <= 7 and rate > 1.5e-3)
    settings = ("schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3", "train.log_every=12")
    done = tmt(*TRAIN, *settings, "keep.last=1", "keep.best=1", "validation.every=4", "validation.metric=loss")
    assert done.returncode == 0, done.stderr
    assert "from step 5 on: back to step 4 with half the learning rate" in done.stderr


def test_a_run_does_not_go_back_to_where_it_was_stopped(here, tmt, infect, monkeypatch) -> None:
    """But to where it would have gone without the stop."""
    asked = iter([True])

    def stop_then_fail(step: int, rate: float) -> bool:
        if step == 5 and next(asked, False):
            os.kill(os.getpid(), signal.SIGTERM)
        return step >= 7 and rate > 1.5e-3

    infect(stop_then_fail)
    settings = (*TRAIN, "schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3")
    assert tmt(*settings).returncode == 143
    assert RunFolder(here / "runs" / "tiny").find_checkpoint("last").step == 5
    done = tmt(*settings, "validation.every=100")
    assert done.returncode == 0, done.stderr
    assert "from step 7 on: back to step 4 with half the learning rate" in done.stderr


def test_a_return_to_before_the_first_step_of_this_start(here, tmt, infect) -> None:
    """It went on after step 8, and goes back to 4: the time that is left is told without a division by zero."""
    settings = ("schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3", "train.max_steps=20")
    assert tmt(*TRAIN, *settings, "train.max_steps=8").returncode == 0
    run = RunFolder(here / "runs" / "tiny")
    (run.find_checkpoint("8").path / "training.pt").rename(run.find_checkpoint("8").path / "lost")
    infect(lambda step, rate: step >= 10 and rate > 1.5e-3)
    shutil.rmtree(run.find_checkpoint("8").path)
    done = tmt(*TRAIN, *settings, "validation.every=100")
    assert done.returncode == 0, done.stderr
    assert "back to step 4" in done.stderr


def test_a_first_score_that_is_no_number_is_not_the_best(here, tmt, monkeypatch) -> None:
    call, scores = Validator.__call__, iter([float("nan"), 5.0, 6.0])

    def first_nan(self: Validator) -> Any:
        found = call(self)
        return found._replace(scores={**found.scores, "loss": next(scores)})

    monkeypatch.setattr(Validator, "__call__", first_nan)
    done = tmt(*TRAIN)
    assert done.returncode == 0, done.stderr
    assert RunFolder(here / "runs" / "tiny").find_checkpoint("best").step == 8


def test_a_signal_during_the_last_validation_is_obeyed(here, tmt, monkeypatch) -> None:
    call, times = Validator.__call__, iter(range(3))

    def stop(self: Validator) -> Any:
        if next(times) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(self)

    monkeypatch.setattr(Validator, "__call__", stop)
    done = tmt(*TRAIN, "train.max_steps=11")
    assert done.returncode == 143
    assert "same command goes on" in done.stderr
    done = tmt(*TRAIN, "train.max_steps=11")
    assert (done.returncode, "unseen (6 pairs" in done.stderr) == (0, True)


def test_a_stop_changes_nothing_about_what_stays(here, tmt, infect, monkeypatch) -> None:
    """What is averaged afterwards is what it would have been."""

    asked = iter([True])

    def stop(step: int, _: float) -> bool:
        if step == 9 and next(asked, False):  # a second signal would end it at once
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    settings = (*TRAIN, "name=stopped", "keep.last=2", "validation.every=2")
    infect(stop)
    done = tmt(*settings, "--restart")
    assert (done.returncode, "leave them out to go on" in done.stderr) == (143, True)
    run = RunFolder(here / "runs" / "stopped")
    assert [info.step for info in run.list_checkpoints() if not info.stopped] == [6, 8]
    assert run.find_checkpoint("last").step == 9
    assert tmt("average", "runs/stopped", "--last", "2").returncode == 0
    assert RunFolder(here / "runs" / "stopped-average-last-2").read_metadata()["exported"]["steps"] == [6, 8]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert tmt(*settings).returncode == 0
    assert [*run.checkpoint_folders()][-2:] == [10, 12]
    assert 9 not in run.checkpoint_folders()


def test_after_two_returns_it_ends_with_a_diagnosis(here, tmt, infect) -> None:
    taken = infect(lambda step, _: step >= 6)
    done = tmt(*TRAIN, "schedule.kind=constant", "schedule.warmup_steps=1", "schedule.peak=2e-3")
    assert done.returncode == 2
    assert "step 8: the gradient was not finite for 3 steps in a row from step 6 on, after going back 2 times" in (
        done.stderr
    )
    assert "lower schedule.peak" in done.stderr
    assert [rate for step, rate in taken if step == 6] == [2e-3, 1e-3, 5e-4]


def test_before_the_first_checkpoint_there_is_no_way_back(here, tmt, infect) -> None:
    infect(lambda *_: True)
    done = tmt(*TRAIN)
    assert done.returncode == 2
    assert "before the first checkpoint" in done.stderr


def test_a_batch_that_is_split_is_counted_and_named(here, tmt, monkeypatch) -> None:
    from transformer_mt.training import train_step

    import_module("transformer_mt.pipeline.train")  # part of which tries batches, with the function as it is now
    loss_and_gradients, failed = train_step.loss_and_gradients, list[int]()

    def starve(model: Any, batch: Any, **settings: Any) -> Any:
        if len(failed) < 2 and len(batch.src) > 1:
            failed.append(len(batch.src))
            raise torch.OutOfMemoryError("none left")
        return loss_and_gradients(model, batch, **settings)

    monkeypatch.setattr(train_step, "loss_and_gradients", starve)
    done = tmt(*TRAIN)
    assert done.returncode == 0, done.stderr
    assert f"out of memory: a batch of {failed[0]} pairs is split (train.en:" in done.stderr
    assert failed[1] == (failed[0] + 1) // 2
    assert entries()[-1]["train/split_batches"] == 2


def test_pairs_are_sorted_once(here, tmt, monkeypatch) -> None:
    make, sizes = BucketedBatches.__init__, list[int]()

    def watch(self: BucketedBatches, src_lengths: Any, tgt_lengths: Any, tokens: int) -> None:
        sizes.append(len(src_lengths))
        make(self, src_lengths, tgt_lengths, tokens)

    monkeypatch.setattr(BucketedBatches, "__init__", watch)
    assert tmt(*TRAIN, "train.max_steps=1").returncode == 0
    assert sizes == [50, 8]  # those of training, and of validation


def test_a_pair_that_does_not_fit_alone_is_named(here, tmt, monkeypatch) -> None:
    def starve(*_: Any, **settings: Any) -> Any:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr("transformer_mt.training.train_step.differentiate", starve)
    done = tmt(*TRAIN)
    assert done.returncode == 2
    assert "this pair alone does not fit into memory; lower data.max_length" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_mean_of_the_weights_is_what_is_kept(here, tmt) -> None:
    """From one checkpoint to the next by the formula; the raw weights go on beside it."""
    settings = ("optimizer.ema_decay=0.5", "train.save_every=1", "keep.last=99")
    done = tmt(*TRAIN, *settings)
    assert done.returncode == 0, done.stderr
    kept = [
        (
            info.step,
            safetensors.torch.load_file(info.path / "model.safetensors"),
            torch.load(info.path / "training.pt", weights_only=True)["raw_weights"],
        )
        for info in RunFolder(here / "runs" / "tiny").list_checkpoints()
    ]
    assert [step for step, _, _ in kept] == list(range(1, 13))
    for (_, mean, _), (step, next_mean, raw) in pairwise(kept):
        decay = min(0.5, (1 + step) / (10 + step))
        names = next_mean.keys() & raw.keys()
        assert len(names) >= len(raw) - 1  # a shared matrix has one of its names in each file
        for name in names:
            torch.testing.assert_close(next_mean[name], decay * mean[name] + (1 - decay) * raw[name])


def test_the_mean_of_the_weights_is_what_is_scored(here, tmt) -> None:
    done = tmt(*TRAIN, "optimizer.ema_decay=0.9", "precision=fp32")
    assert done.returncode == 0, done.stderr
    sources, targets = (Path(f"valid.{lang}").read_text(encoding="utf-8").splitlines() for lang in ("en", "de"))
    run = RunFolder(here / "runs" / "tiny")
    for info in run.list_checkpoints():
        translator = Translator.load(run.path, str(info.step), precision="fp32")
        scores = [score for one in translator.score(sources, targets) for score in one.token_scores]
        assert info.scores["nll"] == pytest.approx(-sum(scores) / len(scores), rel=1e-4)


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


def test_settings_are_heeded(here, tmt) -> None:
    """Three steps with one of them come to other weights than three without."""

    def train(name: str, *settings: str) -> dict[str, torch.Tensor]:
        done = tmt(*TRAIN, "train.max_steps=3", f"name={name}", *settings)
        assert done.returncode == 0, done.stderr
        checkpoint = RunFolder(here / "runs" / name).find_checkpoint("last")
        return safetensors.torch.load_file(checkpoint.path / "model.safetensors")

    plain = train("plain")
    for number, setting in enumerate(SETTINGS):
        other = train(f"other{number}", setting)
        assert not all(torch.equal(weight, other[name]) for name, weight in plain.items()), setting


def test_a_step_that_is_skipped_does_not_move_the_mean(here, tmt, infect) -> None:
    infect(lambda step, _: step == 6)
    done = tmt(*TRAIN, "optimizer.ema_decay=0.5", "train.save_every=1", "keep.last=99")
    assert done.returncode == 0, done.stderr
    run = RunFolder(here / "runs" / "tiny")
    before, skipped, after = (
        safetensors.torch.load_file(run.find_checkpoint(step).path / "model.safetensors") for step in ("5", "6", "7")
    )
    assert all(torch.equal(mean, skipped[name]) for name, mean in before.items())
    assert not all(torch.equal(mean, after[name]) for name, mean in before.items())


def test_an_alarm_outlives_a_stop(here, tmt) -> None:
    """Every output is degenerate so early: what is said is the same whether the run was stopped or not."""
    often = "validation.every=1", "schedule.warmup_steps=1"  # until then, a model is new

    def alarms(*commands: tuple[str, ...]) -> list[str]:
        said = "".join(tmt(*TRAIN, *often, *command).stderr for command in commands)
        return [line for line in said.splitlines() if "degenerate output" in line]

    undisturbed = alarms(("name=undisturbed", "train.max_steps=7"))
    stopped = alarms(*(("name=stopped", f"train.max_steps={steps}") for steps in (2, 4, 7)))
    assert [line.partition(" ")[2][:15] for line in undisturbed] == ["1  degenerate o", "5  ALARM: degen"]
    assert stopped == undisturbed


@pytest.mark.parametrize("kind", ["none", "simcut", "rdrop"])
def test_what_consistency_adds_is_told(here, tmt, kind) -> None:
    done = tmt(*TRAIN, f"loss.consistency={kind}", "train.max_steps=3")
    assert done.returncode == 0, done.stderr
    for entry in entries():
        assert ("train/consistency" in entry) == (kind != "none")
        without = entry["train/loss"] - entry.get("train/consistency", 0)
        assert without < entry["train/loss"] or kind == "none"
        assert without == pytest.approx(entry["train/nll"], rel=0.05)  # label smoothing is left
