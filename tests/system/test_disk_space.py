"""Sizes in messages, and the place where a path would be created."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_mt.system.files import find_existing_parent, format_bytes


def test_nearest_existing_folder_is_where_a_path_would_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_existing_parent(tmp_path) == tmp_path
    assert find_existing_parent(tmp_path / "a" / "b") == tmp_path
    monkeypatch.chdir(tmp_path)
    assert find_existing_parent(Path("runs")) == tmp_path


def test_bytes_are_formatted() -> None:
    assert [format_bytes(n) for n in (999, 12_345_678, 2.5e12)] == ["1.0 kB", "12.3 MB", "2.5 TB"]
