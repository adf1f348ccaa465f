"""The lock: one process trains a run, whatever became of the one before it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

import pytest

from transformer_mt.errors import UserError
from transformer_mt.runs import lock
from transformer_mt.runs.lock import SILENCE, Holder, Lock

HOLD = """
import sys, time
from pathlib import Path
from transformer_mt.runs import lock
from transformer_mt.errors import UserError
if "noflock" in sys.argv:
    lock.try_flock = lambda file: None
try:
    with lock.Lock(Path(sys.argv[1])).held():
        print("held", flush=True)
        sys.stdin.read()
except UserError as error:
    print(error)
"""

ELSEWHERE = Holder("far", "another boot", 7, "123", "2026-01-02 03:04:05.678+00:00")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".lock"


@contextmanager
def other_process(path: Path, *options: str) -> Generator[subprocess.Popen[str]]:
    """A process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(path), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def try_to_lock(path: Path) -> str:
    """What another process is told."""
    command = [sys.executable, "-c", HOLD, str(path)]
    return subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout.strip()


def forge(path: Path, holder: Holder, silent: float = 0.0) -> None:
    """The lock of some other process, whose last sign of life was so many seconds ago."""
    path.write_text(json.dumps(asdict(holder)))
    os.utime(path, (time.time() - silent, time.time() - silent))


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_one_process_at_a_time(path: Path) -> None:
    with Lock(path).held():
        said = try_to_lock(path)
    host = re.escape(os.uname().nodename)
    assert re.fullmatch(
        rf"{path.parent}: another process is training this run \(process {os.getpid()} on {host}"
        r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\); wait for it or stop it",
        said,
    )
    assert try_to_lock(path) == "held"
    assert path.read_bytes() == b""


def test_not_twice_in_one_process_either(path: Path) -> None:
    with Lock(path).held(), pytest.raises(UserError, match="another process"), Lock(path).held():
        pass


