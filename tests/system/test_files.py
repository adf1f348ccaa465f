"""Atomic files and folders (trap 40), and what happens on a full disk."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.system import files
from transformer_mt.system.files import (
    append_text,
    atomic_file,
    atomic_folder,
    atomic_new_folder,
    build_cached,
    build_cached_folder,
    delete_folder,
    find_existing_parent,
    find_link_out,
    remove_leftovers,
    remove_stale_folders,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- files ------------------------------------------------------------------------------------------------------------


def test_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_error_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert names(tmp_path) == []
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


# --- folders ----------------------------------------------------------------------------------------------------------


def test_folder_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    for content in ("old", "new"):
        with atomic_folder(path) as temporary:
            (temporary / content).write_text(content)
            assert not (path / content).exists()
        assert names(path) == [content]
    assert names(path.parent) == ["folder"]


def test_error_keeps_the_old_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with atomic_folder(path) as temporary:
        (temporary / "old").touch()
    with pytest.raises(ZeroDivisionError), atomic_folder(path) as temporary:
        (temporary / "half").touch()
        raise ZeroDivisionError
    assert names(path) == ["old"]
    assert names(tmp_path) == ["folder"]


def test_new_folder_never_replaces_anything(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with pytest.raises(UserError, match="pass a new folder"), atomic_new_folder(path) as temporary:
        (temporary / "late").touch()
        path.mkdir()
        (path / "precious").touch()
    assert names(path) == ["precious"]
    assert names(tmp_path) == ["folder"]


def test_first_of_several_processes_makes_the_cached_folder(tmp_path: Path) -> None:
    """Without file locks, two processes may fill it at once."""
    path = tmp_path / "folder"

    def fill(temporary: Path) -> None:
        (temporary / "slow").touch()
        path.mkdir()
        (path / "quick").touch()

    build_cached_folder(path, fill)
    assert names(path) == ["quick"]
    assert names(tmp_path) == ["folder"]


# --- leftovers of killed processes ------------------------------------------------------------------------------------


def test_remove_leftovers_restores_a_folder_that_was_being_replaced(tmp_path: Path) -> None:
    """The process was killed after the old folder was renamed and before the new one was."""
    (tmp_path / ".folder.old.tmp").mkdir()
    (tmp_path / ".folder.old.tmp" / "old").touch()
    (tmp_path / ".folder.77.tmp").mkdir()
    (tmp_path / ".file.77.tmp").touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


def test_remove_leftovers_deletes_a_folder_that_was_replaced(tmp_path: Path) -> None:
    for name, content in (("folder", "new"), (".folder.old.tmp", "old")):
        (tmp_path / name).mkdir()
        (tmp_path / name / content).touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["new"]


def test_remove_leftovers_deletes_what_nfs_could_not_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS keeps files that somebody reads; the folder's name is free at once."""
    folder = tmp_path / "step-000001"
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        for _ in range(2):
            with atomic_folder(folder) as temporary:
                (temporary / "weights").write_text("", encoding="utf-8")
        for _ in range(2):
            delete_folder(folder)
            folder.mkdir()
        folder.rmdir()
    assert len(list(tmp_path.iterdir())) == 3
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_stale_temporary_folders_are_deleted_after_a_day(tmp_path: Path) -> None:
    """Neither younger ones nor those with other names are deleted."""
    stale, young, other = ".ids-2.8-0123abcd.tmp", ".ids-3.9-0123abcd.tmp", ".mine.tmp"
    for name in (stale, young, other):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pairs.arrow").touch()
    long_ago = time.time() - 25 * 3600
    for path in (f"{stale}/pairs.arrow", stale, young, f"{other}/pairs.arrow", other):
        os.utime(tmp_path / path, (long_ago, long_ago))
    remove_stale_folders(tmp_path)
    assert names(tmp_path) == [young, other]


# --- full disk --------------------------------------------------------------------------------------------------------


@contextmanager
def file_size_limit(n_bytes: int) -> Generator[None]:
    """Limit the size of files: a write ends early, as on a full disk, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[0][1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])


@pytest.mark.parametrize(("room", "message"), [(8, "too large"), (11, "No space left")])
def test_line_that_does_not_fit_is_not_torn(room: int, message: str, tmp_path: Path) -> None:
    append_text(tmp_path / "file", "größe 1\n")
    assert (tmp_path / "file").stat().st_size == 10
    with file_size_limit(room), pytest.raises(UserError, match=message):
        append_text(tmp_path / "file", "größe 2\n")
    append_text(tmp_path / "file", "größe 3\n")
    assert (tmp_path / "file").read_text("utf-8").splitlines()[1:] == ["größe 3"]


def test_file_that_does_not_fit_keeps_the_old_one(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with file_size_limit(1000), pytest.raises(UserError, match="too large"):
        write_text(tmp_path / "file", "x" * 10_000)
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_deletion_does_not_follow_links(tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    for path in (precious, precious / ".a.1-00000000.tmp", folder, folder / ".b.1-00000000.tmp"):
        path.mkdir()
        (path / "file").touch()
    before = sorted(precious.rglob("*"))
    for parent in (folder, folder / ".b.1-00000000.tmp"):
        for name in ("link", ".c.1-00000000.tmp", ".d.old.tmp"):
            (parent / name).symlink_to(precious)
    delete_folder(folder / "link")
    remove_leftovers(folder)
    assert names(folder) == ["d", "file"]  # the latter was being replaced
    delete_folder(folder)
    assert names(tmp_path) == ["precious"] and sorted(precious.rglob("*")) == before


def test_a_link_out_of_a_folder_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    (folder / "inside").symlink_to(folder / "a")
    assert find_link_out(folder) is None
    (folder / "a" / "circle").symlink_to("circle")
    assert find_link_out(folder) == folder / "a" / "circle"
    (folder / "a" / "circle").unlink()
    (folder / "a" / "up").symlink_to("../../folder/../file")
    assert find_link_out(folder) == folder / "a" / "up"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room on the disk"),
        (errno.EDQUOT, "make room on the disk"),
        (errno.EFBIG, "raise the limit of file sizes (ulimit -f)"),
    ],
)
@pytest.mark.parametrize("write", [atomic_file, atomic_new_folder])
def test_full_disk_is_a_user_error_that_names_the_path(write, number: int, remedy: str, tmp_path: Path) -> None:
    message = re.escape(f"{tmp_path / 'new'}: cannot be written: {os.strerror(number)}; {remedy}")
    with pytest.raises(UserError, match=message), write(tmp_path / "new"):
        raise OSError(number, os.strerror(number))
    assert names(tmp_path) == []


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, UserError), (errno.ENOENT, FileNotFoundError)])
def test_a_full_disk_is_a_user_error_and_other_errors_pass(number: int, error: type[Exception], tmp_path: Path) -> None:
    def fill(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(error):
        build_cached_folder(tmp_path / "folder", fill)
    assert names(tmp_path) == []


# --- Cache entries that one process makes while others wait for it ----------------------------------------------------

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


# --- Sizes in messages, and the place where a path would be created ---------------------------------------------------


def test_nearest_existing_folder_is_where_a_path_would_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_existing_parent(tmp_path) == tmp_path
    assert find_existing_parent(tmp_path / "a" / "b") == tmp_path
    monkeypatch.chdir(tmp_path)
    assert find_existing_parent(Path("runs")) == tmp_path
