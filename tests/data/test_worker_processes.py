"""Worker processes end with their pool, and with no other one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
from helpers import wait_until

from transformer_mt.data.stages import map_in_processes


def test_an_error_ends_the_busy_workers_of_its_own_pool_only() -> None:
    process = get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    with map_in_processes(time.sleep, [0, 5], 2) as other:
        assert next(other) is None
        started = time.monotonic()
        with pytest.raises(KeyError), map_in_processes(time.sleep, [60], 2):
            raise KeyError
        assert time.monotonic() - started < 50
        assert next(other) is None  # it was not ended while it worked
    assert process.is_alive()
    process.terminate()
    process.join()


# --- Worker processes of tmt check end with it, whoever is killed -----------------------------------------------------

PROGRAM = """
import os
import time
from pathlib import Path
if __name__ != "__main__":  # a worker imports this file when it has read its arguments
    Path(__file__).with_name(f"worker-{os.getpid()}").touch()
from transformer_mt.cli.main import main
from transformer_mt.data.stages import map_in_processes
from transformer_mt.flows import check

def work_slowly(item):
    time.sleep(600)

def check_corpus(*_):
    with map_in_processes(work_slowly, range(9), 2) as results:
        list(results)

if __name__ == "__main__":
    check.check_corpus = check_corpus
    main()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number", "status", "wait"),
    [
        ("parent", signal.SIGTERM, 128 + signal.SIGTERM, 0),
        ("parent", signal.SIGKILL, -signal.SIGKILL, 3),
        ("worker", signal.SIGKILL, 2, 0),
        ("group", signal.SIGINT, 128 + signal.SIGINT, 3),
    ],
)
def test_a_signal_ends_all_processes_without_a_traceback(
    victim: str, number: int, status: int, wait: float, in_tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, tmp_path / "program.py", "check", in_tiny / "tiny.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_until(lambda: len(list(tmp_path.glob("worker-*"))) == 2)
        workers = [int(path.name.removeprefix("worker-")) for path in tmp_path.glob("worker-*")]
        time.sleep(wait)
        if victim == "group":
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid if victim == "parent" else workers[0], number)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == status
        wait_until(lambda: not any(map(is_running, workers)))
        assert "Traceback" not in errors
        assert victim != "worker" or "ended unexpectedly" in errors
