"""Runs that exports read."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import add_noise, load_plain

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
