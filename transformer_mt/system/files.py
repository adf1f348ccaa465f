"""Writing to disk: whole or not at all, and what happens where there is no room."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from transformer_mt.errors import Interrupted, UserError
from transformer_mt.system.logging import log_rank0
from transformer_mt.system.stop_signals import StopSignals

WhenFull = Literal["exit", "wait"]

LITTLE = 1 << 20  # bytes: more than an entry of the log with its pictures
LOOK_AGAIN = 5.0  # seconds
ABANDONED = 24 * 3600.0  # seconds


# --- whole or not at all ----------------------------------------------------------------------------------------------


@contextmanager
def atomic_file(path: Path) -> Generator[Path]:
    """Yield a path beside `path` to write to; when all went well it takes `path`'s place, else it goes."""
    beside = _name_beside(path)
    try:
        yield beside
        _flush(beside)
        beside.replace(path)
        _flush(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Generator[Path]:
    """The same for a folder and what is written into it."""
    with _folder_beside(path) as beside:
        yield beside
        _flush_folder(beside)
        if path.exists():
            old = path.with_name(f".{path.name}.old.tmp")
            path.rename(old)  # killed here, it gets its name back by `clear`
            beside.rename(path)
            delete_folder(old)
        else:
            beside.rename(path)


@contextmanager
def atomic_new_folder(path: Path) -> Generator[Path]:
    """The same for a folder that takes nobody's place. Raises `UserError` where something has the name by then."""
    with _folder_beside(path) as beside:
        yield beside
        _flush_folder(beside)
        if path.exists() or path.is_symlink():
            raise UserError(f"{path}: exists by now; name a new folder")
        beside.rename(path)


@contextmanager
def atomic_shared_folder(path: Path) -> Generator[Path]:
    """The same for a folder that has the same content whoever makes it: the first of several processes names it. Raises
    `UserError` where the disk is full, or nothing may be written there."""
    try:
        with _folder_beside(path) as beside:
            yield beside
            _flush_folder(beside)
            try:
                beside.rename(path)
            except OSError:
                if not path.exists():
                    raise
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(
                f"{path.parent.absolute()}: cannot be written ({error.strerror}); name another folder "
                "(data.cache_dir), or begin where you may write"
            ) from None
        if error.filename is not None or not _is_full(error, path.parent, n_bytes=1):
            raise
        raise UserError(f"{path.parent}: the disk is full; make room, or name another folder") from None


@contextmanager
def _folder_beside(path: Path) -> Generator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _name_beside(path)
    beside.mkdir()
    try:
        yield beside
        _flush(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _name_beside(path: Path) -> Path:
    """A name that nobody else takes: on other hosts, pids are others'."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def write_text(path: Path, text: str) -> None:
    """Replace a text file, or leave it as it was."""
    with atomic_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str) -> None:
    """Add to the end of a text file, or leave it as it was."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            if file.write(text.encode()) < len(text.encode()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(before)
            raise


def delete_folder(path: Path) -> None:
    """In one stroke for whoever looks: the folder loses its name before its files. NFS keeps files that someone still
    reads: what is left then, `clear` takes away."""
    doomed = _name_beside(path)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def clear(folder: Path) -> None:
    """Take away what a killed process had begun to write below a folder."""
    for leftover in list(folder.rglob(".*.tmp")):
        replaced = leftover.with_name(leftover.name[1:].removesuffix(".old.tmp"))
        if leftover.name.endswith(".old.tmp") and not replaced.exists():
            leftover.rename(replaced)
        elif leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Take away what killed processes, of whatever host, had begun beside the shared folders in this one and nobody
    has touched for a day."""
    for beside in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.\d+-[0-9a-f]{8}\.tmp", beside.name) and beside.is_dir():
            with suppress(OSError):  # its owner is taking it away
                if time.time() - max(path.stat().st_mtime for path in (beside, *beside.iterdir())) > ABANDONED:
                    shutil.rmtree(beside, ignore_errors=True)


def _flush_folder(folder: Path) -> None:
    for file in folder.iterdir():
        _flush(file)
    _flush(folder)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- room -------------------------------------------------------------------------------------------------------------


def write_patiently(write: Callable[[], None], place: Path, n_bytes: int, when_full: WhenFull, what: str) -> None:
    """Call `write`, which needs so many bytes on the disk of a folder and leaves nothing behind when it fails.

    Where there is no room, raises `UserError`, or says so once and looks again until there is; a stop signal ends the
    wait with `Interrupted`. Other errors of `write` are raised as they are.
    """
    waiting = False
    while True:
        if free(place) >= n_bytes:
            try:
                write()
            except Exception as error:
                if not _is_full(error, place, n_bytes):
                    raise
            else:
                break
        why = f"{place}: the disk is full: {what} needs {size(n_bytes)}, and {_lack(n_bytes - free(place))}"
        if when_full == "exit":
            raise UserError(
                f"{why}\nwhat was saved is intact: make room, and the same command goes on from the last checkpoint\n"
                "(keep.when_full=wait waits for room instead)"
            ) from None
        if not waiting:
            log_rank0(f"{why}; waiting until there is room")
        waiting = True
        if number := StopSignals.number:
            what_next = "and not saved, for want of room on the disk; the same command goes on from the last checkpoint"
            raise Interrupted(number, f" {what_next}")
        time.sleep(LOOK_AGAIN)
    if waiting:
        log_rank0(f"{place}: there is room again; going on")


def real(path: Path) -> Path:
    """Where a path leads: what a link points to is written, not the link."""
    return Path(os.path.realpath(path))


def free(place: Path) -> int:
    """Bytes that may still be written to the disk of a folder."""
    return shutil.disk_usage(place).free


def used(folder: Path) -> int:
    """Bytes of the files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def size(n_bytes: float) -> str:
    """12.3 MB."""
    for unit in ("kB", "MB", "GB"):
        n_bytes /= 1000
        if n_bytes < 1000:
            return f"{n_bytes:.1f} {unit}"
    return f"{n_bytes / 1000:,.1f} TB"


def _is_full(error: Exception, place: Path, n_bytes: int) -> bool:
    """Whether a write of so many bytes failed for want of room. Libraries do not always pass the system's word on."""
    numbers = errno.ENOSPC, errno.EDQUOT
    no_room = isinstance(error, OSError) and error.errno in numbers
    return no_room or any(f"os error {number})" in str(error) for number in numbers) or free(place) < n_bytes


def _lack(n_bytes: int) -> str:
    if n_bytes <= 0:
        return "a quota of bytes or of files is used up"
    return f"{size(n_bytes)} ({n_bytes:,} bytes) are missing"
