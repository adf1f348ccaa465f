"""Atomic files and folders.

A file or folder is written under a temporary name beside its final one, flushed to the disk, and then renamed. A
reader finds the old content or the new one, never a part, even if the writer is killed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import chain
from pathlib import Path

from transformer_mt.errors import UserError
from transformer_mt.system.log import log_rank0

STALE_SECONDS = 24 * 3600.0
"""Age at which a temporary folder in a shared folder is no longer in use."""
MAX_RECORD_BYTES = 16 << 20
"""Largest file of a run that describes something, such as `run.json`. They have some kilobytes."""
WRITE_ERROR_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
}
"""Remedies by `errno`: full disk, exhausted quota, and file above the size limit."""
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Values of `errno` for a folder that may not be written to."""
CACHE_ADVICE = "set data.cache_dir to another folder, or start in a folder that you may write to"
WAITING_SECONDS = 60.0
"""Time between messages of a process that waits for another one."""

# --- atomic files -----------------------------------------------------------------------------------------------------


@contextmanager
def atomic_file(path: Path) -> Generator[Path]:
    """Yield a temporary path. On success it replaces `path`; after an error it is deleted.

    Raises `UserError` if the disk is full.
    """
    temporary = _temporary_path(path)
    with report_write_errors(path):
        try:
            yield temporary
            _fsync(temporary)
            temporary.replace(path)
            _fsync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a UTF-8 text file atomically. Raises `UserError` if the disk is full."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str) -> None:
    """Append to a UTF-8 text file, all or nothing. Raises `UserError` if the disk is full."""
    content = text.encode()
    with report_write_errors(path), path.open("ab", buffering=0) as file:
        length = file.tell()
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a full disk writes only a part
        except OSError:
            file.truncate(length)
            raise


@contextmanager
def report_write_errors(path: Path) -> Generator[None]:
    """Turn a write error with a known remedy, which often names no path, into a `UserError` that names it."""
    try:
        yield
    except OSError as error:
        if error.errno not in WRITE_ERROR_REMEDIES:
            raise
        remedy = WRITE_ERROR_REMEDIES[error.errno]
        raise UserError(
            f"{path}: cannot be written: {error.strerror}; {remedy} and run the same command again"
        ) from None


# --- atomic folders ---------------------------------------------------------------------------------------------------


@contextmanager
def atomic_folder(path: Path) -> Generator[Path]:
    """Yield a temporary folder. On success it replaces `path`; after an error it is deleted."""
    with temporary_folder(path) as temporary:
        yield temporary
        _fsync_folder(temporary)
        old = path.with_name(f".{path.name}.old.tmp")
        if replaces := path.exists():
            path.rename(old)  # after a kill here, `remove_leftovers` restores it
        temporary.rename(path)
        if replaces:
            delete_folder(old)


@contextmanager
def atomic_new_folder(path: Path) -> Generator[Path]:
    """Like `atomic_folder`, but never replace anything.

    Raises `UserError` if `path` exists by the time of the renaming, or if the disk is full.
    """
    with report_write_errors(path), temporary_folder(path) as temporary:
        yield temporary
        _fsync_folder(temporary)
        if path.exists() or path.is_symlink():
            raise UserError(f"{path}: another process has made it in the meantime; pass a new folder")
        temporary.rename(path)


