"""The wheel is complete: built as `python -m build` builds it, installed in a folder, and used without a clone."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from transformer_mt.flows.configuration import list_presets

ROOT = Path(__file__).resolve().parents[1]
MAX_BYTES = 3_000_000
BUILD = "import sys; from hatchling import build; print(getattr(build, f'build_{sys.argv[1]}')(sys.argv[2]))"


def build(source: Path, kind: str, folder: Path) -> Path:
    """Build a distribution with the backend of pyproject.toml, and return its path."""
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    done = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a source distribution, and a wheel from it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(build(ROOT, "sdist", folder)) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return build(source, "wheel", folder)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a folder."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-index", "--no-deps", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return folder


def run_installed(installed: Path, folder: Path, *arguments: str) -> str:
    """Run `tmt` of the installed wheel in a folder, and return its output."""
    environment = os.environ | {"PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(installed / "bin" / "tmt"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_contains_the_package_its_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        (licence,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    files = (path for path in (ROOT / "transformer_mt").rglob("*") if path.is_file() and path.suffix != ".pyc")
    package = {str(path.relative_to(ROOT)) for path in files}
    configs = {f"transformer_mt/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.*")}
    assert packed == package | configs
    assert {"transformer_mt/py.typed", "transformer_mt/data/quickstart.tsv.gz"} <= packed
    assert wheel.stat().st_size < MAX_BYTES


def test_an_installed_wheel_lists_all_presets(installed: Path, tmp_path: Path) -> None:
    lines = run_installed(installed, tmp_path, "init", "--preset").splitlines()
    assert {*list_presets()} <= {line.split()[0] for line in lines}


@pytest.mark.slow
def test_an_installed_wheel_trains_and_translates_without_a_clone(installed: Path, tmp_path: Path) -> None:
    run_installed(installed, tmp_path, "init", "--preset", "quickstart")
    smaller = ("model.d_model=16", "train.max_steps=3", "schedule.warmup_steps=2", "device=cpu", "threads=1")
    run_installed(installed, tmp_path, "train", "--config", "quickstart.yaml", *smaller, "data.test={}")
    run_installed(installed, tmp_path, "translate", "runs/quickstart", "The old dog is sleeping.")
