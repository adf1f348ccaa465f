"""Files of a shared folder, such as a cache, that one process makes while the others wait for them.

The maker holds a file lock, and rewrites a small *sign of life* beside the file every few seconds. Waiting processes
poll for the file. They compare the content of the sign with their own clock, so that this also works between machines
whose clocks differ or whose locks are local. A maker that is killed leaves its sign, which then no longer changes.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from transformer_mt.errors import UserError
from transformer_mt.system import launcher
from transformer_mt.system.files import report_read_only_folder, write_text
from transformer_mt.system.logging import format_duration, log

BEAT_SECONDS = 5.0  # between two signs of life
POLL_SECONDS = 0.5
DEAD_SECONDS = 120.0  # without a new sign, after which the maker is dead; NFS may show a file a minute late
ABSENT_SECONDS = 600.0  # without any sign, after which nobody makes the file
REMIND_SECONDS = 60.0  # between messages of a waiting process


def make_once(path: Path, make: Callable[[], None], is_complete: Callable[[Path], bool] = Path.exists) -> None:
    """Return once `path` is complete. Call `make` for that, or wait for the process that makes it.

    Of several processes that train together, only rank 0 makes files. If a maker was killed, another process, or the
    next start, calls `make` again.

    Raises:
        UserError: Nobody makes the file any more, or its folder is read-only.
    """
    if is_complete(path):
        return
    if launcher.rank() != 0:
        _wait_for_rank0(path, is_complete)
        return
    watch = _Watch(path)
    with report_read_only_folder(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"), mode=0o666)
        while not is_complete(path):
            if watch.sees_other_host() or not _acquire(lock):
                watch.remind()
                time.sleep(POLL_SECONDS)
                continue
            try:
                if not is_complete(path):
                    with _signs_of_life(path):
                        make()
            finally:
                Path(lock.lock_file).unlink(missing_ok=True)
                lock.release()


def _acquire(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True


def _wait_for_rank0(path: Path, is_complete: Callable[[Path], bool]) -> None:
    watch = _Watch(path)
    while not is_complete(path):
        watch.remind()
        watch.check()
        time.sleep(POLL_SECONDS)


# --- signs of life ----------------------------------------------------------------------------------------------------


def _sign_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.maker")


@contextmanager
def _signs_of_life(path: Path) -> Generator[None]:
    """Rewrite the sign of life in a thread. The sign is deleted at the end, also after an error."""
    sign, stop = _sign_path(path), threading.Event()

    def write(beat: int) -> None:
        with suppress(OSError, UserError):  # a full disk also stops the maker, with a message of its own
            content = {"host": socket.gethostname(), "pid": os.getpid(), "beat": beat}
            write_text(sign, json.dumps(content))

    def beat() -> None:
        number = 1
        while not stop.wait(BEAT_SECONDS):
            write(number)
            number += 1

    write(0)
    thread = threading.Thread(target=beat, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sign.unlink(missing_ok=True)


class _Watch:
    """The sign of life of the maker of a file, as a waiting process sees it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sign: str = ""
        self._sign_time = self._reminded = time.monotonic()
        self._look()

    def sees_other_host(self) -> bool:
        """Return whether a process of another machine may be alive. A file lock may not reach that machine."""
        self._look()
        return bool(self._sign) and self._maker()["host"] != socket.gethostname() and self._silence() <= DEAD_SECONDS

    def check(self) -> None:
        """Raise `UserError` if the maker is dead, or there has been none for a long time."""
        self._look()
        silence = self._silence()
        if silence <= (DEAD_SECONDS if self._sign else ABSENT_SECONDS):
            return
        if self._sign:
            raise UserError(
                f"{self._path}: {self._describe_maker()}, which was making it, has given no sign of life for "
                f"{format_duration(silence)};\nsee its message, and start the training again: what is finished is kept"
            )
        raise UserError(
            f"{self._path}: nobody has been making it for {format_duration(silence)}; rank 0 must reach the same "
            "data.cache_dir:\nset it to a folder on a disk that all machines share"
        )

    def remind(self) -> None:
        """Log once a minute what this process waits for. Other ranks are silent, because rank 0 logs its progress."""
        if launcher.rank() == 0 and time.monotonic() - self._reminded >= REMIND_SECONDS:
            self._reminded = time.monotonic()
            log(f"data: waiting for {self._describe_maker()}, which makes {self._path}")

    def _look(self) -> None:
        try:
            sign = _sign_path(self._path).read_text(encoding="utf-8")
        except OSError:
            sign = ""
        if sign != self._sign:
            self._sign, self._sign_time = sign, time.monotonic()

    def _silence(self) -> float:
        return time.monotonic() - self._sign_time

    def _maker(self) -> dict[str, Any]:
        return json.loads(self._sign)

    def _describe_maker(self) -> str:
        return f"process {self._maker()['pid']} on {self._maker()['host']}" if self._sign else "another process"
