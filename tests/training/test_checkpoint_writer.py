"""Checkpoints are written in the background: one at a time, from a copy, and their errors reach the training loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Tmt, assert_succeeded, assert_user_error
from safetensors.torch import load_file, save_model

from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training.trainer import CheckpointWriter, Trainer

TRAIN = ("train", "--config", "tiny.yaml")


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_weights_are_those_that_safetensors_saves(
    make_model: Callable[..., Transformer], tie: str, tmp_path: Path
) -> None:
    model = make_model(tie_embeddings=tie, rough=0.3)
    save_model(model, str(tmp_path / "expected"))
    expected, found = load_file(tmp_path / "expected"), checkpoints.list_distinct_weights(model)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.fixture
def here(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in tiny.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_training_continues_during_a_write_and_changes_nothing_in_it(
    here: Path, tmt: Tmt, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write starts only after a later step was taken, or when the training waits for it."""
    write, wait, may_write = checkpoints.write, CheckpointWriter.wait, threading.Event()
    take_step, during = Trainer.take_step, list[int]()

    def write_late(*arguments: Any) -> None:
        may_write.wait()
        may_write.clear()
        write(*arguments)

    def record_step(self: Trainer) -> Any:
        milestone = take_step(self)
        if self.writer._pending is not None:  # pyright: ignore[reportPrivateUsage]
            during.append(milestone.step)
        return milestone

    def release(self: CheckpointWriter) -> None:
        may_write.set()
        wait(self)
        may_write.clear()

    monkeypatch.setattr(checkpoints, "write", write_late)
    monkeypatch.setattr(CheckpointWriter, "wait", release)
    monkeypatch.setattr(Trainer, "take_step", record_step)
    assert_succeeded(tmt(*TRAIN))
    assert during == [5, 6, 7, 8, 9, 10, 11, 12]
    ours, reference = RunFolder(here / "runs" / "tiny"), RunFolder(tiny_run)
    assert [*ours.list_checkpoint_folders()] == [*reference.list_checkpoint_folders()]
    for step in ours.list_checkpoint_folders():
        left, right = (load_file(run.locate_checkpoint(step) / "model.safetensors") for run in (ours, reference))
        assert all(torch.equal(left[name], right[name]) for name in right)


def test_failed_write_ends_the_training(here: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_manifest", refuse)
    assert_user_error(tmt(*TRAIN), "No space left on device")
    assert not RunFolder(here / "runs" / "tiny").list_checkpoint_folders()
