"""Checkpoints: weights as safetensors, and the training state in a file that loads with `weights_only=True`.

A checkpoint is a folder that is written atomically. The checksum of each file is verified before the file is loaded.
"""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn

from transformer_mt.errors import UserError
from transformer_mt.runs.folder import KeepConfig, RunFolder
from transformer_mt.runs.records import (
    CHECKPOINT,
    WEIGHTS,
    CheckpointInfo,
    CorruptFileError,
    damaged_checkpoint_error,
    rank_checkpoints,
    verify_manifest,
    write_manifest,
)
from transformer_mt.system import files
from transformer_mt.system.log import cut_list, log_rank0

State = dict[str, Any]
"""A training state: tensors, numbers and strings, and lists and dicts of them."""

STATE = "training.pt"


# --- writing ----------------------------------------------------------------------------------------------------------


def list_distinct_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model by name. A tied weight has the first of its names."""
    return _drop_aliases(model.state_dict(keep_vars=True))  # the same parameter under each of its names


def _drop_aliases(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = {id(weights[name]): name for name in sorted(weights, reverse=True)}
    return {name: weights[name].detach() for name in names.values()}


def find_weight_mismatches(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a line for each tensor that exists on one side only, or has another shape.

    Tensors that the model ties must be tied in `weights`; others may be.
    """
    needed = list_distinct_weights(model)
    for name in {**needed, **_drop_aliases(weights)}:
        shapes = [[*each[name].shape] if name in each else "none" for each in (needed, weights)]
        if shapes[0] != shapes[1]:
            yield f"{name}: the model has {shapes[0]}, the weights have {shapes[1]}"


def save(info: CheckpointInfo, model: nn.Module | Mapping[str, Tensor], state: State | None) -> None:
    """Write a checkpoint of a model, or of its `list_distinct_weights`, atomically. It replaces one of the same step.

    Without a state, training cannot be resumed from it. Raises `UserError` if it cannot be written.
    """
    weights = list_distinct_weights(model) if isinstance(model, nn.Module) else model
    try:
        info.path.parent.mkdir(exist_ok=True)  # fails if the run was moved, instead of making its folder again
        with files.atomic_folder(info.path) as folder:
            contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
            safetensors.torch.save_file(contiguous, str(folder / WEIGHTS))
            if state is not None:
                _save_state(state, folder / STATE)
            description = {key: value for key, value in asdict(info).items() if key not in ("path", "files")}
            write_manifest(folder / CHECKPOINT, description)
            (folder / WEIGHTS).chmod((folder / CHECKPOINT).stat().st_mode)  # safetensors ignores the umask
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        if not info.path.parents[1].exists():  # the run was moved
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(info.path)) from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        is_too_large = os.strerror(errno.EFBIG) in str(error)
        remedy = files.WRITE_ERROR_REMEDIES[errno.EFBIG] if is_too_large else "make room on the disk, or repair it,"
        advice = f"{remedy} and run the same command again"
        if any(info.path.parent.glob("step-*")):
            advice = f"earlier checkpoints are intact: {advice} to resume"
        raise UserError(f"{info.path}: the checkpoint cannot be written: {reason}\n{advice}") from None


def _save_state(state: State, path: Path) -> None:
    """Save a state. If the disk fails, raise its `OSError`, which `torch.save` hides in a `RuntimeError`."""
    with path.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            raise error.__context__ or error from None


def prune(run: RunFolder, keep: KeepConfig) -> None:
    """Delete the checkpoints that are neither among the best nor among the newest.

    A checkpoint written at a stop signal is kept only while it is the newest, and does not count as one of
    `keep.last`. Thus a stopped and resumed run ends with the same checkpoints as an uninterrupted run.
    """
    found = run.list_readable_checkpoints()
    regular = [info for info in found if not info.stopped]
    kept = {info.step for info in (*found[-1:], *regular[-keep.last :], *rank_checkpoints(found)[: keep.best])}
    for info in found:
        if info.step not in kept:
            files.delete_folder(info.path)


def delete_later_checkpoints(run: RunFolder, step: int) -> None:
    """Delete the checkpoints after `step`."""
    for saved_step, folder in run.list_checkpoint_folders().items():
        if saved_step > step:
            files.delete_folder(folder)


# --- reading ----------------------------------------------------------------------------------------------------------


