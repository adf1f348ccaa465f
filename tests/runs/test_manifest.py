"""Seals: no byte of a sealed folder changes unseen."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_mt.runs.manifest import CorruptFileError, read_manifest, verify_manifest, write_manifest

ABOUT = {"step": 5, "metric": "loss", "scores": {"loss": 0.1, "größe": 1e-300, "odd": math.inf}}


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "one").write_bytes(bytes(range(50)))
    (tmp_path / "empty").touch()
    write_manifest(tmp_path / "about.json", ABOUT)
    return tmp_path / "about.json"


def test_what_was_sealed_is_read(sealed: Path) -> None:
    about = read_manifest(sealed)
    assert {name: about[name] for name in ABOUT} == ABOUT
    assert sorted(about["files"]) == ["empty", "one"]
    assert about["files"]["one"]["bytes"] == 50
    verify_manifest(sealed)
    verify_manifest(sealed, "one")


@pytest.mark.parametrize("name", ["one", "about.json"])
def test_every_bit_counts(name: str, sealed: Path) -> None:
    path = sealed.with_name(name)
    before = path.read_bytes()
    for i in range(8 * len(before)):
        content = bytearray(before)
        content[i // 8] ^= 1 << i % 8
        path.write_bytes(content)
        with pytest.raises(CorruptFileError) as caught:
            verify_manifest(sealed)
        assert caught.value.path == path
    path.write_bytes(before)
    verify_manifest(sealed)


@pytest.mark.parametrize("name", ["one", "about.json"])
def test_every_length_counts(name: str, sealed: Path) -> None:
    path = sealed.with_name(name)
    before = path.read_bytes()
    for length in range(len(before)):
        path.write_bytes(before[:length])
        with pytest.raises(CorruptFileError, match=f"{name}: was truncated"):
            verify_manifest(sealed)
    path.write_bytes(before + b"\n")
    with pytest.raises(CorruptFileError, match=name):
        verify_manifest(sealed)


@pytest.mark.parametrize("name", ["one", "empty", "about.json"])
@pytest.mark.parametrize(("spoil", "why"), [(Path.unlink, "is missing"), (lambda path: path.chmod(0), None)])
def test_what_cannot_be_read(
    name: str, spoil: Callable[[Path], None], why: str | None, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(sealed.with_name(name))
    if why is None:  # root reads whatever its mode; a bad sector not even root

        def fail(path: Path, *_: object) -> bytes:
            raise OSError(5, "Input/output error", str(path))

        monkeypatch.setattr(Path, "open", fail)
        monkeypatch.setattr(Path, "read_bytes", fail)
        why = r"cannot be read \(Input/output error\)"
        name = "about.json"
    with pytest.raises(CorruptFileError, match=f"{name}: {why}"):
        verify_manifest(sealed)


def test_only_what_was_asked_for_is_compared(sealed: Path) -> None:
    sealed.with_name("empty").write_text("no more")
    sealed.with_name("later").touch()  # nobody vouches for it, and nobody reads it
    verify_manifest(sealed, "one")
    with pytest.raises(CorruptFileError, match="empty: its checksum does not match"):
        verify_manifest(sealed)
    with pytest.raises(CorruptFileError, match="later: is not among the files that were saved"):
        verify_manifest(sealed, "later")
