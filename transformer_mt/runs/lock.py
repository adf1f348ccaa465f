"""The lock of a run folder: one process trains a run, also where several machines share the disk.

Who holds the lock has its file open under `flock`, and wrote into it who it is. Within one machine that is exact: the
system lets go of a flock when its process ends, however it ends. Between machines a flock may not reach, and there a
heartbeat decides: a thread gives the file a new modification time every `BEAT` seconds, and a lock that was silent for
`SILENCE` seconds may be taken over. The silence is the age of that time against that of a file made just now beside
it, so that the file system's own clock is the only one that counts, and no two machines' clocks are compared.

A process whose lock was taken over, because it was suspended for that long, finds another's name in the file when it
next wants to write (`Lock.check`), and ends without writing.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from transformer_mt.errors import UserError
from transformer_mt.system import launcher

BEAT = 30.0  # seconds
SILENCE = 300.0  # seconds: ten beats, and far above what a network file system may cache


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock, as it describes itself."""

    host: str
    boot: str  # of the system it runs under; containers of one machine share it
    pid: int
    started: str  # the process, since a number is given to another one later
    since: str
    slurm_job_id: str | None = None
    slurm_restart_count: int = 0  # how often that job was put back into the queue before

    @classmethod
    def me(cls) -> Holder:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")
        started = _started(os.getpid()) or ""
        return cls(
            socket.gethostname(),
            _boot(),
            os.getpid(),
            started,
            since,
            launcher.slurm_job_id(),
            launcher.slurm_restart_count(),
        )

    @classmethod
    def read(cls, content: bytes) -> Holder | None:
        """Who wrote this; None for an empty file, or for something else."""
        with suppress(ValueError, TypeError):
            return cls(**json.loads(content))
        return None

    def is_here(self) -> bool:
        """Whether it runs, or ran, on this machine. Where a system does not name its starts this is never known: its
        host's name may be another's too."""
        here = _boot()
        return bool(here and self.boot) and (self.boot == here or self.host == socket.gethostname())

    def was_earlier_start(self) -> bool:
        """Whether it ran in an earlier start of this SLURM job, which is over: a job runs once at a time."""
        return (
            None is not self.slurm_job_id == launcher.slurm_job_id()
            and self.slurm_restart_count < launcher.slurm_restart_count()
        )

    def is_alive(self) -> bool:
        """Whether the process is still there. On this machine only."""
        return self.boot == _boot() and _started(self.pid) == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since[:19]}"


class Lock:
    """One lock file. It stays when the lock is released, empty, since its name must not change hands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._me: Holder | None = None

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the lock. Raises `UserError` where another process does, or may still do."""
        with self.path.open("a+b", buffering=0) as file:
            file.seek(0)
            has_flock = try_flock(file)
            holder = Holder.read(file.read())
            if has_flock is False:
                raise UserError(f"{self._taken(holder)}; wait for it or stop it")
            if holder is not None:
                self._refuse_if_alive(holder, has_flock)
            self._me = Holder.me()
            file.truncate(0)
            file.write(json.dumps(asdict(self._me)).encode())
            ended = threading.Event()
            heartbeat = threading.Thread(target=self._beat, args=(file, ended), name="heartbeat", daemon=True)
            heartbeat.start()
            try:
                yield
            finally:
                ended.set()
                heartbeat.join()
                with suppress(OSError):
                    if self._is_mine(file):
                        file.truncate(0)
                self._me = None

    def check(self) -> None:
        """To be called before something is written: raises `UserError` where the lock, once held, was taken over."""
        if self._me is None:
            return
        with suppress(FileNotFoundError):
            holder = Holder.read(self.path.read_bytes())
            if holder == self._me:
                return
            if holder is not None:
                raise UserError(f"{self._taken(holder)}, which took over; this process stops without writing")
        raise UserError(f"{self.path}: is no longer this process's lock; it stops without writing")

    def _refuse_if_alive(self, holder: Holder, has_flock: bool | None) -> None:
        if holder.was_earlier_start():
            return
        if holder.is_here():
            if has_flock is None and holder.is_alive():
                raise UserError(f"{self._taken(holder)}; wait for it or stop it")
            return
        silent = self._silence()
        if silent < SILENCE:
            at = datetime.fromtimestamp(time.time() + SILENCE - silent).strftime("%H:%M:%S")
            raise UserError(
                f"{self._taken(holder)}, and gave a sign of life {max(0.0, silent):.0f} seconds ago;\n"
                f"if there is no other, the same command takes its lock over from {at} on ({SILENCE:.0f} seconds of "
                f"silence);\nif you know that it has ended, delete {self.path}"
            )

    def _silence(self) -> float:
        """Seconds since the last beat, by the file system's own clock."""
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=".lock.", suffix=".tmp") as probe:
            return os.fstat(probe.fileno()).st_mtime - self.path.stat().st_mtime

    def _beat(self, file: BinaryIO, ended: threading.Event) -> None:
        """The heartbeat: a new time needs no room on the disk; what fails is tried again at the next beat."""
        while not ended.wait(BEAT):
            with suppress(OSError):
                if self._is_mine(file):
                    os.utime(file.fileno())

    def _is_mine(self, file: BinaryIO) -> bool:
        return Holder.read(os.pread(file.fileno(), 4096, 0)) == self._me

    def _taken(self, holder: Holder | None) -> str:
        return f"{self.path.parent}: another process is training this run{f' ({holder})' if holder else ''}"


def try_flock(file: BinaryIO) -> bool | None:
    """Whether the flock is ours now; None where the file system has none."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            return None
        if isinstance(error, BlockingIOError):
            return False
        raise
    return True


def _boot() -> str:
    """What this start of this system is called; empty where it does not say."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the system did; None where there is no such process, or only its remains.

    proc(5): field 3 is the state, field 22 the start time; field 2, in brackets, may itself hold blanks and brackets.
    """
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None
