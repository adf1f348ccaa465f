"""Checkpoints: weights as safetensors, and the training state in a file that loads without pickle's powers.

A checkpoint is a folder that appears whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
import torch
from pydantic import Field
from torch import nn

from transformer_mt.errors import UserError
from transformer_mt.runs import CheckpointInfo, RunFolder, ranked, replaced_folder
from transformer_mt.settings import MAY_CHANGE, Section

State = dict[str, Any]
"""A training state: tensors, numbers, text, and lists and dicts of them."""


class KeepConfig(Section):
    """Which checkpoints stay."""

    best: Annotated[int, MAY_CHANGE] = Field(default=1, ge=1)
    """how many of the best, by validation.metric"""
    last: Annotated[int, MAY_CHANGE] = Field(default=1, ge=1)
    """how many of the newest"""


def save(info: CheckpointInfo, model: nn.Module, state: State) -> None:
    """Write a checkpoint; one of the same step is replaced. Raises `UserError` when the disk does not take it."""
    about = {"step": info.step, "metric": info.metric, "scores": info.scores}
    try:
        with replaced_folder(info.path) as folder:
            safetensors.torch.save_model(model, str(folder / "model.safetensors"))
            (folder / "model.safetensors").chmod(0o644)  # the library lets nobody else read it
            torch.save(state, folder / "training.pt")
            (folder / "checkpoint.json").write_text(json.dumps(about), encoding="utf-8")
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{info.path}: the checkpoint cannot be written: {str(error).splitlines()[0]}\n"
            "earlier checkpoints are intact: make room, and the same command goes on from the last one"
        ) from None


def load_weights(model: nn.Module, info: CheckpointInfo) -> None:
    """Give the model the weights of a checkpoint. Raises `UserError` for damaged files."""
    path = info.path / "model.safetensors"
    try:
        safetensors.torch.load_model(model, str(path))
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]}); {_other(info)}") from None


def load_state(info: CheckpointInfo) -> State:
    """The training state of a checkpoint, on the CPU. Raises `UserError` for damaged files."""
    path = info.path / "training.pt"
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged archive
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]}); {_other(info)}") from None


def prune(run: RunFolder, keep: KeepConfig) -> None:
    """Delete the checkpoints that are neither among the best nor among the newest."""
    found = run.checkpoint_list()
    kept = {info.step for info in (*found[-keep.last :], *ranked(found)[: keep.best])}
    for info in found:
        if info.step not in kept:
            _delete(info.path)


def rewind(run: RunFolder, info: CheckpointInfo) -> bool:
    """Delete the checkpoints after one, so that it is the last. Returns whether there were any."""
    later = [other for other in run.checkpoint_list() if other.step > info.step]
    for other in later:
        _delete(other.path)
    return bool(later)


def _delete(folder: Path) -> None:
    """In one stroke for whoever looks: the folder loses its name before its files."""
    doomed = folder.with_name(f".{folder.name}.old.tmp")
    folder.rename(doomed)
    shutil.rmtree(doomed)


def _other(info: CheckpointInfo) -> str:
    return f"use another with --checkpoint, or delete {info.path} to fall back on the one before"
