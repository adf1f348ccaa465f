"""Sizes in messages, and the place where a path would be created."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_mt.system.files import find_existing_parent


def test_nearest_existing_folder_is_where_a_path_would_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_existing_parent(tmp_path) == tmp_path
    assert find_existing_parent(tmp_path / "a" / "b") == tmp_path
    monkeypatch.chdir(tmp_path)
    assert find_existing_parent(Path("runs")) == tmp_path
