"""Odd surroundings: a run trains, goes on and translates there as anywhere else, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformer_mt.runs.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.drill]


@pytest.fixture
def here(tiny: Path, tmp_path: Path) -> Path:
    """The texts and `tiny.yaml`, without a run."""
    folder = tmp_path / "here"
    folder.mkdir()
    for path in tiny.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    return folder


def tmt(folder: Path, *arguments: object, umask: int = -1, environment: Mapping[str, str | None] | None = None) -> str:
    """The command, in a folder; what it wrote to standard error. None takes a variable away."""
    changed: Mapping[str, str | None] = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", "transformer_mt", *map(str, arguments)],
        cwd=folder,
        env={name: value for name, value in changed.items() if value is not None},
        umask=umask,
        capture_output=True,
        check=False,
    )
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert "Traceback" not in said
    return said


def assert_as_elsewhere(run: Path, tiny_run: Path) -> None:
    """The weights at the end are those of the run that the other tests use."""
    left, right = (load_file(RunFolder(path).checkpoint("12").path / "model.safetensors") for path in (run, tiny_run))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


TRAIN = ("train", "--config", "tiny.yaml")


@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": "/proc/nonexistent"},
        {"HOME": "/dev/null", "LC_ALL": "POSIX"},
        {"HOME": None, "USER": None, "LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None},
    ],
    ids=lambda environment: " ".join(f"{name}={value}" for name, value in environment.items()),
)
def test_home_and_locale(environment: dict[str, str | None], here: Path, tiny_run: Path) -> None:
    """Neither warnings nor other bytes: files are UTF-8 wherever they are read and written."""
    unset = dict.fromkeys(("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "PYTHONIOENCODING"))
    said = tmt(here, *TRAIN, environment={**unset, **environment})
    assert not [line for line in said.splitlines() if "atplotlib" in line or "warn" in line.lower()]
    run = here / "runs" / "tiny"
    assert_as_elsewhere(run, tiny_run)
    assert (run / "tokenizer.json").read_bytes() == (tiny_run / "tokenizer.json").read_bytes()
    tmt(here, "translate", run, "--input", "test.en", "--output", "out", environment={**unset, **environment})
    assert (here / "out").read_text("utf-8").count("\n") == 6
    tmt(here, "evaluate", run, "--show", "2", environment={**unset, **environment})
    tmt(here, "plot", "attention", run, "--text", "füür 火", environment={**unset, **environment})


@pytest.mark.parametrize("mask", [0o077, 0o000])
def test_umask(mask: int, here: Path, tiny_run: Path) -> None:
    tmt(here, *TRAIN, umask=mask)
    assert_as_elsewhere(here / "runs" / "tiny", tiny_run)
    for path in (here / "runs").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o777 if path.is_dir() else 0o666) & ~mask, path


def test_a_path_with_everything_in_it(here: Path, tiny_run: Path) -> None:
    place = here / "Läufe mit 空 $HOME 'und' \"mehr\""
    tmt(
        here,
        *TRAIN,
        f"runs_dir={place.name}",
        "train.max_steps=4",
        "name=größter Lauf",
        environment={"LC_ALL": "C"},
    )
    tmt(here, *TRAIN, f"runs_dir={place.name}", "name=größter Lauf")
    tmt(here, "translate", place / "größter Lauf", "one", environment={"LC_ALL": "POSIX"})
    assert_as_elsewhere(place / "größter Lauf", tiny_run)


def test_links(here: Path, tiny_run: Path, tmp_path: Path) -> None:
    """A linked runs_dir, and in it a linked run: each stays a link, and --restart moves the link aside."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "run").mkdir()
    (tmp_path / "runs").mkdir()
    (here / "runs").symlink_to(tmp_path / "runs")
    run = here / "runs" / "tiny"
    run.symlink_to(tmp_path / "disk" / "run")
    tmt(here, *TRAIN, "train.max_steps=4")
    with RunFolder(tmp_path / "disk" / "run").locked():
        done = subprocess.run(
            [sys.executable, "-m", "transformer_mt", *TRAIN], cwd=here, capture_output=True, check=False
        )
        assert done.returncode == 2 and b"another process is training this run" in done.stderr
    tmt(here, *TRAIN)
    assert run.is_symlink()
    assert_as_elsewhere(tmp_path / "disk" / "run", tiny_run)
    said = tmt(here, *TRAIN, "--restart", "train.max_steps=4")
    assert "the old run is now" in said
    assert not run.is_symlink()
    (aside,) = here.glob("runs/tiny.*")
    assert aside.is_symlink()
    assert_as_elsewhere(aside, tiny_run)
    assert list(RunFolder(run).checkpoint_folders()) == [4]


def test_a_clock_that_was_set_back(here: Path, tiny_run: Path) -> None:
    """What the first half wrote is younger than now, by years."""
    tmt(here, *TRAIN, "train.max_steps=8")
    run = here / "runs" / "tiny"
    for path in [*(here / "runs").rglob("*"), here / "runs" / ".cache"]:
        os.utime(path, (4e9, 4e9))
    said = tmt(here, *TRAIN)
    assert "going on after step 8\n" in said
    assert_as_elsewhere(run, tiny_run)
    assert RunFolder(run).checkpoint("last").step == 12


def test_a_log_that_cannot_be_written(here: Path, tiny_run: Path) -> None:
    """A disk that is full, or a reader of the log that has gone, ends no training."""
    command = [sys.executable, "-m", "transformer_mt", *TRAIN]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(command, cwd=here, stderr=full, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0
    assert_as_elsewhere(here / "runs" / "tiny", tiny_run)
