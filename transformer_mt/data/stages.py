"""Stages of the preparation of a corpus. A stage is a list of independent tasks that write files.

The folder of a stage is in the cache, and its name ends in a hash of everything that determines the results:

    read-1a2b3c4d5e6f7a8b/
        00000/        the files of task 0, and `task.json` with its metadata and the sizes of the files
        00001/ ...
        stage.json    the content of every `task.json`, written when all tasks are finished

A task writes to a temporary folder, which is then renamed. So a killed process leaves no partial task, and two machines
may run the same task. The results do not depend on the runner.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from multiprocessing import Pipe, get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from transformer_mt.errors import UserError
from transformer_mt.system.files import (
    atomic_new_folder,
    build_cached,
    delete_folder,
    report_read_only,
    write_text,
)
from transformer_mt.system.log import ProgressReport

METADATA = "task.json"
INDEX = "stage.json"
FORMAT_VERSION = 2  # of these two files; part of the names of folders
SAFE_PATH = "PYTHONSAFEPATH"  # variable of the environment that a new Python process reads

T = TypeVar("T")
R = TypeVar("R")

TaskMetadata = Mapping[str, Any]
"""Values that a task returns for later stages, as JSON."""


class TaskResult(NamedTuple):
    """The folder of a finished task, and its metadata."""

    folder: Path
    metadata: TaskMetadata


@dataclass(frozen=True)
class Stage:
    """Tasks that can run in any order, on any machine that sees the cache."""

    name: str  # for messages and options, such as "encode"
    cache_dir: Path
    key: Sequence[object]  # JSON values that determine the results, with a version of the format
    n_tasks: int
    run: Callable[[int, Path], TaskMetadata]  # writes the files of a task into a folder; must be picklable

    @cached_property  # the key may be long
    def folder(self) -> Path:
        """Return the folder of the stage."""
        key = json.dumps([FORMAT_VERSION, *self.key])
        return self.cache_dir / f"{self.name}-{sha256(key.encode()).hexdigest()[:16]}"

    def task_folder(self, task: int) -> Path:
        """Return the folder of a task."""
        return self.folder / f"{task:05d}"

    def unfinished(self) -> list[int]:
        """Return the tasks that are not finished."""
        return [task for task in range(self.n_tasks) if not (self.task_folder(task) / METADATA).exists()]

    def run_task(self, task: int) -> None:
        """Run a task, unless it is finished. Raises `UserError` if the disk is full or read-only."""
        target = self.task_folder(task)
        if (target / METADATA).exists():
            return
        with report_read_only(self.folder.parent):
            self.folder.mkdir(parents=True, exist_ok=True)
            if target.exists():  # such as a part of a copied cache
                delete_folder(target)
            try:
                with atomic_new_folder(target) as temporary:
                    metadata = self.run(task, temporary)
                    sizes = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
                    (temporary / METADATA).write_text(json.dumps({"metadata": metadata, "sizes": sizes}), "utf-8")
            except (UserError, OSError):
                if not (target / METADATA).exists():  # another machine may have finished it
                    raise

    def is_complete(self) -> bool:
        """Return whether the index is written."""
        return (self.folder / INDEX).exists()

    def complete(self) -> None:
        """Write the index. All tasks must be finished. Raises `UserError` if a task is damaged."""
        with report_damage(self.folder):
            tasks = map(self.task_folder, range(self.n_tasks))
            index = [json.loads((task / METADATA).read_text("utf-8")) for task in tasks]
        with report_read_only(self.folder.parent):
            write_text(self.folder / INDEX, json.dumps(index))

    def results(self) -> list[TaskResult]:
        """Return the results of all tasks. The stage must be complete.

        Raises `UserError` if a file is missing or has another size than its task has written.
        """
        results: list[TaskResult] = []
        with report_damage(self.folder):
            for number, task in enumerate(json.loads((self.folder / INDEX).read_text("utf-8"))):
                folder = self.task_folder(number)
                if any((folder / name).stat().st_size != size for name, size in task["sizes"].items()):
                    raise EOFError
                results.append(TaskResult(folder, task["metadata"]))
        return results


@contextmanager
def report_damage(folder: Path) -> Generator[None]:
    """Turn the errors of reading a missing or damaged file into a `UserError` that names the folder of its stage."""
    try:
        yield
    except (ValueError, KeyError, TypeError, EOFError, FileNotFoundError):
        raise UserError(
            f"{folder}: is incomplete or damaged; delete this folder, and run the same command again"
        ) from None


def run_in_worker(stage: Stage, task: int, folder: Path) -> None:
    """Run a task in a worker process, in the working directory of the command."""
    os.chdir(folder)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # not a thread for each core of the machine
    stage.run_task(task)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array in the format of `np.save`, whose own errors do not tell that the disk is full."""
    buffer = BytesIO()
    np.save(buffer, array)
    path.write_bytes(buffer.getbuffer())


