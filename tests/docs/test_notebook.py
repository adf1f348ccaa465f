"""The notebook docs/colab.ipynb: its cells run with a tiny model, without git and pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CELLS: list[dict[str, Any]] = json.loads((REPOSITORY / "docs" / "colab.ipynb").read_text(encoding="utf-8"))["cells"]
PARAMETERS = {
    "REPOSITORY": str(REPOSITORY),
    "SETTINGS": "train.max_steps=2 schedule.warmup_steps=1 model.d_model=16 model.d_ff=16 model.n_heads=4 "
    "model.encoder.n_layers=1 model.decoder.n_layers=1 batches.tokens=256 device=cpu precision=fp16",
}
PROGRAMS = {
    "git": 'ln -s "$5" "$6"',  # clone --quiet --depth 1 REPOSITORY FOLDER
    "pip": 'test -f "$3/pyproject.toml"',  # install --quiet FOLDER
    "tmt": f'PYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -m transformer_mt "$@"',
}


def list_parts(cell: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """Yield consecutive lines of commands or of Python, and whether they are commands."""
    for is_command, lines in groupby(cell["source"], key=lambda line: line.startswith("!")):
        yield is_command, "".join(line.removeprefix("!") for line in lines)


def test_no_outputs_are_stored() -> None:
    for cell in CELLS:
        if cell["cell_type"] == "code":
            assert (cell["execution_count"], cell["outputs"], cell["metadata"]) == (None, [], {})


@pytest.mark.slow
def test_the_notebook_trains_translates_and_archives_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    output = ""
    for cell in CELLS:
        if cell["cell_type"] == "markdown":
            continue
        for is_command, text in list_parts(cell):
            if is_command:
                command = "set -e\n" + text.format(**variables)
                done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
                assert done.returncode == 0, command + done.stderr
                output += done.stdout
            else:
                exec(text, variables)
                variables |= {name: value for name, value in PARAMETERS.items() if name in variables}
    assert len(output.splitlines()) > 2
    with tarfile.open("mine.tar.gz") as archive:
        assert "runs/mine/config.yaml" in archive.getnames()
