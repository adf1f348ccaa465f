"""Runners of `tmt prepare` for several machines: Slurm, Ray, and single tasks for any other scheduler.

The flow calls a runner for each stage in turn (see data/stages.py). The name of a stage is that of its folder,
such as read-1a2b3c4d5e6f7a8b.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.data.stages import Stage, StageRunner, TaskResult, run_in_worker
from transformer_mt.errors import MissingPackageError, UserError
from transformer_mt.system.log import ProgressReport, log_rank0

MAX_POLL_SECONDS = 15.0
MAX_LISTED_TASKS = 10  # unfinished tasks in a message
VISIBILITY_TIMEOUT = 60.0
"""Seconds to wait for the files of another machine, because a network file system caches that a file does not exist."""


class RunnerDone(Exception):  # noqa: N818  (it is not an error)
    """Raised to end the flow after the runner has finished its part of the preparation."""


def _complete(stage: Stage) -> bool:
    """Return whether all tasks are finished. If so, write the index of the stage, unless it exists."""
    if not stage.is_complete():
        if stage.unfinished():
            return False
        stage.complete()
    return True


# --- one task, and the status -----------------------------------------------------------------------------------------


class TaskRunner:
    """Runs tasks of one stage, and ends the flow. Earlier stages must be complete."""

    def __init__(self, name: str, task: int, step: int | None = None) -> None:
        """Run `task`, or with a `step` also `task + step`, `task + 2 * step`, ... of the stage `name`.

        A name without the hash of the folder is that of the first such stage.
        """
        self._name, self._task, self._step = name, task, step
        self.kinds: dict[str, str] = {}  # of the stages so far: name of the folder -> name without the hash

    def __call__(self, stage: Stage) -> list[TaskResult]:
        """Return the results of an earlier stage, or run the tasks of the stage `name`.

        Raises `RunnerDone` if the tasks are finished. Raises `UserError` if a task failed or does not exist, or an
        earlier stage is incomplete.
        """
        name = stage.folder.name
        is_first = stage.name not in self.kinds.values()
        self.kinds[name] = stage.name
        if not (name == self._name or (stage.name == self._name and is_first)):
            if _complete(stage):
                return stage.results()
            missing = stage.unfinished()
            raise UserError(
                f"--stage {self._name}: the stage {name} comes first, and {len(missing):,} of its {stage.n_tasks:,} "
                f"tasks are not finished ({_list_tasks(missing)})"
            )
        if self._step is None and self._task >= stage.n_tasks:
            raise UserError(f"--task {self._task}: the stage {name} has {stage.n_tasks:,} tasks, counted from 0")
        tasks = range(self._task, stage.n_tasks, self._step or stage.n_tasks)
        stage.check_space(len(tasks))
        for task in tasks:
            stage.run_task(task)
        _complete(stage)
        raise RunnerDone


class StageStatus(NamedTuple):
    """Number of finished tasks of a stage."""

    finished: int
    n_tasks: int


class StatusRunner:
    """Collects the status of each stage, and ends the flow at the first incomplete stage. Later stages are unknown."""

    def __init__(self) -> None:
        self.stages = dict[str, StageStatus]()  # by name

    def __call__(self, stage: Stage) -> list[TaskResult]:
        """Return the results of a complete stage. Raises `RunnerDone` if the stage is incomplete."""
        is_complete = _complete(stage)
        n_finished = stage.n_tasks if is_complete else stage.n_tasks - len(stage.unfinished())
        self.stages[stage.folder.name] = StageStatus(n_finished, stage.n_tasks)
        if not is_complete:
            raise RunnerDone
        return stage.results()


def _list_tasks(tasks: Sequence[int]) -> str:
    return ", ".join(map(str, tasks[:MAX_LISTED_TASKS])) + (", ..." if len(tasks) > MAX_LISTED_TASKS else "")


# --- Slurm and Ray ----------------------------------------------------------------------------------------------------


class SlurmRunner(StageRunner):
    """Submits the tasks of a stage as a job array with datatrove, and waits for it."""

    def __init__(self, n_jobs: int | None = None, options: Mapping[str, str] | None = None) -> None:
        """Limit the jobs of a stage to `n_jobs` (default: one per task), and set options of sbatch, such as time.

        Raises `UserError` if datatrove or Slurm is not installed.
        """
        self._n_jobs, self._options = n_jobs, options or {}
        _import_engine("datatrove.executor", "slurm", "cluster")
        if shutil.which("sbatch") is None:
            raise UserError("--engine slurm: there is no sbatch here; run the command on a login node of the cluster")

    def run_tasks(self, stage: Stage, tasks: Sequence[int], report: ProgressReport) -> None:
        """Run these tasks in jobs, and report how many of the stage are finished."""
        from transformer_mt.tools.cluster.slurm_executor import submit

        parent = stage.cache_dir.absolute() / "jobs"
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{stage.name}-", dir=parent))  # only this user may write into it
        n_jobs = min(self._n_jobs or len(tasks), len(tasks))
        log_rank0(
            f"data: {stage.name}: submitting the job array {folder.name} ({len(tasks):,} tasks in {n_jobs:,} jobs)"
        )
        try:
            submit(stage, tasks, n_jobs, folder, self._options)
            self._wait(stage, folder.name, report)
        except subprocess.CalledProcessError:
            raise UserError("--engine slurm: sbatch refused the job; see its message above") from None
        except BaseException:
            with suppress(OSError):
                subprocess.run(["scancel", "--name", folder.name], check=False)
            raise
        _raise_if_unfinished(stage, folder, f"Slurm's logs are in {folder / 'slurm_logs'}")
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


class RayRunner(StageRunner):
    """Runs tasks on the Ray cluster of RAY_ADDRESS or of this machine. Without a cluster, Ray starts one."""

    def __init__(self, n_jobs: int | None = None) -> None:
        """Limit the tasks that run at the same time to `n_jobs` (default: the number of cores of the cluster).

        Raises `UserError` if ray is not installed.
        """
        self._n_jobs = n_jobs
        self._ray = _import_engine("ray", "ray", "ray")

    def run_tasks(self, stage: Stage, tasks: Sequence[int], report: ProgressReport) -> None:
        """Run these tasks in workers, and report how many of the stage are finished."""
        ray = self._ray
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="ERROR")
        run, folder = ray.remote(run_in_worker), Path.cwd()
        shared, waiting, running = ray.put(stage), list(reversed(tasks)), list[Any]()
        n_finished = stage.n_tasks - len(tasks)
        while waiting or running:
            while waiting and len(running) < (self._n_jobs or len(tasks)):
                running.append(run.remote(shared, waiting.pop(), folder))
            finished, running = ray.wait(running)
            try:
                ray.get(finished)
            except ray.exceptions.RayTaskError as error:
                raise error.cause or error from None
            except ray.exceptions.RayError as error:
                raise UserError(f"stage {stage.name}: a worker of Ray ended: {error}") from None
            n_finished += len(finished)
            report.update(n_finished)


def _raise_if_unfinished(stage: Stage, folder: Path, logs: str) -> None:
    """Raise `UserError` if tasks are unfinished, with the message of the first failed task."""
    if missing := stage.unfinished():
        errors = sorted(folder.glob("*.error"))
        reason = f"; the first error: {errors[0].read_text(encoding='utf-8')}" if errors else ""
        raise UserError(
            f"stage {stage.name}: {len(missing):,} of {stage.n_tasks:,} tasks are not finished "
            f"({_list_tasks(missing)}){reason}\n{logs}; repeat the command to run only these tasks again"
        )


def _import_engine(module: str, engine: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPackageError(f"--engine {engine}", f"transformer_mt[{extra}]") from None
