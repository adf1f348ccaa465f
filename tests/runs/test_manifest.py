"""Manifests: a change of any byte of a folder is detected."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from transformer_mt.runs.records import (
    CorruptFileError,
    read_manifest,
    verify_manifest,
    write_manifest,
)

CONTENT = {"step": 5, "metric": "loss", "scores": {"loss": 0.1, "größe": 1e-300, "odd": math.inf}}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    (tmp_path / "one").write_bytes(bytes(range(50)))
    (tmp_path / "empty").touch()
    write_manifest(tmp_path / "about.json", CONTENT)
    return tmp_path / "about.json"


def test_manifest_is_read_as_written(manifest: Path) -> None:
    found = read_manifest(manifest)
    assert {name: found[name] for name in CONTENT} == CONTENT
    assert sorted(found["files"]) == ["empty", "one"]
    assert found["files"]["one"]["bytes"] == 50
    verify_manifest(manifest)
    verify_manifest(manifest, "one")


@pytest.mark.parametrize("name", ["one", "about.json"])
def test_every_changed_byte_is_detected(name: str, manifest: Path) -> None:
    path = manifest.with_name(name)
    original = path.read_bytes()
    for i in range(len(original)):
        content = bytearray(original)
        content[i] ^= 1 << i % 8
        path.write_bytes(content)
        with pytest.raises(CorruptFileError) as caught:
            verify_manifest(manifest)
        assert caught.value.path == path
    path.write_bytes(original)
    verify_manifest(manifest)


@pytest.mark.parametrize("name", ["one", "about.json"])
def test_every_changed_length_is_detected(name: str, manifest: Path) -> None:
    path = manifest.with_name(name)
    original = path.read_bytes()
    for length in range(len(original)):
        path.write_bytes(original[:length])
        with pytest.raises(CorruptFileError, match=f"{name}: was truncated"):
            verify_manifest(manifest)
    path.write_bytes(original + b"\n")
    with pytest.raises(CorruptFileError, match=name):
        verify_manifest(manifest)


@pytest.mark.parametrize("name", ["one", "empty", "about.json"])
def test_missing_file_is_detected(name: str, manifest: Path) -> None:
    manifest.with_name(name).unlink()
    with pytest.raises(CorruptFileError, match=f"{name}: is missing"):
        verify_manifest(manifest)


@pytest.mark.parametrize("name", ["about.json", "empty"])
def test_read_error_is_reported(name: str, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sector of the disk."""

    def fail(path: str, _: int) -> int:
        raise OSError(5, "Input/output error", path)

    content = read_manifest(manifest)
    monkeypatch.setattr("os.open", fail)
    if name == "empty":
        monkeypatch.setattr("transformer_mt.runs.records.read_manifest", lambda _: content)
    with pytest.raises(CorruptFileError, match=rf"{name}: cannot be read \(Input/output error\)"):
        verify_manifest(manifest)


def test_only_the_named_files_are_verified(manifest: Path) -> None:
    manifest.with_name("empty").write_text("changed")
    manifest.with_name("later").touch()  # no checksum is known, and nothing reads it
    verify_manifest(manifest, "one")
    with pytest.raises(CorruptFileError, match="empty: its checksum does not match"):
        verify_manifest(manifest)
    with pytest.raises(CorruptFileError, match="later: is not listed"):
        verify_manifest(manifest, "later")