@pytest.mark.parametrize("options", [(), ("noflock",)])
def test_the_lock_of_a_process_that_was_killed_is_taken_at_once(
    options: tuple[str, ...], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before anybody has taken note of its death; and on a file system without flock."""
    if options:
        monkeypatch.setattr(lock, "try_flock", lambda _: None)
    with other_process(path, *options) as process:
        with pytest.raises(UserError, match=rf"\(process {process.pid} on .* since "), Lock(path).held():
            pass
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not buried
        with Lock(path).held():
            pass


@pytest.mark.parametrize(
    "holder",
    [
        replace(Holder.me(), pid=gone()),
        replace(Holder.me(), started="1"),  # its number is another process's now
        replace(Holder.me(), boot="before the system was started anew"),
        replace(Holder.me(), host="a container of this machine", started="1"),
    ],
)
@pytest.mark.parametrize("has_flock", [True, None])
def test_a_dead_process_of_this_machine(
    holder: Holder, has_flock: bool | None, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is taken at once, however fresh; times play no part."""
    monkeypatch.setattr(lock, "try_flock", lambda _: has_flock)
    forge(path, holder)
    with Lock(path).held():
        pass


def test_a_copy_of_a_folder_that_is_being_trained(path: Path) -> None:
    """The process named in it lives, and holds another file."""
    forge(path, Holder.me())
    with Lock(path).held():
        pass


@pytest.mark.parametrize(
    ("job", "slurm_restart_count", "is_refused"), [("7", 2, False), ("7", 1, True), ("8", 2, True)]
)
def test_an_earlier_start_of_a_slurm_job_is_over(
    job: str, slurm_restart_count: int, is_refused: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was killed on another machine, and has been put back into the queue since."""
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(slurm_restart_count))
    forge(path, replace(ELSEWHERE, slurm_job_id="7", slurm_restart_count=1))
    with ExitStack() as stack:
        if is_refused:
            stack.enter_context(pytest.raises(UserError, match="another process is training this run"))
        stack.enter_context(Lock(path).held())


@pytest.mark.parametrize("silent", [0, SILENCE - 20, -3600])
def test_another_machine_s_lock_is_refused_while_it_may_live(silent: float, path: Path) -> None:
    """Also where its clock, or ours, was set back by an hour."""
    forge(path, ELSEWHERE, silent)
    before = path.read_bytes()
    with pytest.raises(UserError) as caught, Lock(path).held():
        pass
    said = str(caught.value)
    assert "(process 7 on far since 2026-01-02 03:04:05)" in said
    at = re.search(r"from (\d\d:\d\d:\d\d) on \(300 seconds", said)
    assert at is not None
    expected = time.time() + SILENCE - silent
    assert at[1] in {time.strftime("%H:%M:%S", time.localtime(expected + off)) for off in range(-5, 2)}
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [".lock"]


@pytest.mark.parametrize("named", ["neither", "ours", "theirs"])
@pytest.mark.parametrize("has_flock", [True, None])
def test_a_clone_of_this_machine_whose_starts_have_no_names(
    named: str, has_flock: bool | None, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of processes here says nothing of a process there: its heartbeat decides."""
    monkeypatch.setattr(lock, "try_flock", lambda _: has_flock)
    there = replace(Holder.me(), boot=lock._boot() if named == "theirs" else "", pid=gone())
    if named != "ours":
        monkeypatch.setattr(lock, "_boot", lambda: "")
    forge(path, there)
    with pytest.raises(UserError, match=r"gave a sign of life \d seconds ago"), Lock(path).held():
        pass
    forge(path, there, SILENCE + 1)
    with Lock(path).held():
        pass


def test_another_machine_s_lock_is_taken_over_after_its_silence(path: Path) -> None:
    forge(path, ELSEWHERE, SILENCE + 1)
    with Lock(path).held():
        assert Holder.read(path.read_bytes()) not in (None, ELSEWHERE)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"host": "x"}', "\0" * 100])
def test_what_nobody_wrote_is_no_lock(content: str, path: Path) -> None:
    """A disk that was full, or a machine that lost its power, may leave anything."""
    path.write_text(content)
    with Lock(path).held():
        pass


def test_who_was_taken_over_does_not_write(path: Path) -> None:
    mine = Lock(path)
    mine.check()  # held by nobody: reading needs no lock
    with ExitStack() as stack:
        stack.enter_context(mine.held())
        mine.check()
        forge(path, ELSEWHERE)
        with pytest.raises(UserError, match=r"process 7 on far .* took over; this process stops without writing"):
            mine.check()
    assert Holder.read(path.read_bytes()) == ELSEWHERE  # and what it holds is left to it


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_lock_that_went_missing(spoil, path: Path) -> None:
    mine = Lock(path)
    with mine.held():
        spoil(path)
        with pytest.raises(UserError, match="no longer this process's lock"):
            mine.check()


def beats(path: Path) -> bool:
    """Whether the file gets a new time within some seconds."""
    os.utime(path, (0, 0))
    until = time.monotonic() + 10
    while path.stat().st_mtime == 0 and time.monotonic() < until:
        time.sleep(0.005)
    return path.stat().st_mtime > 0


def test_the_heartbeat_survives_hiccups_and_ends_with_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)
    failures = [OSError(28, "No space left on device"), OSError(116, "Stale file handle")]
    is_mine = Lock._is_mine

    def fail_twice(self: Lock, file: BinaryIO) -> bool:
        if failures:
            raise failures.pop()
        return is_mine(self, file)

    monkeypatch.setattr(Lock, "_is_mine", fail_twice)
    with Lock(path).held():
        assert beats(path)
        assert not failures
    os.utime(path, (0, 0))
    time.sleep(0.05)
    assert path.stat().st_mtime == 0


def test_the_heartbeat_leaves_another_s_lock_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)
    with Lock(path).held():
        assert beats(path)
        forge(path, ELSEWHERE, 1000)
        time.sleep(0.05)
        assert path.stat().st_mtime < time.time() - 900


def test_the_lock_is_released_by_an_error(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lock(path).held():
        raise ZeroDivisionError
    with Lock(path).held():
        pass