def verify(info: CheckpointInfo, *names: str) -> None:
    """Compare a checkpoint's files (all, or the named ones) with their checksums. Raises `UserError` for damage."""
    try:
        verify_manifest(info.path / CHECKPOINT, *names)
    except CorruptFileError as damage:
        raise damaged_checkpoint_error(damage) from None


def load_weights(model: nn.Module, info: CheckpointInfo) -> None:
    """Load a checkpoint's weights into the model. Raises `UserError` for damage, or for weights of another model."""
    verify(info, WEIGHTS)
    path = info.path / WEIGHTS
    try:
        safetensors.torch.load_model(model, str(path))
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{path}: cannot be read ({str(error).splitlines()[0]}); was {info.path.parents[1]}/config.yaml changed?"
        ) from None


def load_weights_of(model: nn.Module, run: RunFolder, which: str) -> CheckpointInfo:
    """Load the weights of the checkpoint `which` (`best`, `last` or a step) into the model, and return its description.

    A training may delete that checkpoint in the meantime; then it is looked up again. Raises `UserError` like
    `RunFolder.find_checkpoint` and `load_weights`.
    """
    while True:
        info = run.find_checkpoint(which)
        try:
            load_weights(model, info)
        except UserError:
            if info.path.exists():
                raise
        else:
            return info


def load_state(info: CheckpointInfo) -> State:
    """Return the training state of a checkpoint, on the CPU. Raises `UserError` for a file that holds anything else."""
    verify(info, STATE)
    path = info.path / STATE
    try:
        with zipfile.ZipFile(path) as archive:  # a compressed or overlapping entry could need any amount of memory
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise ValueError("its entries are larger than the file")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(f"it holds {type(state).__name__}")
    except Exception as error:  # a crafted file can cause any exception
        raise unreadable_state_error(info, str(error).partition("\n")[0]) from None
    return cast(State, state)


def unreadable_state_error(info: CheckpointInfo, reason: str) -> UserError:
    """Return the error for a training state that this version did not write."""
    run = info.path.parents[1]
    return UserError(
        f"{info.path / STATE}: the training state cannot be read ({reason}); maybe another version of this program "
        f"wrote it:\nuse the version that {run}/run.json names, or start a new run: from its weights "
        f"(name=new train.init_from={run}), or from scratch (--restart)"
    )


def find_last_intact_checkpoint(run: RunFolder, up_to: int) -> CheckpointInfo | None:
    """Return the last intact checkpoint up to a step, or None.

    Checkpoints written at a stop signal are skipped, because an uninterrupted run would not have them.
    """
    for info in reversed(run.list_readable_checkpoints()):
        if info.step <= up_to and not info.stopped:
            with suppress(UserError):
                verify(info)
                return info
    return None


def find_resume_checkpoint(run: RunFolder, which: str) -> CheckpointInfo | None:
    """Return the checkpoint to resume from, or None if the run has none yet.

    `last` skips damaged checkpoints: they are logged and renamed. Raises `UserError` if none is intact, or if another
    `which` is damaged.
    """
    if not run.list_checkpoint_folders():
        return None
    if which == "last":
        info, damages = _find_newest_intact(run)
        for folder, damage in damages.items():
            _set_aside(folder, damage)
    else:
        info = run.find_checkpoint(which)
        verify(info)
    return info


def _find_newest_intact(run: RunFolder) -> tuple[CheckpointInfo, dict[Path, CorruptFileError]]:
    """Return the newest intact checkpoint, and the damage of those to set aside.

    The latter are all newer checkpoints, and older ones whose description, and so score, is unreadable.
    """
    newest, damages = None, dict[Path, CorruptFileError]()
    for folder in reversed(run.list_checkpoint_folders().values()):
        try:
            info = CheckpointInfo.read(folder)
            if newest is None:
                verify_manifest(folder / CHECKPOINT)
                newest = info
        except CorruptFileError as damage:
            damages[folder] = damage
    if newest is None:
        raise UserError(
            "\n".join(cut_list([*map(str, damages.values())]))
            + f"\n{run.path}: no checkpoint is intact; restore one from a backup, or start again with --restart"
        )
    return newest, damages


def _set_aside(folder: Path, damage: CorruptFileError) -> None:
    aside, n = folder.with_name(f"{folder.name}.damaged"), 1
    while aside.exists():
        n += 1
        aside = folder.with_name(f"{folder.name}.damaged-{n}")
    folder.rename(aside)
    log_rank0(f"{damage}: this checkpoint is damaged and is skipped; it is kept as {aside.name}")
