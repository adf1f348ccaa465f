"""Files that one process makes while others wait: who makes them, and what the others say when the maker dies."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.system import launcher, shared_work
from transformer_mt.system.files import write_text
from transformer_mt.system.shared_work import make_once


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_work, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(shared_work, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(shared_work, "DEAD_SECONDS", 1.0)
    monkeypatch.setattr(shared_work, "ABSENT_SECONDS", 0.8)


@pytest.fixture
def as_rank_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "rank", lambda: 1)


MAKER = """
import sys, time
from pathlib import Path
from transformer_mt.system import shared_work

shared_work.BEAT_SECONDS = 0.02
path = Path(sys.argv[1])

def make():
    print("making", flush=True)
    time.sleep(float(sys.argv[2]))
    path.write_text("theirs")

shared_work.make_once(path, make)
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
    make_once(path, partial(write, path))
    make_once(path, never)
    assert [file.name for file in path.parent.iterdir()] == ["entry"]


def test_second_process_waits_for_the_first(path: Path, other_process: subprocess.Popen[str]) -> None:
    make_once(path, never)
    assert path.read_text() == "theirs"
    assert other_process.wait() == 0
    assert [file.name for file in path.parent.iterdir()] == ["entry"]


def test_second_process_says_whom_it_waits_for(
    path: Path,
    other_process: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shared_work, "REMIND_SECONDS", 0.1)
    make_once(path, never)
    assert f"data: waiting for process {other_process.pid} on " in capsys.readouterr().err


@pytest.mark.usefixtures("killed_process")
def test_killed_maker_is_replaced(path: Path) -> None:
    assert (path.parent / ".entry.maker").exists()
    make_once(path, partial(write, path))
    assert path.read_text() == "ours"
    assert [file.name for file in path.parent.iterdir()] == ["entry"]


@pytest.mark.usefixtures("as_rank_1")
def test_other_ranks_wait_and_never_make_a_file(path: Path, other_process: subprocess.Popen[str]) -> None:
    make_once(path, never)
    assert path.read_text() == "theirs"


@pytest.mark.usefixtures("as_rank_1")
def test_other_ranks_end_when_the_maker_is_killed(path: Path, killed_process: subprocess.Popen[str]) -> None:
    start = time.monotonic()
    with pytest.raises(UserError, match=rf"entry: process {killed_process.pid} on .*, has given no sign of life"):
        make_once(path, never)
    assert time.monotonic() - start < 5


@pytest.mark.usefixtures("as_rank_1")
def test_other_ranks_end_when_nobody_makes_the_file(path: Path) -> None:
    with pytest.raises(
        UserError, match=r"nobody has been making it .*\nset it to a folder on a disk that all machines"
    ):
        make_once(path, never)


def test_maker_of_another_machine_is_left_in_peace(path: Path) -> None:
    """File locks of some disks do not reach other machines."""
    path.parent.mkdir()
    sign = path.with_name(".entry.maker")

    def make_elsewhere() -> None:
        for beat in range(30):
            write_text(sign, json.dumps({"host": "elsewhere", "pid": 1, "beat": beat}))
            time.sleep(0.05)
        path.write_text("theirs")

    sign.write_text(json.dumps({"host": "elsewhere", "pid": 1, "beat": 0}), encoding="utf-8")
    thread = threading.Thread(target=make_elsewhere)
    thread.start()
    make_once(path, never)
    thread.join()
    assert path.read_text() == "theirs"


def test_dead_maker_of_another_machine_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(".entry.maker").write_text(json.dumps({"host": "elsewhere", "pid": 1, "beat": 7}), encoding="utf-8")
    make_once(path, partial(write, path))
    assert path.read_text() == "ours"


def test_error_of_the_maker_leaves_no_files(path: Path) -> None:
    def fail() -> None:
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        make_once(path, fail)
    assert not [*path.parent.iterdir()]
    make_once(path, partial(write, path))
    assert [file.name for file in path.parent.iterdir()] == ["entry"]
