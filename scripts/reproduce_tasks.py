"""Tasks of a reproduction, which run in parallel after their dependencies; its arguments and means."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Protocol

from transformer_mt.errors import UserError

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RESERVED_KEYS = (
    "name",
    "runs_dir",
    "seed",
    "data.src_lang",
    "data.tgt_lang",
    "data.train",
    "data.validation",
    "data.test",
)
"""Configuration keys that the script sets for each training."""


class Task(Protocol):
    """A unit of work with dependencies. Executing a finished task does nothing."""

    @property
    def dependencies(self) -> Sequence[Task]:
        """Tasks that must finish first."""
        ...

    def execute(self) -> None:
        """Do the work."""
        ...


def run_tasks(tasks: Sequence[Task], jobs: int) -> None:
    """Run tasks after their dependencies, at most `jobs` at once. After the first failure, no other task starts."""
    graph = TopologicalSorter(dict(dependency_graph(tasks)))
    graph.prepare()
    ready, running = deque[Task](), dict[Future[None], Task]()
    pool = ThreadPoolExecutor(jobs)
    try:
        while graph.is_active():
            ready.extend(graph.get_ready())
            while ready and len(running) < jobs:
                task = ready.popleft()
                running[pool.submit(task.execute)] = task
            ended = wait(running, return_when=FIRST_COMPLETED).done
            for done in [future for future in running if future in ended]:  # in the order of submission
                done.result()
                graph.done(running.pop(done))
    except UserError as error:
        if len(running) > 1:
            first_line = str(error).splitlines()[0]
            print(f"failed: {first_line}; waiting for the running tasks", file=sys.stderr, flush=True)
        raise
    finally:
        pool.shutdown()


def dependency_graph(tasks: Sequence[Task]) -> Iterator[tuple[Task, Sequence[Task]]]:
    """Yield each task with its dependencies, recursively."""
    for task in tasks:
        yield task, task.dependencies
        yield from dependency_graph(task.dependencies)


def existing_folder(text: str) -> Path:
    """Parse an existing folder from the command line."""
    if not (path := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder")
    return path


def refuse_reserved_keys(parser: argparse.ArgumentParser, overrides: Sequence[str]) -> None:
    """Exit with a usage error if an override sets a key that the script sets for each training."""
    for key in (override.partition("=")[0] for override in overrides):
        if any(
            f"{reserved}.".startswith(f"{key}.") or f"{key}.".startswith(f"{reserved}.") for reserved in RESERVED_KEYS
        ):
            parser.error(f"{key} is set by this script for each training: leave it out")


def data_source(*pairs: tuple[Path, Path]) -> str:
    """Render pairs of files as the value of a data source."""
    src, tgt = ([str(pair[side]) for pair in pairs] for side in (0, 1))
    return json.dumps({"src": src, "tgt": tgt}, ensure_ascii=False)  # JSON is valid YAML


def mean_and_range(values: Sequence[float]) -> str:
    """Format the mean, with minimum and maximum if there are several values."""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"
