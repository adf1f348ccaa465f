"""Runs that exports read."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import Tmt, add_noise, assert_succeeded, load_plain

from transformer_mt.flows.export import write_weights_folder
from transformer_mt.runs.folder import RunFolder


@pytest.fixture
def run(tiny_run: Path, in_tiny: Path) -> Path:
    """Change to the folder where the tiny run was trained. Tests must not modify it."""
    return tiny_run


@pytest.fixture
def noisy_run(run: Path, tmp_path: Path) -> Path:
    """Add noise to the weights of the run, so that translations differ between sentences."""
    model = load_plain(run, precision="fp32").model
    add_noise(model, 5)
    folder = RunFolder.open(run)
    write_weights_folder(folder, tmp_path / "noisy", model, folder.find_checkpoint("best"), "noisy", [])
    return tmp_path / "noisy"


@pytest.fixture(scope="session")
def run_of_marian(tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    """An imported `MarianMTModel`. Tests must restore what they change."""
    from importing_helpers import make_marian

    folder = tmp_path_factory.mktemp("marian")
    make_marian(folder / "source")
    assert_succeeded(tmt("import", folder / "source", "--output", folder / "run"))
    return folder / "run"
