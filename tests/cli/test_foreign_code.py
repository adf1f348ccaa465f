"""Python files of the current directory are never imported, by `tmt` or by its worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from operator import add
from pathlib import Path

import pytest

from transformer_mt.data.worker_pool import open_pool

NAMES = ("json", "pickle", "signal", "socket", "torch", "yaml", "transformer_mt")


@pytest.fixture
def hostile_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with Python files named like modules, each of which would make a file `made`."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'made')!r}, 'w')\nraise ImportError('hostile')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_worker_processes_import_nothing_from_the_current_directory(hostile_folder: Path) -> None:
    with open_pool(2, int) as pool:
        assert list(pool.map_in_order(add, [1, 2])) == [1, 2]
    assert not (hostile_folder / "made").exists()
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.slow
def test_the_command_imports_nothing_from_the_current_directory(hostile_folder: Path, tiny_run: Path) -> None:
    script = Path(sys.executable).with_name("tmt")
    if not script.exists():
        pytest.skip("the package is not installed")
    done = subprocess.run([script, "translate", tiny_run, "one"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (hostile_folder / "made").exists()
