"""Checkpoints: weights as safetensors, and the training state in a file that loads without pickle's powers.

A checkpoint is a folder that appears whole or not at all, and whose files are never read before their checksums are
found to be right.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import nn

from transformer_mt.errors import UserError
from transformer_mt.runs.folder import CHECKPOINT, CheckpointInfo, RunFolder, damaged, ranked
from transformer_mt.runs.manifest import CorruptFileError, verify_manifest, write_manifest
from transformer_mt.system import files
from transformer_mt.system.files import WhenFull, atomic_folder, delete_folder
from transformer_mt.system.logging import log_rank0
from transformer_mt.training.progress import KeepConfig

State = dict[str, Any]
"""A training state: tensors, numbers, text, and lists and dicts of them."""

WEIGHTS, STATE = "model.safetensors", "training.pt"


# --- writing ----------------------------------------------------------------------------------------------------------


def save(info: CheckpointInfo, model: nn.Module, state: State | None, when_full: WhenFull = "exit") -> None:
    """Write a checkpoint; one of the same step is replaced. Without a state, no training goes on from it.

    Raises `UserError` when the disk does not take it.
    """

    def write() -> None:
        with atomic_folder(info.path) as folder:
            safetensors.torch.save_model(model, str(folder / WEIGHTS))
            if state is not None:
                _save_state(state, folder / STATE)
            about = {"step": info.step, "metric": info.metric, "scores": info.scores, "stopped": info.stopped}
            write_manifest(folder / CHECKPOINT, about)
            (folder / WEIGHTS).chmod((folder / CHECKPOINT).stat().st_mode)  # the library lets nobody else read it

    weights = {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}  # tied ones are saved once
    n_bytes = _bytes([weights, state or {}]) + files.LITTLE // 16
    try:
        files.write_patiently(write, info.path.parents[1], n_bytes, when_full, f"the checkpoint {info.path.name}")
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{info.path}: the checkpoint cannot be written: {str(error).splitlines()[0]}\n"
            "earlier checkpoints are intact: mend it, and the same command goes on from the last one"
        ) from None


def _save_state(state: State, path: Path) -> None:
    """Raises what the system says, in whose place torch has an error of its own."""
    with path.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            raise error.__context__ or error from None


def prune(run: RunFolder, keep: KeepConfig) -> None:
    """Delete the checkpoints that are neither among the best nor among the newest.

    One that was written where the training was stopped stays beside them while it is the newest: so the others are in
    the end those of a training that was never stopped.
    """
    found = run.readable_checkpoints()
    due = [info for info in found if not info.stopped]
    kept = {info.step for info in (*found[-1:], *due[-keep.last :], *ranked(found)[: keep.best])}
    for info in found:
        if info.step not in kept:
            delete_folder(info.path)


# --- reading ----------------------------------------------------------------------------------------------------------


def verify(info: CheckpointInfo, *names: str) -> None:
    """Compare a checkpoint's files (all, or those named) with their checksums. Raises `UserError` for a damaged one."""
    try:
        verify_manifest(info.path / CHECKPOINT, *names)
    except CorruptFileError as damage:
        raise damaged(damage) from None


def load_weights(model: nn.Module, info: CheckpointInfo) -> None:
    """Give the model the weights of a checkpoint. Raises `UserError` for damaged files, or another model's."""
    verify(info, WEIGHTS)
    path = info.path / WEIGHTS
    try:
        safetensors.torch.load_model(model, str(path))
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{path}: cannot be read ({str(error).splitlines()[0]}); was {info.path.parents[1]}/config.yaml changed?"
        ) from None


def load_chosen(model: nn.Module, run: RunFolder, which: str) -> CheckpointInfo:
    """Give the model the weights of the checkpoint that `best`, `last` or a step's number names, and say which it is.

    A run that is being trained may delete it before it is read: then another is chosen. Raises `UserError` as
    `RunFolder.checkpoint` and `load_weights` do.
    """
    while True:
        info = run.checkpoint(which)
        try:
            load_weights(model, info)
        except UserError:
            if info.path.exists():
                raise
        else:
            return info


