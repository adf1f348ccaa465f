"""Flat arrays on disk that grow by appending, with checkpoints from which a killed writer resumes.

The folder `.NAME.partial` holds one raw file per array and `progress.json`, the checkpoint. At the end it gets a
description and the name NAME. The description lists the sizes of the files, so that half-copied folders are detected.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from transformer_mt.system.files import delete_folder, report_full_disk, write_text

SAVE_SECONDS = 10.0
DESCRIPTION = "arrays.json"
PROGRESS = "progress.json"

State = dict[str, Any]


class ArrayWriter:
    """Appends to the arrays of a folder. `state` is what the last checkpoint recorded, or {} for a new folder."""

    def __init__(self, path: Path, dtypes: Mapping[str, Any]) -> None:
        """Open the arrays `dtypes`, and resume if a killed writer has left the same ones."""
        self._path, self._folder = path, path.with_name(f".{path.name}.partial")
        self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        progress = self._read_progress()
        if not progress:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
        self.state: State = progress.get("state", {})
        sizes: dict[str, int] = progress.get("sizes", {})
        self._files = {name: (self._folder / name).open("ab") for name in self._dtypes}
        for name, file in self._files.items():
            file.truncate(sizes.get(name, 0))
            file.seek(0, os.SEEK_END)
        self._saved = time.monotonic()

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Append values to an array. Raises `UserError` if the disk is full."""
        with report_full_disk(self._path):
            self._files[name].write(values.astype(self._dtypes[name], copy=False).tobytes())

    def save_progress(self, state: State) -> None:
        """Record the arrays and a state every few seconds."""
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            write_text(self._folder / PROGRESS, json.dumps({"sizes": self._flush(), "state": state}))
            self._saved = time.monotonic()

    def finish(self, info: State) -> None:
        """Give the folder its final name, with `info` in its description. A damaged folder is replaced."""
        sizes = self._flush()
        for file in self._files.values():
            file.close()
        dtypes = {name: dtype.name for name, dtype in self._dtypes.items()}
        write_text(self._folder / DESCRIPTION, json.dumps({"sizes": sizes, "dtypes": dtypes, **info}))
        (self._folder / PROGRESS).unlink(missing_ok=True)
        if self._path.exists():
            delete_folder(self._path)
        self._folder.rename(self._path)

    def _flush(self) -> dict[str, int]:
        """Write everything to the disk, and return the sizes."""
        with report_full_disk(self._path):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def _read_progress(self) -> dict[str, Any]:
        """Return the checkpoint, or {} without a usable one."""
        try:
            progress = json.loads((self._folder / PROGRESS).read_text(encoding="utf-8"))
            sizes = cast(dict[str, int], progress["sizes"])
            is_whole = sizes.keys() == self._dtypes.keys() and all(
                (self._folder / name).stat().st_size >= size for name, size in sizes.items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        return progress if is_whole else {}


def is_complete(path: Path) -> bool:
    """Return whether a folder of arrays is whole. A half-copied one is not."""
    try:
        sizes = cast(dict[str, int], read_description(path)["sizes"])
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def read_description(path: Path) -> State:
    """Return the `info` of `ArrayWriter.finish`, with the sizes and types of the arrays."""
    return json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))


def map_array(path: Path, name: str) -> NDArray[Any]:
    """Map an array of a folder into memory."""
    description = read_description(path)
    dtype = np.dtype(description["dtypes"][name])
    if description["sizes"][name] == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path / name, dtype, mode="r")
