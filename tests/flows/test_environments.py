"""Unusual environments (locale, paths, links, closed log): training and translation give the same results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformer_mt.runs.folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture
def workspace(tiny: Path, tmp_path: Path) -> Path:
    """Copy the texts and `tiny.yaml`, without a run, into a working directory."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    for path in tiny.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    return folder


def tmt(folder: Path, *arguments: object, environment: Mapping[str, str | None] | None = None) -> str:
    """Run the command in a folder and return its standard error. A variable that is None is unset."""
    changed: Mapping[str, str | None] = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", "transformer_mt", *map(str, arguments)],
        cwd=folder,
        env={name: value for name, value in changed.items() if value is not None},
        capture_output=True,
        check=False,
    )
    log = done.stderr.decode()
    assert done.returncode == 0, log
    assert "Traceback" not in log
    return log


def assert_same_weights(run: Path, tiny_run: Path) -> None:
    """Check that the final weights are those of the shared tiny run."""
    checkpoints = [RunFolder(path).find_checkpoint("12").path for path in (run, tiny_run)]
    left, right = (load_file(checkpoint / "model.safetensors") for checkpoint in checkpoints)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


TRAIN = ("train", "--config", "tiny.yaml", "validation.probes=0")


@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": None, "USER": None, "LC_ALL": "C"},
        {
            "HOME": "/dev/null",
            "LC_ALL": "POSIX",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONIOENCODING": None,
        },
    ],
    ids=lambda environment: " ".join(f"{name}={value}" for name, value in environment.items()),
)
def test_training_does_not_depend_on_home_or_locale(
    environment: dict[str, str | None], workspace: Path, tiny_run: Path
) -> None:
    """Files are UTF-8 in every locale, and no library warns."""
    unset = dict.fromkeys(("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "PYTHONIOENCODING"))
    log = tmt(workspace, *TRAIN, "validation.probes=2", environment={**unset, **environment})
    lines = [line for line in log.splitlines() if "degenerate output" not in line]
    assert not [line for line in lines if "atplotlib" in line or "warn" in line.lower()]
    run = workspace / "runs" / "tiny"
    assert_same_weights(run, tiny_run)
    assert (run / "tokenizer.json").read_bytes() == (tiny_run / "tokenizer.json").read_bytes()
    tmt(workspace, "translate", run, "--input", "test.en", "--output", "out", environment={**unset, **environment})
    assert (workspace / "out").read_text("utf-8").count("\n") == 6
    tmt(workspace, "translate", run, "füür 火", environment={**unset, **environment})


def test_paths_may_hold_any_characters(workspace: Path, tiny_run: Path) -> None:
    place = workspace / "Läufe mit 空 $5 'und' \"mehr\""
    tmt(
        workspace,
        *TRAIN,
        f"runs_dir={place.name}",
        "train.max_steps=4",
        "name=größter Lauf",
        environment={"LC_ALL": "C"},
    )
    tmt(workspace, *TRAIN, f"runs_dir={place.name}", "name=größter Lauf")
    tmt(workspace, "translate", place / "größter Lauf", "one", environment={"LC_ALL": "POSIX"})
    assert_same_weights(place / "größter Lauf", tiny_run)


def test_linked_run_folders_stay_links(workspace: Path, tiny_run: Path, tmp_path: Path) -> None:
    """`runs_dir` and the run may be links to another disk; --restart moves the link aside."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "run").mkdir()
    (tmp_path / "runs").mkdir()
    (workspace / "runs").symlink_to(tmp_path / "runs")
    run = workspace / "runs" / "tiny"
    run.symlink_to(tmp_path / "disk" / "run")
    tmt(workspace, *TRAIN, "train.max_steps=4")
    with RunFolder(tmp_path / "disk" / "run").locked():
        done = subprocess.run(
            [sys.executable, "-m", "transformer_mt", *TRAIN], cwd=workspace, capture_output=True, check=False
        )
        assert done.returncode == 2 and b"another process is training this run" in done.stderr
    tmt(workspace, *TRAIN)
    assert run.is_symlink()
    assert_same_weights(tmp_path / "disk" / "run", tiny_run)
    log = tmt(workspace, *TRAIN, "--restart", "train.max_steps=4")
    assert "the old run was moved to" in log
    assert not run.is_symlink()
    (aside,) = workspace.glob("runs/tiny.*")
    assert aside.is_symlink()
    assert_same_weights(aside, tiny_run)
    assert list(RunFolder(run).list_checkpoint_folders()) == [4]
