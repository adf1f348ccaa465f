"""Job arrays of Slurm for `tmt prepare`, with datatrove, which pickles the tasks and splits long arrays.

The flow calls a runner for each stage in turn (see data/stages.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from datatrove.executor import SlurmPipelineExecutor
from loguru import logger

from transformer_mt.data.stages import Stage, StageRunner, run_in_worker
from transformer_mt.errors import UserError
from transformer_mt.system.files import write_text
from transformer_mt.system.log import ProgressReport, log_rank0

MAX_POLL_SECONDS = 15.0
VISIBILITY_TIMEOUT = 60.0
"""Seconds to wait for the files of another machine, because a network file system caches that a file does not exist."""


class JobStep:
    """Pipeline step that runs the tasks of a job, in the working directory of the command that submitted it."""

    def __init__(self, stage: Stage, tasks: Sequence[int], errors: Path) -> None:
        """Store the stage and its tasks. The messages of failed tasks are written to the folder `errors`."""
        self._stage, self._tasks, self._errors, self._folder = stage, tasks, errors, Path.cwd()

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        """Run the tasks `rank`, `rank + world_size`, `rank + 2 * world_size`, ... of the list."""
        for task in self._tasks[rank::world_size]:
            try:
                run_in_worker(self._stage, task, self._folder)
            except UserError as error:
                write_text(self._errors / f"{task:05d}.error", str(error))
                raise

    def __repr__(self) -> str:
        return f"stage {self._stage.name}"


class JobArray(SlurmPipelineExecutor):
    """A job array without the statistics of documents, for which datatrove would submit another job."""

    def launch_merge_stats(self) -> None:
        """Submit nothing."""

    def save_executor_as_json(self, indent: int = 4) -> None:
        """Write nothing."""

    def get_sbatch_args(self, max_array: int = 1) -> dict[str, Any]:
        """Return the options of the script. An option with the value None keeps the default of the cluster."""
        options: dict[str, Any] = super().get_sbatch_args(max_array)  # pyright: ignore[reportUnknownVariableType]
        return {name: value for name, value in options.items() if value is not None}


def _submit(stage: Stage, tasks: Sequence[int], n_jobs: int, folder: Path, options: Mapping[str, str]) -> None:
    """Submit `n_jobs` jobs that share the tasks. Script, logs and errors are in `folder`, which also names the jobs.

    Raises `subprocess.CalledProcessError` if sbatch refused the job.
    """
    logger.disable("datatrove")
    for name in list(os.environ):  # this process may be a job itself, and its variables would apply to the new one
        if name.startswith("SLURM_") and name != "SLURM_CONF":
            del os.environ[name]
    JobArray(
        pipeline=[JobStep(stage, tasks, folder)],
        tasks=n_jobs,
        time="",
        partition="",
        job_name=folder.name,
        qos="",
        env_command=f'export PATH="{Path(sys.executable).parent}:$PATH"',
        sbatch_args={"mem-per-cpu": None, "time": None, "partition": None, **options},
        logging_dir=str(folder),
        skip_completed=False,
        with_srun=False,
    ).run()


class SlurmRunner(StageRunner):
    """Submits the tasks of a stage as a job array with datatrove, and waits for it."""

    def __init__(self, n_jobs: int | None = None, options: Mapping[str, str] | None = None) -> None:
        """Limit the jobs of a stage to `n_jobs` (default: one per task), and set options of sbatch, such as time.

        Raises `UserError` if Slurm is not installed.
        """
        self._n_jobs, self._options = n_jobs, options or {}
        if shutil.which("sbatch") is None:
            raise UserError("--engine slurm: there is no sbatch here; run the command on a login node of the cluster")

    def run_tasks(self, stage: Stage, tasks: Sequence[int], report: ProgressReport) -> None:
        """Run these tasks in jobs, and report how many of the stage are finished."""
        parent = stage.cache_dir.absolute() / "jobs"
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{stage.name}-", dir=parent))  # only this user may write into it
        n_jobs = min(self._n_jobs or len(tasks), len(tasks))
        log_rank0(
            f"data: {stage.name}: submitting the job array {folder.name} ({len(tasks):,} tasks in {n_jobs:,} jobs)"
        )
        try:
            _submit(stage, tasks, n_jobs, folder, self._options)
            self._wait(stage, folder.name, report)
        except subprocess.CalledProcessError:
            raise UserError("--engine slurm: sbatch refused the job; see its message above") from None
        except BaseException:
            with suppress(OSError):
                subprocess.run(["scancel", "--name", folder.name], check=False)
            raise
        _raise_if_unfinished(stage, folder)
        shutil.rmtree(folder)

    def _wait(self, stage: Stage, job_name: str, report: ProgressReport) -> None:
        seconds = 0.5
        while _has_jobs(job_name):
            time.sleep(seconds)
            seconds = min(1.5 * seconds, MAX_POLL_SECONDS)
            report.update(stage.n_tasks - len(stage.unfinished()))
        deadline = time.monotonic() + VISIBILITY_TIMEOUT
        while stage.unfinished() and not _has_jobs(job_name, only_failed=True) and time.monotonic() < deadline:
            time.sleep(1)


def _has_jobs(name: str, *, only_failed: bool = False) -> bool:
    """Return whether Slurm has unfinished (or failed) jobs of this name, or does not answer."""
    states = ["--states=BF,CA,DL,F,NF,OOM,TO"] if only_failed else []
    done = subprocess.run(["squeue", "--noheader", "--name", name, *states], capture_output=True, text=True)
    if done.returncode:
        log_rank0(f"warning: squeue failed: {done.stderr.strip()}")
    return bool(done.returncode or done.stdout.strip())


def _raise_if_unfinished(stage: Stage, folder: Path) -> None:
    """Raise `UserError` if tasks are unfinished, with the message of the first failed task."""
    if missing := stage.unfinished():
        listed = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        errors = sorted(folder.glob("*.error"))
        reason = f"; the first error: {errors[0].read_text(encoding='utf-8')}" if errors else ""
        raise UserError(
            f"stage {stage.name}: {len(missing):,} of {stage.n_tasks:,} tasks are not finished "
            f"({listed}){reason}\nSlurm's logs are in {folder / 'slurm_logs'}; the same command runs only these"
        )
