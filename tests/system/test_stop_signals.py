"""Stop signals, in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

TWICE = """
import os, signal
from transformer_mt.system.stop_signals import StopSignals
with StopSignals() as stop:
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    print(stop.number)
"""


@pytest.mark.parametrize(
    ("environment", "status", "said"),
    [({}, 128 + signal.SIGINT, ""), ({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1"}, 0, f"{signal.SIGTERM:d}\n")],
)
def test_a_second_signal_ends_the_process_unless_torchrun_repeats_it(
    environment: dict[str, str], status: int, said: str
) -> None:
    """Which it does also where it watches over one process."""
    done = subprocess.run(
        [sys.executable, "-c", TWICE], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (status, said)
