"""The lock of a run folder: one process at a time trains a run."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from transformer_mt.errors import UserError
from transformer_mt.system.files import write_text

LOCK_FILE = ".lock"  # not deleted after the release, because then two processes could hold it
HOLDER_FILE = ".lock.json"  # names the process that holds the lock, for the error message only


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Hold the lock of a run folder. Raises `UserError` if another process holds it.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    lock, holder = FileLock(folder / LOCK_FILE), folder / HOLDER_FILE
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UserError(
            f"{folder}: another process is training this run{_format_holder(holder)}; wait for it or stop it"
        ) from None
    try:
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        write_text(holder, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a run folder. A killed process does not."""
    if not (folder / HOLDER_FILE).exists():
        return False
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(blocking=False)
    except OSError:  # held, or the folder belongs to another user
        return True
    lock.release()
    return False


def _format_holder(holder: Path) -> str:
    """Return " (process P on HOST since TIME)", or "" if the holder has not written its file yet."""
    try:
        found = json.loads(holder.read_text(encoding="utf-8"))
        return f" (process {found['pid']} on {found['host']} since {found['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