Runner = Callable[[Stage], list[TaskResult]]
"""Function that runs the unfinished tasks of a stage and returns all results. Raises `UserError` if a task fails."""


class StageRunner(ABC):
    """Runs the unfinished tasks of a stage. It waits while another process runs the same stage."""

    def __call__(self, stage: Stage) -> list[TaskResult]:
        """Return the results of a stage, after its unfinished tasks have run."""

        def run_all() -> None:
            if tasks := stage.unfinished():
                report = ProgressReport(f"data: {stage.name}: finished", stage.n_tasks, "tasks")
                with report.show(stage.n_tasks - len(tasks), bar=False):
                    self.run_tasks(stage, tasks, report)
            stage.complete()

        try:
            build_cached(stage.folder / INDEX, run_all, stage.is_complete)
        except BaseException:
            with suppress(OSError):  # it fails, as intended, if there are finished tasks
                stage.folder.rmdir()
            raise
        return stage.results()

    @abstractmethod
    def run_tasks(self, stage: Stage, tasks: Sequence[int], report: ProgressReport) -> None:
        """Run these tasks, and report how many of the stage are finished. Raises `UserError` if a task has failed."""


@dataclass
class LocalRunner(StageRunner):
    """Runs tasks in processes of this machine."""

    workers: int = 1

    def run_tasks(self, stage: Stage, tasks: Sequence[int], report: ProgressReport) -> None:
        """Run these tasks, and report how many of the stage are finished."""
        with map_in_processes(stage.run_task, tasks, min(self.workers, len(tasks))) as finished:
            for n_finished, _ in enumerate(finished, start=stage.n_tasks - len(tasks) + 1):
                report.update(n_finished)


IN_PROCESS_RUNNER = LocalRunner()
"""Runs all tasks in this process."""

# --- worker processes -------------------------------------------------------------------------------------------------


@contextmanager
def _safe_imports() -> Generator[None]:
    """Keep Python processes that are started meanwhile from importing files of the current directory."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def map_in_processes(function: Callable[[T], R], items: Sequence[T], n_workers: int) -> Generator[Iterator[R]]:
    """Open processes, and yield an iterator over the results of `function`, in the order of the items.

    With one worker, this process runs the function. Others are spawned: a forked process would inherit locks of the
    threads of libraries such as `tokenizers`. All items are submitted at once, and each process unpickles the function
    once. An error in the context ends the processes at once. Raises `UserError` if a process was killed, or could not
    start.
    """
    if n_workers == 1:
        yield map(function, items)
        return
    stop, alive = Pipe(duplex=False)  # the workers read `stop`, and end when this process closes `alive`
    with _safe_imports():
        executor = ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker, (function, stop))
        # the processes, which `map` starts, inherit the mask: Ctrl-C also reaches them, but their parent ends them
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            try:
                results = executor.map(_call, items)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            yield results
        except BaseException as error:
            alive.close()
            if not isinstance(error, BrokenProcessPool):
                raise
            raise UserError(
                f"one of {n_workers} worker processes ended unexpectedly, perhaps because memory ran out; pass a "
                "smaller --workers"
            ) from None
        finally:
            executor.shutdown(cancel_futures=True)
            alive.close()
            stop.close()


_function: list[Callable[[Any], Any]] = []


def _start_worker(function: Callable[[Any], Any], stop: Connection) -> None:
    threading.Thread(target=_exit_with_parent, args=[stop], daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # not a thread for each core
    _function[:] = [function]


def _call(item: Any) -> Any:
    return _function[0](item)


def _exit_with_parent(stop: Connection) -> None:
    """End this process when its parent dies or closes `stop`, because it would otherwise wait for work forever."""
    if (parent := parent_process()) is not None:
        wait([parent.sentinel, stop])
        os._exit(1)
