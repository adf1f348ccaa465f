"""Submit job arrays with datatrove, which pickles the tasks, writes the script, and splits long arrays."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datatrove.executor import SlurmPipelineExecutor
from loguru import logger

from transformer_mt.data.stages import Stage, run_in_worker
from transformer_mt.errors import UserError
from transformer_mt.system.files import write_text


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


def submit(stage: Stage, tasks: Sequence[int], n_jobs: int, folder: Path, options: Mapping[str, str]) -> None:
    """Submit `n_jobs` jobs that share the tasks. Script, logs and errors are in a folder, whose name the jobs have.

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
