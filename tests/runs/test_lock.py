"""The run lock: one process at a time trains a run."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.runs.folder import HOLDER_FILE, LOCK_FILE, is_locked, lock_folder

HOLD = """
import sys
from pathlib import Path
from transformer_mt.runs.folder import lock_folder
from transformer_mt.errors import UserError
try:
    with lock_folder(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
except UserError as error:
    print(error)
"""


@contextmanager
def other_process(folder: Path) -> Generator[subprocess.Popen[str]]:
    """Start a process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_lock_is_refused_to_another_process_and_names_its_holder(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        refusal = subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout.strip()
    host = re.escape(socket.gethostname())
    assert re.fullmatch(
        rf"{tmp_path}: another process is training this run \(process {os.getpid()} on {host}"
        r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\); wait for it or stop it",
        refusal,
    )
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def test_lock_of_a_killed_process_is_taken_at_once(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with other_process(tmp_path) as process:
        assert is_locked(tmp_path)
        with pytest.raises(UserError, match=rf"\(process {process.pid} on .* since "), lock_folder(tmp_path):
            pass
        process.kill()
        process.wait()
        assert str(process.pid) in (tmp_path / HOLDER_FILE).read_text(encoding="utf-8")
        assert not is_locked(tmp_path)
        with lock_folder(tmp_path):
            assert str(os.getpid()) in (tmp_path / HOLDER_FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"host": "x"}', "\0" * 100])
def test_unreadable_holder_file_leaves_out_the_holder(content: str | None, tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        path = tmp_path / HOLDER_FILE
        path.unlink() if content is None else path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="another process is training this run; wait"), lock_folder(tmp_path):
            pass


def test_asking_in_a_loop_whether_a_run_is_locked_refuses_no_start(tmp_path: Path) -> None:
    ask = """
import sys
from pathlib import Path
from transformer_mt.runs.folder import is_locked
print("asking", flush=True)
while True:
    is_locked(Path(sys.argv[1]))
"""
    with subprocess.Popen([sys.executable, "-c", ask, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asking\n"
        for _ in range(20):
            with lock_folder(tmp_path):
                pass
        process.kill()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_that_cannot_be_written_is_not_locked(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        holder = (tmp_path / HOLDER_FILE).read_bytes()
    (tmp_path / HOLDER_FILE).write_bytes(holder)  # of a killed process
    for path in (tmp_path / LOCK_FILE, tmp_path):
        path.chmod(path.stat().st_mode & ~0o222)
    assert not is_locked(tmp_path)
