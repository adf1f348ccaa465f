"""Stop signals, in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

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
