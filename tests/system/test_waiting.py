"""OpenMP threads sleep while other programs use the cores, and no bit of a result changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from transformer_mt.system import device

pytestmark = pytest.mark.skipif(device.read_delay() is None, reason="this system does not count delays")

PRODUCTS = """
import os, sys, threading, time
from hashlib import sha256
from pathlib import Path
import torch
from transformer_mt.system import device

torch.set_num_threads(2)
torch.manual_seed(1)
device.set_waiting(sys.argv[1], 2)
x = torch.randn(200, 200)
for _ in range(100):
    x = torch.nn.functional.layer_norm(x @ x, (200,))
deadline = time.monotonic() + 60
n_expected = 2 + (len(os.sched_getaffinity(0)) if sys.argv[1] == "passive" else 0)
count_threads = lambda: len(os.listdir("/proc/self/task")) - threading.active_count() + 1
while count_threads() < n_expected and time.monotonic() < deadline:
    time.sleep(0.05)
print(count_threads() - n_expected, sha256(x.numpy().tobytes()).hexdigest())
"""


def multiply(policy: str, **environment: str) -> tuple[int, str]:
    """Multiply in a new process. Return how many threads of libraries it has beyond those expected, and a hash."""
    variables = {name: value for name, value in os.environ.items() if name not in device.OPENMP_VARIABLES}
    command = [sys.executable, "-c", PRODUCTS, policy]
    done = subprocess.run(command, env=variables | environment, check=True, capture_output=True, text=True)
    n_more, digest = done.stdout.split()
    return int(n_more), digest


def test_idle_threads_change_no_bit() -> None:
    results = {policy: multiply(policy) for policy in ("active", "passive")}
    assert results["active"] == results["passive"]


@pytest.mark.parametrize("variable", device.OPENMP_VARIABLES)
def test_variables_of_openmp_decide(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0")
    before = threading.active_count()
    device.set_waiting("passive", 2)
    assert threading.active_count() == before


def test_one_thread_needs_no_watcher() -> None:
    before = threading.active_count()
    device.set_waiting("auto", 1)
    assert threading.active_count() == before


def test_the_delay_grows_while_threads_wait_for_a_core() -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from transformer_mt.system.device import read_delay\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "other = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        "end, before = time.process_time() + 0.5, read_delay()\n"
        "while time.process_time() < end: pass\n"
        "other.kill()\n"
        "print(read_delay() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert float(done.stdout) > 0.1  # the other process has half of the core


def decide(shares: list[float], seconds: float = 0.5) -> list[bool]:
    """Return after each sample whether the cores are contended, for shares of the time without a core."""
    contention = device.Contention()
    decisions: list[bool] = []
    for share in shares:
        contention.update(share * seconds, seconds)
        decisions.append(contention.is_contended)
    return decisions


def test_contention_must_last() -> None:
    assert decide([0.0, 0.9, 0.0, 0.9, 0.0]) == [False] * 5
    assert decide([0.0, 0.9, 0.9, 0.0]) == [False, False, True, True]


def test_threads_spin_again_after_a_quiet_time_that_doubles() -> None:
    n_quiet = int(device.QUIET_SECONDS / 0.5)
    busy, quiet = [0.9] * 2, [0.0] * n_quiet
    assert not decide([*busy, *quiet])[-1]
    assert decide([*busy, *quiet[1:]])[-1]
    assert decide([*busy, *quiet, *busy, *quiet])[-1]
    assert not decide([*busy, *quiet, *busy, *quiet, *quiet])[-1]


def test_samples_of_ended_threads_count_as_quiet() -> None:
    assert decide([-5.0, 0.0, -0.1]) == [False] * 3
