"""Writing to disk: files and folders appear whole or not at all (trap 40), and a full disk is answered."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from transformer_mt.errors import Interrupted, UserError
from transformer_mt.system import files
from transformer_mt.system.files import (
    append_text,
    atomic_file,
    atomic_folder,
    atomic_new_folder,
    atomic_shared_folder,
    clear,
    delete_folder,
    remove_abandoned,
    write_patiently,
    write_text,
)
from transformer_mt.system.stop_signals import StopSignals


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with atomic_file(path) as beside:
        beside.write_text("new")
        assert beside.parent == path.parent
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as beside:
        beside.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_failure_before_there_was_a_file_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "\ud800")
    assert names(tmp_path) == []


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    for content in ("old", "new"):
        with atomic_folder(path) as beside:
            (beside / content).write_text(content)
            assert not (path / content).exists()
        assert names(path) == [content]
    assert names(path.parent) == ["folder"]


def test_a_new_folder_takes_nobodys_place(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with pytest.raises(UserError, match="exists by now; name a new folder"), atomic_new_folder(path) as beside:
        (beside / "late").touch()
        path.mkdir()
        (path / "precious").touch()
    assert names(path) == ["precious"]
    assert names(tmp_path) == ["folder"]


def test_of_several_who_make_a_shared_folder_the_first_one_names_it(tmp_path: Path) -> None:
    """As processes that read the same text at the same time, on whatever host."""
    path = tmp_path / "folder"
    with atomic_shared_folder(path) as slow, atomic_shared_folder(path) as quick:
        for beside, content in ((slow, "slow"), (quick, "quick")):
            (beside / content).touch()
    assert names(path) == ["quick"]
    assert names(tmp_path) == ["folder"]


def test_a_shared_folder_on_a_full_disk(tmp_path: Path) -> None:
    """Of what Python and its libraries say then, nothing names the place."""
    with (
        pytest.raises(UserError, match=f"{tmp_path}: the disk is full"),
        atomic_shared_folder(tmp_path / "folder") as beside,
    ):
        (beside / "ids").symlink_to("/dev/full")
        with (beside / "ids").open("wb", buffering=0) as file:
            file.write(b"1")
    assert names(tmp_path) == []
    with pytest.raises(FileNotFoundError), atomic_shared_folder(tmp_path / "folder"):
        (tmp_path / "missing").read_bytes()


def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with atomic_folder(path) as beside:
        (beside / "old").touch()
    with pytest.raises(ZeroDivisionError), atomic_folder(path) as beside:
        (beside / "half").touch()
        raise ZeroDivisionError
    assert names(path) == ["old"]
    assert names(tmp_path) == ["folder"]


def test_a_replaced_folder_that_lost_its_name_to_a_kill_gets_it_back(tmp_path: Path) -> None:
    """Killed after the old folder was renamed and before the new one was."""
    (tmp_path / ".folder.old.tmp").mkdir()
    (tmp_path / ".folder.old.tmp" / "old").touch()
    (tmp_path / ".folder.77.tmp").mkdir()
    clear(tmp_path)
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


def test_a_replaced_folder_whose_successor_is_there_goes(tmp_path: Path) -> None:
    for name, content in (("folder", "new"), (".folder.old.tmp", "old")):
        (tmp_path / name).mkdir()
        (tmp_path / name / content).touch()
    clear(tmp_path)
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["new"]


# --- room -------------------------------------------------------------------------------------------------------------


@contextmanager
def largest_file(n_bytes: int) -> Generator[None]:
    """No file may grow beyond this: a write ends in the middle, as on a full disk, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[0][1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])


@pytest.mark.parametrize("room", [8, 11])
def test_a_line_that_does_not_fit_is_not_torn(room: int, tmp_path: Path) -> None:
    append_text(tmp_path / "file", "größe 1\n")
    assert (tmp_path / "file").stat().st_size == 10
    with largest_file(room), pytest.raises(OSError, match=r"No space left|too large"):
        append_text(tmp_path / "file", "größe 2\n")
    append_text(tmp_path / "file", "größe 3\n")
    assert (tmp_path / "file").read_text("utf-8").splitlines()[1:] == ["größe 3"]


