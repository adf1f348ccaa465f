"""Space on a disk: free bytes, sizes of folders, and their names in messages."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from transformer_mt.errors import UserError
from transformer_mt.system.files import walk


def find_existing_parent(path: Path) -> Path:
    """Return the first that exists of a path and its parents: the place where the path would be created."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def read_free_disk_bytes(folder: Path) -> int:
    """Return the bytes that can still be written to the disk of a folder."""
    return shutil.disk_usage(folder).free


def check_cache_space(cache_dir: Path, needed: float, what: str) -> None:
    """Raise `UserError` if the disk of `data.cache_dir` has no space for `what`, which needs so many bytes."""
    free = read_free_disk_bytes(find_existing_parent(cache_dir))
    if needed > free:
        raise UserError(
            f"{cache_dir.absolute()}: {what} need about {format_bytes(needed)}, and {format_bytes(free)} are free;\n"
            "make room, or set data.cache_dir to a folder on a larger disk"
        )


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