def load_state(info: CheckpointInfo) -> State:
    """The training state of a checkpoint, on the CPU. Raises `UserError` for damaged files."""
    verify(info, STATE)
    return torch.load(info.path / STATE, map_location="cpu", weights_only=True)


def last_whole(run: RunFolder, up_to: int) -> CheckpointInfo | None:
    """The last checkpoint up to a step whose every file is as it was written; not one that a stop has left, which a run
    that was not disturbed would not have."""
    for info in reversed(run.readable_checkpoints()):
        if info.step <= up_to and not info.stopped:
            with suppress(UserError):
                verify(info)
                return info
    return None


def find_start(run: RunFolder, which: str) -> CheckpointInfo | None:
    """The checkpoint to go on from; None where there is none yet.

    `last` passes over damaged ones: they are named and kept under another name. Raises `UserError` where none is whole,
    or where the one that was asked for is not.
    """
    if not run.checkpoint_folders():
        return None
    if which == "last":
        info, damages = _sort_out(run)
        for folder, damage in damages.items():
            _set_aside(folder, damage)
    else:
        info = run.checkpoint(which)
        verify(info)
    return info


def delete_later(run: RunFolder, step: int) -> None:
    """Make the checkpoint of a step the run's last one."""
    for its_step, folder in run.checkpoint_folders().items():
        if its_step > step:
            delete_folder(folder)


def _sort_out(run: RunFolder) -> tuple[CheckpointInfo, dict[Path, CorruptFileError]]:
    """The newest whole checkpoint, and what is wrong with others: those after it, and those whose score is no longer
    known. Raises `UserError` where none is whole."""
    newest, damages = None, dict[Path, CorruptFileError]()
    for folder in reversed(run.checkpoint_folders().values()):
        try:
            info = CheckpointInfo.read(folder)
            if newest is None:
                verify_manifest(folder / CHECKPOINT)
                newest = info
        except CorruptFileError as damage:
            damages[folder] = damage
    if newest is None:
        raise UserError(
            "\n".join(map(str, damages.values()))
            + f"\n{run.path}: no checkpoint is whole; restore one, or begin anew with --restart"
        )
    return newest, damages


def _set_aside(folder: Path, damage: CorruptFileError) -> None:
    aside, n = folder.with_name(f"{folder.name}.damaged"), 1
    while aside.exists():
        n += 1
        aside = folder.with_name(f"{folder.name}.damaged-{n}")
    folder.rename(aside)
    log_rank0(f"{damage}: this checkpoint is damaged and is passed over; it is kept as {aside.name}")


# --- room -------------------------------------------------------------------------------------------------------------


def warning_of_room(run: RunFolder, keep: KeepConfig, model: nn.Module, copies: int) -> str | None:
    """A line where the disk will not hold the checkpoints that the run keeps, with the one being written.

    `copies`: as in `OptimizerConfig`.
    """
    each = (1 + copies) * _bytes(list(model.parameters()))
    there = sum(file.stat().st_size for folder in run.checkpoint_folders().values() for file in folder.iterdir())
    needed, free = (keep.best + keep.last + 1) * each - there, files.free(run.path)
    if needed <= free:
        return None
    return (
        f"warning: {run.path}: {files.size(free)} are free on this disk, and the checkpoints need up to "
        f"{files.size(needed)} more ({keep.best} best, {keep.last} last, one being written, {files.size(each)} each)"
    )


def _bytes(values: object) -> int:
    """Bytes of all tensors in lists and dicts of them."""
    if isinstance(values, torch.Tensor):
        return values.nbytes
    if isinstance(values, dict):
        values = list(cast("dict[object, object]", values).values())
    return sum(map(_bytes, cast("list[object]", values))) if isinstance(values, list) else 0
