"""The wheel contains the data files that an installation needs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_contains_all_modules_and_data_files(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    (path,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        packed = set(archive.namelist())
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "transformer_mt").rglob("*.py")}
    data = {"configs/quickstart.yaml", "data/quickstart.tsv.gz", "py.typed"}
    folders = ("tools/pages/templates", "tools/serving/web")
    files = (file for folder in folders for file in (ROOT / "transformer_mt" / folder).iterdir())
    templates = {str(file.relative_to(ROOT)) for file in files}
    assert modules | templates | {f"transformer_mt/{name}" for name in data} <= packed
