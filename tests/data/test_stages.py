"""Stages: finished tasks stay finished, and the results do not depend on who runs them."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import read_folder

from transformer_mt.data.stages import LocalRunner, Stage, TaskMetadata, save_array
from transformer_mt.errors import UserError

pytestmark = pytest.mark.usefixtures("workdir")


def square(task: int, folder: Path) -> TaskMetadata:
    """Write two files, and record the call outside of the stage."""
    (folder / "number").write_text(str(task**2))
    (folder / "text").write_text("x" * task)
    with Path("calls").open("a") as calls:
        calls.write(f"{task}\n")
    return {"square": task**2}


def make_stage(n_tasks: int = 5, run: Callable[[int, Path], TaskMetadata] = square, key: object = 1) -> Stage:
    return Stage("square", Path("cache"), [key], n_tasks, run)


def calls() -> list[int]:
    return [int(line) for line in Path("calls").read_text().split()]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_task_runs_once(workers: int) -> None:
    for _ in range(2):
        results = LocalRunner(workers)(make_stage())
        assert [metadata["square"] for _, metadata in results] == [0, 1, 4, 9, 16]
        assert [int((folder / "number").read_text()) for folder, _ in results] == [0, 1, 4, 9, 16]
    assert sorted(calls()) == [0, 1, 2, 3, 4]
    LocalRunner()(make_stage(key=2))
    assert len(calls()) == 10


def test_a_failed_stage_resumes_after_its_finished_tasks() -> None:
    def fail_at_3(task: int, folder: Path) -> TaskMetadata:
        if task == 3:
            raise UserError("line 7: bad")
        return square(task, folder)

    with pytest.raises(UserError, match="line 7"):
        LocalRunner()(make_stage(run=fail_at_3))
    assert make_stage().unfinished() == [3, 4]
    assert len(LocalRunner()(make_stage())) == 5
    assert calls() == [0, 1, 2, 3, 4]


def test_a_stage_whose_first_task_fails_leaves_no_folder() -> None:
    def fail(task: int, folder: Path) -> TaskMetadata:
        (folder / "part").touch()
        raise UserError("no")

    with pytest.raises(UserError):
        LocalRunner()(make_stage(run=fail))
    assert not [*Path("cache").iterdir()]


def test_a_task_without_metadata_runs_again() -> None:
    """Such as a part of a copied cache."""
    stage = make_stage()
    LocalRunner()(stage)
    before = read_folder(stage.folder)
    (stage.folder / "stage.json").unlink()
    (stage.task_folder(3) / "task.json").unlink()
    LocalRunner()(stage)
    assert read_folder(stage.folder) == before


def test_a_truncated_description_names_the_folder_to_delete() -> None:
    stage = make_stage()
    LocalRunner()(stage)
    index, task = stage.folder / "stage.json", stage.task_folder(3) / "task.json"
    for file in (index, task):
        index.unlink(missing_ok=file == task)
        file.write_text("{", encoding="utf-8")
        with pytest.raises(UserError, match=f"^{stage.folder}: "):
            LocalRunner()(stage)


def test_a_full_disk_is_named_as_the_reason() -> None:
    with pytest.raises(OSError, match=str(errno.ENOSPC)):
        save_array(Path("/dev/full"), np.zeros(10_000))


def test_a_task_that_another_machine_finishes_meanwhile_is_kept() -> None:
    stage = make_stage()

    def overtaken(task: int, folder: Path) -> TaskMetadata:
        stage.run_task(task)
        return square(task, folder)

    results = LocalRunner()(make_stage(run=overtaken))
    assert [metadata["square"] for _, metadata in results] == [0, 1, 4, 9, 16]
    assert not [*stage.folder.glob(".*.tmp")]


SCRIPT = """
import sys, time, pathlib
from transformer_mt.data.stages import LocalRunner, Stage

def write(task, folder):
    for i in range(20):
        (folder / str(i)).write_text(str(task * i) * 1000)
        time.sleep(0.001)
    return {"task": task}

LocalRunner()(Stage("write", pathlib.Path(sys.argv[1]), [1], 12, write))
"""


def run_script(cache: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, cache])


@pytest.mark.slow
def test_killed_runs_leave_the_files_of_an_undisturbed_one() -> None:
    assert run_script("whole").wait() == 0
    times = random.Random(5)
    for _ in range(8):
        process = run_script("killed")
        time.sleep(times.uniform(0.5, 1.2))
        process.kill()
        process.wait()
    assert run_script("killed").wait() == 0
    whole, found = read_folder(Path("whole")), read_folder(Path("killed"))
    assert {name: content for name, content in found.items() if ".tmp/" not in name and ".lock" not in name} == whole