def build_cached(path: Path, make: Callable[[], None], is_valid: Callable[[], bool] | None = None) -> None:
    """Call `make` unless a cache entry exists, and is valid. If another process makes it now, wait for that one.

    A file lock ends with its process, so the next call replaces a process that was killed. Raises `UserError` if the
    folder is read-only.
    """
    is_valid = is_valid or path.exists
    if is_valid():
        return
    from filelock import FileLock, Timeout  # only here, because the import takes time

    with report_read_only(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"), mode=0o666)
        while True:
            try:
                lock.acquire(timeout=WAITING_SECONDS)
                break
            except Timeout:
                log_rank0(f"data: waiting for another process, which makes {path}")
        try:
            if not is_valid():
                make()
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def build_cached_folder(path: Path, fill: Callable[[Path], object], is_valid: Callable[[], bool] | None = None) -> None:
    """Make a folder as `build_cached` makes a file: `fill` writes its files to a temporary folder.

    A folder that is not valid is replaced. Raises `UserError` if the disk is full or read-only.
    """

    def make() -> None:
        with report_write_errors(path), temporary_folder(path) as temporary:
            fill(temporary)
            _fsync_folder(temporary)
            if is_valid is not None and (path.exists() or path.is_symlink()) and not is_valid():
                delete_folder(path)
            try:
                temporary.rename(path)
            except OSError:
                if not path.exists():  # without locks on a network, another process may have made it
                    raise

    build_cached(path, make, is_valid)


@contextmanager
def report_read_only(folder: Path, advice: str = CACHE_ADVICE) -> Generator[None]:
    """Turn the error of a folder that cannot be written into a `UserError` that names it."""
    try:
        yield
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        raise UserError(f"{folder.absolute()}: cannot be written: {error.strerror}; {advice}") from None


@contextmanager
def temporary_folder(path: Path) -> Generator[Path]:
    """Yield a new folder beside `path`, and delete it at the end. `remove_stale_folders` does so after a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    try:  # inside the block, because a signal may arrive right after mkdir
        try:
            temporary.mkdir()
        except OSError as error:
            error.filename = str(path)  # the user does not know the temporary name
            raise
        yield temporary
        _fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def delete_folder(path: Path) -> None:
    """Rename a folder, then delete it, so that readers find either all of its files or no folder.

    If the path is a link, only the link is deleted. NFS keeps files that are still open: `remove_leftovers` deletes
    those later.
    """
    doomed = _temporary_path(path)
    path.rename(doomed)
    _delete(doomed)


def _delete(path: Path) -> None:
    """Delete a file, a folder, or a link without the folder that it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield everything below a folder. Links are not followed, and folders that cannot be read are skipped.

    Unlike `os.walk`, it has no recursion, so that the depth of the folders is not limited.
    """
    pending: list[str | Path] = [folder]
    while pending:
        with suppress(OSError):  # deleted meanwhile, or not readable
            for entry in [*os.scandir(pending.pop())]:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def find_link_out(folder: Path) -> Path | None:
    """Return a link below a folder that leads out of it, or None. The folder itself may be a link."""
    root = folder.resolve()
    for entry in walk(folder):
        if entry.is_symlink():
            path = Path(entry.path)
            with suppress(OSError, RuntimeError):  # a circle of links
                if path.resolve().is_relative_to(root):
                    continue
            return path
    return None


def open_regular_file(path: Path) -> BufferedReader:
    """Open a file that somebody else may have made. Raises `OSError` for a pipe or a device, without waiting for it."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is a pipe or a device, not a regular file; remove it", str(path))
    return file


def read_bytes(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a regular file. Raises `OSError` for any other, or one with more bytes, whatever size it claims to have."""
    with open_regular_file(path) as file:
        is_larger = os.fstat(file.fileno()).st_size > max_bytes
        content = b"" if is_larger else file.read(max_bytes + 1)
    if is_larger or len(content) > max_bytes:
        raise OSError(errno.EINVAL, f"is larger than {format_bytes(max_bytes)}; restore it, or delete it", str(path))
    return content


def refuse_special_files(folder: Path) -> None:
    """Raise `UserError` if a folder has a pipe or a device, which could be read without end."""
    for entry in walk(folder):
        with suppress(OSError):  # deleted meanwhile, or a link to nothing
            mode = entry.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UserError(f"{entry.path}: is a pipe or a device, not a regular file; remove it")


# --- temporary names --------------------------------------------------------------------------------------------------


def _temporary_path(path: Path) -> Path:
    """Return a unique path in the same folder. The random part avoids clashes between hosts."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files and folders below a folder that no other process writes to. Links are not followed.

    Restores a folder that a killed process was replacing.
    """
    for leftover in [Path(entry.path) for entry in walk(folder) if re.fullmatch(r"\..*\.tmp", entry.name)]:
        replaced = leftover.with_name(leftover.name[1:].removesuffix(".old.tmp"))
        if leftover.name.endswith(".old.tmp") and leftover.exists() and not replaced.exists():
            leftover.rename(replaced)
        else:
            _delete(leftover)


def remove_stale_folders(folder: Path) -> None:
    """Delete temporary folders in a cache, and in its folders, that nobody has changed for a long time."""
    for temporary in chain(folder.glob(".*"), folder.glob("*/.*")):
        if re.fullmatch(r"\..+\.\d+-[0-9a-f]{8}\.tmp", temporary.name) and temporary.is_dir():
            with suppress(OSError):  # its owner is deleting it right now
                newest = max(path.stat().st_mtime for path in (temporary, *temporary.iterdir()))
                if time.time() - newest > STALE_SECONDS:
                    shutil.rmtree(temporary, ignore_errors=True)


def _fsync_folder(folder: Path) -> None:
    for file in folder.iterdir():
        _fsync(file)
    _fsync(folder)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_existing_parent(path: Path) -> Path:
    """Return the first that exists of a path and its parents: the place where the path would be created."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def measure_folder(folder: Path) -> int:
    """Return the total size of the files below a folder. Files that are deleted meanwhile are not counted."""
    total = 0
    for entry in walk(folder):
        with suppress(OSError):
            if not entry.is_dir():
                total += entry.stat().st_size
    return total


def format_bytes(n_bytes: float) -> str:
    """Format a number of bytes, such as "12.3 MB"."""
    for unit in ("kB", "MB", "GB"):
        n_bytes /= 1000
        if n_bytes < 1000:
            return f"{n_bytes:.1f} {unit}"
    return f"{n_bytes / 1000:,.1f} TB"
