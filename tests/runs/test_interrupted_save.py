"""A save that is ended by a second signal, or by a kill at any point of it, costs nothing that was saved before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformer_mt.runs.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.drill]

TRAIN = ("train", "--config", "tiny.yaml")

DISTURBED = """
import os, sys, time
from pathlib import Path
import torch
from transformer_mt.cli.main import main
from transformer_mt.runs import checkpoints

how, number, saves = sys.argv.pop(1), int(sys.argv.pop(1)), []
save = checkpoints.save

def save_disturbed(info, *rest):
    saves.append(info)
    if len(saves) == 2:
        disturb()
    save(info, *rest)

def disturb():
    if how == "slow":
        write = torch.save
        torch.save = lambda *_: (write(*_), print("saving", flush=True), time.sleep(600))
        return
    calls = []
    def counted(function):
        def call(*args, **options):
            calls.append(function)
            if len(calls) == number:
                os._exit(77)
            return function(*args, **options)
        return call
    os.fsync, torch.save = map(counted, (os.fsync, torch.save))
    os.rmdir, Path.rename, Path.replace = map(counted, (os.rmdir, Path.rename, Path.replace))

checkpoints.save = save_disturbed
main(sys.argv[1:])
"""


@pytest.fixture
def here(tiny: Path, tmp_path: Path) -> Path:
    for path in tiny.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    shutil.copytree(tiny / "runs" / ".cache", tmp_path / "runs" / ".cache")
    return tmp_path


def start(here: Path, *how: str) -> subprocess.Popen[str]:
    """Train, and disturb the second save."""
    command = [sys.executable, *(("-c", DISTURBED, *how[:2]) if how else ("-m", "transformer_mt")), *TRAIN, *how[2:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def assert_goes_on(here: Path, tiny_run: Path, after: int) -> None:
    """The same command goes on and ends where an undisturbed run ends, and leaves nothing half-written."""
    process = start(here)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert f"resuming after step {after}\n" in said and "damaged" not in said
    left, right = (
        load_file(RunFolder(run).find_checkpoint("12").path / "model.safetensors")
        for run in (here / "runs" / "tiny", tiny_run)
    )
    assert all(torch.equal(left[name], right[name]) for name in right)
    assert not list((here / "runs" / "tiny").rglob(".*.tmp"))


@pytest.mark.parametrize(("second", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(second: signal.Signals, status: int, here: Path, tiny_run: Path) -> None:
    process = start(here, "slow", "0")
    assert process.stdout is not None
    assert process.stdout.readline() == "saving\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert process.poll() is None  # the first one waits for the save to end
    process.send_signal(second)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in said
    assert list(RunFolder(here / "runs" / "tiny").checkpoint_folders()) == [4]
    assert_goes_on(here, tiny_run, after=4)


@pytest.mark.parametrize("number", range(1, 8))
def test_killed_inside_a_save(number: int, here: Path, tiny_run: Path) -> None:
    """Before `torch.save`, each flush of a file and of the folder (2 to 5), the renaming (6), the last flush (7)."""
    process = start(here, "kill", str(number))
    _, said = process.communicate()
    assert process.returncode == 77, said
    assert_goes_on(here, tiny_run, after=4 if number <= 6 else 8)
