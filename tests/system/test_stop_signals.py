"""Stop signals, in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

TWO_SIGNALS = """
import os, signal
from transformer_mt.system.launcher import StopSignals
with StopSignals() as stop:
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    print(stop.number)
"""


@pytest.mark.parametrize(
    ("environment", "status", "output"),
    [({}, 128 + signal.SIGINT, ""), ({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1"}, 0, f"{signal.SIGTERM:d}\n")],
)
def test_second_signal_ends_the_process_except_under_torchrun(
    environment: dict[str, str], status: int, output: str
) -> None:
    """torchrun repeats its signal to processes that have received it already, even to a single one."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_SIGNALS],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, output)
