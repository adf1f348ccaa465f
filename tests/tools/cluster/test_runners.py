"""Stages that run task by task give the files of a run in this process, and failed or interrupted jobs of Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from helpers import read_folder
from slurm_helpers import slurm as slurm

from transformer_mt.data.stages import LocalRunner, Stage, TaskMetadata
from transformer_mt.errors import UserError
from transformer_mt.tools.cluster.runners import RunnerDone, SlurmRunner, StatusRunner, TaskRunner


def write_square(source: Path, task: int, folder: Path) -> TaskMetadata:
    """Write the square of the number in a line of a file, which may have a bad line."""
    line = source.read_text(encoding="utf-8").splitlines()[task]
    if not line.isdigit():
        raise UserError(f"{source}: line {task + 1}: {line} is not a number")
    (folder / "square.txt").write_text(str(int(line) ** 2), encoding="utf-8")
    return {"square": int(line) ** 2}


def wait_for_release(task: int, folder: Path) -> TaskMetadata:
    while not Path("release").exists():
        time.sleep(0.1)
    return {}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage of seven tasks, whose paths are relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("numbers.txt").write_text("\n".join(map(str, range(7))), encoding="utf-8")
    return Stage("square", Path("cache"), ["v1"], 7, partial(write_square, Path("numbers.txt")))


def in_folder(stage: Stage, name: str) -> Stage:
    return Stage(stage.name, Path(name), stage.key, stage.n_tasks, stage.run)


def test_single_tasks_give_the_files_of_a_local_run(stage: Stage) -> None:
    """A name without a hash is that of the first stage, which the second one needs."""
    second = Stage("square", Path("cache"), ["v2"], 2, stage.run)
    name = second.folder.name

    def flow(runner: TaskRunner | StatusRunner | LocalRunner) -> int:
        return sum(result.metadata["square"] for each in (stage, second, stage) for result in runner(each))

    for task, step in [(5, None), (1, 2), (0, 2)]:
        with pytest.raises(UserError, match=rf"{stage.folder.name} comes first.*tasks are not finished \(0"):
            flow(TaskRunner(name, 0))
        with pytest.raises(RunnerDone):
            flow(TaskRunner("square", task, step))
    with pytest.raises(UserError, match=r"--task 2: .* 2 tasks"):
        flow(TaskRunner(name, 2))
    with pytest.raises(RunnerDone):
        flow(TaskRunner(name, 1))
    status = StatusRunner()
    with pytest.raises(RunnerDone):
        flow(status)
    assert status.stages == {stage.folder.name: (7, 7), name: (1, 2)}
    with pytest.raises(RunnerDone):
        flow(TaskRunner(name, 0))
    unknown = TaskRunner("cube", 0)
    assert flow(unknown) == flow(StatusRunner()) == 2 * sum(n * n for n in range(7)) + 1
    assert unknown.kinds == {stage.folder.name: "square", name: "square"}
    for each in (stage, second):
        LocalRunner()(in_folder(each, "local"))
    assert read_folder(Path("cache")) == read_folder(Path("local"))


# --- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_failed_job_ends_the_command_with_its_message_and_the_next_one_resumes(stage: Stage) -> None:
    numbers = Path("numbers.txt")
    numbers.write_text(numbers.read_text(encoding="utf-8").replace("4", "four"), encoding="utf-8")
    with pytest.raises(UserError, match=r"1 of 7 tasks are not finished \(4\).*line 5: four is not") as refusal:
        SlurmRunner()(stage)
    logs = Path(str(refusal.value).partition("logs are in ")[2].partition(";")[0])
    assert "four is not" in "".join(path.read_text(encoding="utf-8") for path in logs.iterdir())
    numbers.write_text(numbers.read_text(encoding="utf-8").replace("four", "4"), encoding="utf-8")
    assert len(SlurmRunner()(stage)) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_an_interrupted_command_cancels_its_jobs(stage: Stage) -> None:
    waiting = Stage("wait", stage.cache_dir, ["v1"], 2, wait_for_release)
    threading.Timer(3, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        SlurmRunner()(waiting)
    listed = subprocess.run(["squeue", "--noheader", "--states=PD,R"], stdout=subprocess.PIPE, check=True)
    assert not listed.stdout
