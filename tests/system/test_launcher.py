"""The environment that `torchrun` and SLURM set."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from transformer_mt.system.launcher import job_id, restart_count

ONE_HOST = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "none"}, "7"),
        ({"TORCHELASTIC_RUN_ID": "mine", **ONE_HOST}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "none", **ONE_HOST}, f"{socket.gethostname()}:{os.getppid()}"),
        ({"TORCHELASTIC_RUN_ID": "none", **ONE_HOST, "WORLD_SIZE": "4"}, "none"),
    ],
)
def test_job_id_is_the_same_in_all_processes(
    environment: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert job_id() == expected


def test_restarts_of_torchrun_and_slurm_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(key, raising=False)
    assert restart_count() == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert restart_count() == 5


# --- Stop signals, in a process of their own --------------------------------------------------------------------------

IN_A_LIBRARY = """
import hashlib, sys
from transformer_mt.system.launcher import StopSignals, answer_signals
with answer_signals(lambda text: print(text, flush=True)), StopSignals():
    print("started", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", int(sys.argv[1]))  # calls no handler of Python before its end
"""


def start(n_iterations: int, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IN_A_LIBRARY, str(n_iterations)]
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_answered_and_the_next_one_ends_the_process(number: signal.Signals) -> None:
    with start(2**31 - 1) as process:
        assert process.stdout is not None
        process.send_signal(number)
        assert "stopping" in process.stdout.readline()
        process.send_signal(number)
    assert process.returncode == 128 + number


def test_torchrun_may_repeat_its_signal() -> None:
    """It repeats the signal even to a single process."""
    with start(1_000_000, TORCHELASTIC_RUN_ID="none") as process:
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
