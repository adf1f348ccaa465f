"""Assertions and readers that several test modules share. Fixtures are in conftest.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Tmt = Callable[..., "CompletedProcess[str]"]
"""The type of the fixture `tmt`."""


def assert_succeeded(done: CompletedProcess[str]) -> str:
    """Check that the command exited with status 0, and return its standard output."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_user_error(done: CompletedProcess[str], *parts: str) -> None:
    """Check for exit status 2 and a final message of at most 4 lines that contains each of `parts`."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    message = re.split(r"^(?=tmt[ \w]*: )", done.stderr, maxsplit=1, flags=re.MULTILINE)[-1]
    assert message.startswith("tmt")
    assert 1 <= len(message.strip().split("\n")) <= 4
    for part in parts:
        assert part in message


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder. Keys are paths relative to the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