def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with largest_file(1000), pytest.raises(OSError, match="too large"):
        write_text(tmp_path / "file", "x" * 10_000)
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that are free whenever somebody looks, and then for ever the last of them; nobody sleeps."""
    rooms = [10**9]
    monkeypatch.setattr(files, "free", lambda _: rooms.pop(0) if len(rooms) > 1 else rooms[0])
    monkeypatch.setattr("time.sleep", lambda _: None)
    return rooms


def test_a_full_disk_is_an_error_that_counts_the_bytes(rooms: list[int], tmp_path: Path) -> None:
    rooms[:] = [1_000_000]
    with pytest.raises(UserError) as caught:
        write_patiently(lambda: pytest.fail("no room"), tmp_path, 3_500_000, "exit", "the thing")
    assert str(caught.value).startswith(
        f"{tmp_path}: the disk is full: the thing needs 3.5 MB, and 2.5 MB (2,500,000 bytes) are missing\n"
    )


def test_room_is_waited_for_and_that_is_said_once(
    rooms: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rooms[:] = [*[1_000_000] * 10, 4_000_000]
    written: list[int] = []
    write_patiently(lambda: written.append(rooms[0]), tmp_path, 3_500_000, "wait", "the thing")
    assert written == [4_000_000]
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("2.5 MB (2,500,000 bytes) are missing; waiting until there is room")
    assert second == f"{tmp_path}: there is room again; going on"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_signal_ends_the_wait(when: str, rooms: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: float = 0) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    rooms[:] = [0]
    monkeypatch.setattr("time.sleep", stop)
    with StopSignals(), pytest.raises(Interrupted) as caught:
        if when == "before":
            stop()
        write_patiently(lambda: pytest.fail("no room"), tmp_path, 1, "wait", "the thing")
    assert caught.value.signal == signal.SIGTERM and "not saved" in caught.value.what
    assert StopSignals.number == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_that_only_the_write_itself_finds(number: int, rooms: list[int], tmp_path: Path) -> None:
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(number, os.strerror(number))

    with pytest.raises(UserError, match="a quota of bytes or of files is used up"):
        write_patiently(write, tmp_path, 1, "exit", "the thing")
    write_patiently(write, tmp_path, 1, "wait", "the thing")
    assert len(tries) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_quota_that_a_library_tells_of(number: int, rooms: list[int], tmp_path: Path) -> None:
    def write() -> None:
        raise RuntimeError(f"I/O error: {os.strerror(number)} (os error {number})")

    with pytest.raises(UserError, match="a quota of bytes or of files is used up"):
        write_patiently(write, tmp_path, 1, "exit", "the thing")


def test_a_library_s_error_counts_where_there_is_no_room(rooms: list[int], tmp_path: Path) -> None:
    rooms[:] = [100, 1]

    def write() -> None:
        raise RuntimeError("unexpected pos 704 vs 662")

    with pytest.raises(UserError, match=r"49 bytes\) are missing"):
        write_patiently(write, tmp_path, 50, "exit", "the thing")


@pytest.mark.parametrize("when_full", ["exit", "wait"])
def test_other_errors_are_raised(when_full: files.WhenFull, rooms: list[int], tmp_path: Path) -> None:
    def write() -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        write_patiently(write, tmp_path, 1, when_full, "the thing")
    assert files.size(999) == "1.0 kB" and files.size(2.5e12) == "2.5 TB"


def test_what_cannot_be_deleted_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where someone reads it: its name is free at once, nothing comes back, and `clear` takes the rest."""
    folder = tmp_path / "step-000001"
    with monkeypatch.context() as held:
        held.setattr(shutil, "rmtree", lambda *_, **__: None)
        for _ in range(2):
            with atomic_folder(folder) as beside:
                (beside / "weights").write_text("", encoding="utf-8")
        for _ in range(2):
            delete_folder(folder)
            folder.mkdir()
        folder.rmdir()
    assert len(list(tmp_path.iterdir())) == 3
    clear(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_killed_processes_have_left_beside_a_shared_folder_goes_after_a_day(tmp_path: Path) -> None:
    """Nothing that is younger, or has a name of somebody else's."""
    names = [".table-1.7-0123abcd.tmp", ".ids-2.8-0123abcd.tmp", ".ids-3.9-0123abcd.tmp", ".mine.tmp"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "pairs.arrow").touch()
    long_ago = time.time() - 25 * 3600
    for name in (
        *names,
        ".ids-2.8-0123abcd.tmp/pairs.arrow",
        ".table-1.7-0123abcd.tmp/pairs.arrow",
        ".mine.tmp/pairs.arrow",
    ):
        os.utime(tmp_path / name, (long_ago, long_ago))
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ids-3.9-0123abcd.tmp", ".mine.tmp"]
