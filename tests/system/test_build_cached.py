"""Cache entries that one process makes while others wait for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.system import files
from transformer_mt.system.files import build_cached

MAKER = """
import sys, time
from pathlib import Path
from transformer_mt.system.files import build_cached

path = Path(sys.argv[1])

def make():
    print("making", flush=True)
    time.sleep(float(sys.argv[2]))
    path.write_text("theirs")

build_cached(path, make)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "entry"


def start_maker(path: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKER, str(path), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "making\n"
    return process


@pytest.fixture
def other_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that makes the path, and takes half a second."""
    with start_maker(path, 0.5) as process:
        yield process
        process.kill()


@pytest.fixture
def killed_process(path: Path) -> subprocess.Popen[str]:
    """Another process that was killed while it made the path."""
    with start_maker(path, 60) as process:
        process.kill()
    return process


def write(path: Path) -> None:
    path.write_text("ours")


def never() -> None:
    pytest.fail("it is made already")


def test_file_is_made_once(path: Path) -> None:
    build_cached(path, partial(write, path))
    build_cached(path, never)
    assert [file.name for file in path.parent.iterdir()] == ["entry"]


def test_second_process_logs_that_it_waits(
    path: Path,
    other_process: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(files, "WAITING_SECONDS", 0.1)
    build_cached(path, never)
    assert f"data: waiting for another process, which makes {path}" in capsys.readouterr().err
    assert other_process.wait() == 0


@pytest.mark.usefixtures("killed_process")
def test_killed_process_is_replaced(path: Path) -> None:
    build_cached(path, partial(write, path))
    assert path.read_text() == "ours"
    assert [file.name for file in path.parent.iterdir()] == ["entry"]


def test_an_error_leaves_no_files(path: Path) -> None:
    def fail() -> None:
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        build_cached(path, fail)
    assert not [*path.parent.iterdir()]
    build_cached(path, partial(write, path))
    assert [file.name for file in path.parent.iterdir()] == ["entry"]
