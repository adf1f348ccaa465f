"""Runners of `tmt prepare` for several machines: Slurm and Ray.

The flow calls a runner for each stage in turn (see data/stages.py).
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
from typing import Any

from transformer_mt.data.stages import Stage, StageRunner, run_in_worker
from transformer_mt.errors import MissingPackageError, UserError
from transformer_mt.system.log import ProgressReport, log_rank0

MAX_POLL_SECONDS = 15.0
MAX_LISTED = 10  # unfinished tasks in a message
VISIBILITY_TIMEOUT = 60.0
"""Seconds to wait for the files of another machine, because a network file system caches that a file does not exist."""


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
        listed = ", ".join(map(str, missing[:MAX_LISTED])) + (", ..." if len(missing) > MAX_LISTED else "")
        errors = sorted(folder.glob("*.error"))
        reason = f"; the first error: {errors[0].read_text(encoding='utf-8')}" if errors else ""
        raise UserError(
            f"stage {stage.name}: {len(missing):,} of {stage.n_tasks:,} tasks are not finished "
            f"({listed}){reason}\n{logs}; repeat the command to run only these tasks again"
        )


def _import_engine(module: str, engine: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPackageError(f"--engine {engine}", f"transformer_mt[{extra}]") from None
