"""A save that is interrupted at any point loses nothing that was saved before (trap 40)."""

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

pytestmark = pytest.mark.slow

TRAIN = ("train", "--config", "tiny.yaml", "validation.probes=0")

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
        save = torch.save
        torch.save = lambda *_: (save(*_), print("saving", flush=True), time.sleep(600))
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
def workspace(tiny: Path, tmp_path: Path) -> Path:
    for path in tiny.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    shutil.copytree(tiny / "runs" / ".cache", tmp_path / "runs" / ".cache")
    return tmp_path


def start_training(workspace: Path, *disturbance: str) -> subprocess.Popen[str]:
    """Start a training, and disturb its second save if a disturbance and its number are given."""
    program = ("-c", DISTURBED, *disturbance) if disturbance else ("-m", "transformer_mt")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *program, *TRAIN],
        cwd=workspace,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_resumes(workspace: Path, tiny_run: Path, after: int) -> None:
    """Check that the same command resumes, ends with the weights of an undisturbed run, and leaves no leftovers."""
    process = start_training(workspace)
    _, log = process.communicate()
    assert process.returncode == 0, log
    assert f"resuming after step {after}\n" in log and "damaged" not in log
    run = RunFolder(workspace / "runs" / "tiny")
    checkpoints = [folder.find_checkpoint("12").path for folder in (run, RunFolder(tiny_run))]
    left, right = (load_file(checkpoint / "model.safetensors") for checkpoint in checkpoints)
    assert all(torch.equal(left[name], right[name]) for name in right)
    assert not list(run.path.rglob(".*.tmp"))


def test_second_signal_ends_a_save_at_once(workspace: Path, tiny_run: Path) -> None:
    process = start_training(workspace, "slow", "0")
    assert process.stdout is not None
    assert process.stdout.readline() == "saving\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(3.0)  # so that a busy machine has handled it before the second one
    assert process.poll() is None  # after the first signal, the save continues
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in log
    assert list(RunFolder(workspace / "runs" / "tiny").list_checkpoint_folders()) == [4]
    assert_resumes(workspace, tiny_run, after=4)


@pytest.mark.parametrize("call", [3, 6, 7])
def test_kill_during_a_save_keeps_the_checkpoint_before(call: int, workspace: Path, tiny_run: Path) -> None:
    """Killed at an fsync (3), the rename (6) or the last fsync (7)."""
    process = start_training(workspace, "kill", str(call))
    _, log = process.communicate()
    assert process.returncode == 77, log
    assert_resumes(workspace, tiny_run, after=4 if call <= 6 else 8)
