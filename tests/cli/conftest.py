"""Fixtures of the command-line tests."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from transformer_mt.tools.analysis import significance


@pytest.fixture(scope="session")
def unusable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with files that a training cannot use."""
    folder = tmp_path_factory.mktemp("wrong")
    lines = "".join(f"line {n * n}\n" for n in range(2000)).encode()
    files = {
        "two": b"a\nb\n",
        "blank": b"\n \n",
        "cut.gz": gzip.compress(lines)[:-500],
        "ten": b"a b c d\n" * 10,
        "broken.yaml": b"data: [\n",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the number of resamples to save time."""
    monkeypatch.setattr(significance, "BOOTSTRAP_SAMPLES", 100)
