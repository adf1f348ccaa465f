"""Failed and interrupted jobs of Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from slurm_helpers import slurm as slurm

from transformer_mt.data.stages import Stage, TaskMetadata
from transformer_mt.errors import UserError
from transformer_mt.tools.cluster.slurm import SlurmRunner


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
