"""List the runs below a folder: status, progress, best score and size, read from small files only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.data.config import DataConfig
from transformer_mt.errors import UserError
from transformer_mt.pipeline.run_status import find_last_step, find_status, read_last_log_entry
from transformer_mt.runs.checkpoint_info import rank_checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.lock import is_locked
from transformer_mt.system.disk_space import measure_folder


@dataclass(frozen=True)
class RunSummary:
    """Status, progress and size of a run. Values that are missing or unreadable are None."""

    name: str  # path below the listed folder
    path: str
    status: str  # finished, stopped, running, failed, weights only or damaged
    problem: str | None  # why it failed, or what is damaged
    step: int | None
    max_steps: int | None
    metric: str | None
    score: float | None  # best one by `metric`
    hours: float | None
    parameters: int | None
    n_bytes: int
    directions: tuple[str, ...]
    changed: float  # seconds since the epoch


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders at and below a folder, by name. Hidden folders and those inside of a run are skipped."""
    pending = [folder]
    while pending:
        path = pending.pop()
        with suppress(OSError):  # not readable, or removed meanwhile
            if RunFolder(path).metadata.is_file():
                yield path
            elif path == folder or not path.is_symlink():  # a link is not searched: it may lead in a circle
                entries = sorted(os.scandir(path), key=lambda entry: entry.name, reverse=True)
                pending += [
                    Path(entry.path) for entry in entries if not entry.name.startswith(".") and _is_folder(entry)
                ]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def list_runs(folder: Path) -> list[RunSummary]:
    """Summarise all runs at and below a folder. A damaged run is listed as such.

    Raises:
        UserError: The folder does not exist.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder (looked in {Path.cwd()}); `tmt train` makes runs under runs/")
    summaries: list[RunSummary] = []
    for path in find_runs(folder):
        try:
            name = path if path == folder else path.relative_to(folder)
            summaries.append(summarise_run(RunFolder(path), str(name)))
        except FileNotFoundError:  # removed while it was read
            if path.exists():
                raise
    return summaries


def summarise_run(run: RunFolder, name: str) -> RunSummary:
    """Summarise a run."""
    problem, record, max_steps = None, {}, None
    directions: tuple[str, ...] = ()
    logged = read_last_log_entry(run)
    checkpoints = run.list_readable_checkpoints()
    try:
        record = run.read_metadata()
        config = configuration.load_run(run)
        max_steps, directions = config.train.max_steps, _list_directions(config.data)
        checkpoints = run.list_checkpoints()
    except (UserError, OSError) as error:
        problem = str(error)
    best = next(iter(rank_checkpoints(checkpoints)), None)
    step = find_last_step(record, logged, checkpoints)
    files = (run.path, run.metadata, run.metrics, run.checkpoints)
    return RunSummary(
        name=name,
        path=str(run.path),
        status="damaged" if problem else find_status(record, step, is_running=is_locked(run.path)),
        problem=problem or record.get("failed"),
        step=step,
        max_steps=max_steps,
        metric=best and best.metric,
        score=best and best.score,
        hours=max(filter(None, (record.get("hours"), logged.hours)), default=None),
        parameters=record.get("parameters"),
        n_bytes=measure_folder(run.path),
        directions=directions,
        changed=max(path.stat().st_mtime for path in files if path.exists()),
    )


def _list_directions(data: DataConfig) -> tuple[str, ...]:
    """Return the directions of the training pairs, such as `en-de`, each once."""
    pairs = (source.languages(data.src_lang, data.tgt_lang) for source in data.train_sources)
    return tuple(dict.fromkeys("-".join(pair) for pair in pairs))
