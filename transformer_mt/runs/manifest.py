"""Manifests: the size and SHA-256 of every file of a folder, in a JSON file that holds its own checksum.

SHA-256 runs at about 1 GB/s on processors with instructions for it, so that verifying costs little beside reading.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

BLOCK = 1 << 20  # bytes per read
END = b"\n}\n"  # last bytes of every manifest


class CorruptFileError(Exception):
    """A file is missing, unreadable or changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


def write_manifest(path: Path, content: dict[str, Any]) -> None:
    """Write `content` with the size and checksum of each file in the same folder, and a checksum of the manifest."""
    names = sorted(file.name for file in path.parent.iterdir() if file != path)
    files = {name: _size_and_checksum(path.with_name(name)) for name in names}
    path.write_text(_render({**content, "files": files}), "utf-8")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest, with `files`. Raises `CorruptFileError` if it is not as it was written."""
    if not path.is_file():
        raise CorruptFileError(path, "is missing")
    try:
        text = path.read_bytes()
    except OSError as error:  # a bad sector
        raise CorruptFileError(path, f"cannot be read ({error.strerror})") from None
    if not text.endswith(END):
        raise CorruptFileError(path, f"was truncated (the end is missing after {len(text):,} bytes)")
    try:
        content: dict[str, Any] = json.loads(text)
        content.pop("sha256")
        if _render(content).encode() == text:
            return content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise CorruptFileError(path, "its checksum does not match")


def verify_manifest(path: Path, *names: str) -> None:
    """Compare the files of the folder (all, or the named ones) with the manifest. Raises `CorruptFileError`."""
    files = read_manifest(path)["files"]
    for name in names or files:
        if name not in files:
            raise CorruptFileError(path.with_name(name), f"is not listed in {path.name}")
        _verify_file(path.with_name(name), files[name])


def _verify_file(path: Path, expected: dict[str, Any]) -> None:
    if not path.is_file():
        raise CorruptFileError(path, "is missing")
    try:
        n_bytes = path.stat().st_size
        if n_bytes < expected["bytes"]:
            raise CorruptFileError(path, f"was truncated ({n_bytes:,} of {expected['bytes']:,} bytes)")
        found = _size_and_checksum(path)
    except OSError as error:
        raise CorruptFileError(path, f"cannot be read ({error.strerror})") from None
    if found != expected:
        raise CorruptFileError(path, "its checksum does not match")


def _size_and_checksum(path: Path) -> dict[str, Any]:
    digest, n_bytes = sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            n_bytes += len(block)
    return {"bytes": n_bytes, "sha256": digest.hexdigest()}


def _render(content: dict[str, Any]) -> str:
    """Return the text of a manifest. The last entry is the checksum of the others."""
    digest = sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}, indent=1) + "\n"
