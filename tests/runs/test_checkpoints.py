"""Checkpoints: saving, loading, damage, and which of them are kept."""

from __future__ import annotations

import errno
import io
import math
import os
import resource
import shutil
import stat
from collections.abc import Callable, Generator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_model
from torch import nn

from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs import records as manifest
from transformer_mt.runs.checkpoints import (
    delete_later_checkpoints,
    find_last_intact_checkpoint,
    find_resume_checkpoint,
    load_state,
    load_weights,
    save,
    verify,
)
from transformer_mt.runs.folder import KeepConfig, RunFolder
from transformer_mt.runs.records import (
    CheckpointInfo,
    CorruptFileError,
    is_better,
    read_manifest,
    verify_manifest,
    write_manifest,
)
from transformer_mt.system import files


def make_model(value: float) -> nn.Linear:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    return model


def info_of(run: RunFolder, step: int, stopped: bool = False, **scores: float) -> CheckpointInfo:
    return CheckpointInfo(run.locate_checkpoint(step), step, "loss", scores, stopped)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Checkpoints of the steps 5, 10 and 100, whose weights are their steps; 5 is the best."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for step, loss in ((5, 1.0), (10, 3.0), (100, 2.0)):
        save(info_of(run, step, loss=loss), make_model(float(step)), {"progress": {"step": step}})
    return run


def damage(run: RunFolder, step: int, name: str = "model.safetensors") -> Path:
    path = run.list_checkpoint_folders()[step] / name
    path.write_bytes(path.read_bytes()[:-1])
    return path


# --- saving and loading -----------------------------------------------------------------------------------------------


def test_saved_checkpoint_is_loaded(run: RunFolder) -> None:
    model, info = make_model(0.0), run.find_checkpoint("10")
    assert info.scores == {"loss": 3.0}
    weights = (info.path / "model.safetensors").read_bytes()
    assert info.files["model.safetensors"].sha256 == sha256(weights).hexdigest()
    load_weights(model, info)
    assert torch.equal(model.weight, torch.full((2, 3), 10.0))
    assert load_state(info) == {"progress": {"step": 10}}
    verify(info)


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_weights_are_those_that_safetensors_saves(
    make_model: Callable[..., Transformer], tie: str, tmp_path: Path
) -> None:
    model = make_model(tie_embeddings=tie, rough=0.3)
    save_model(model, str(tmp_path / "expected"))
    expected, found = load_file(tmp_path / "expected"), checkpoints.list_distinct_weights(model)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_damaged_files_are_not_loaded(run: RunFolder) -> None:
    info, model = run.find_checkpoint("10"), make_model(0.0)
    for name, load in (
        ("training.pt", lambda: load_state(info)),
        ("model.safetensors", lambda: load_weights(model, info)),
    ):
        damage(run, 10, name)
        with pytest.raises(UserError, match=rf"step-000010/{name}: was truncated .*\n.*or delete .*step-000010 "):
            load()
    assert torch.equal(model.weight, torch.zeros(2, 3))


def test_weights_of_another_model_are_refused(run: RunFolder) -> None:
    with pytest.raises(UserError, match=r"cannot be read .*was .*/run/config.yaml changed"):
        load_weights(nn.Linear(4, 2), run.find_checkpoint("10"))


@pytest.mark.parametrize(
    ("module", "name"), [(checkpoints, "verify_manifest"), (manifest, "sha256"), (safetensors.torch, "load_model")]
)
def test_checkpoint_deleted_while_loading_is_chosen_again(
    module: Any, name: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training deletes the best checkpoint before, during or after its verification: the new best is loaded."""
    function = getattr(module, name)

    def delete_first(*arguments: Any) -> Any:
        if (doomed := run.locate_checkpoint(5)).exists():
            files.delete_folder(doomed)
        return function(*arguments)

    monkeypatch.setattr(module, name, delete_first)
    model = make_model(0.0)
    assert checkpoints.load_weights_of(model, run, "best").step == 100
    assert torch.equal(model.weight, torch.full((2, 3), 100.0))


# --- resuming and rolling back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "step", "left"), [("last", 100, [5, 10, 100]), ("best", 5, [5]), ("10", 10, [5, 10])]
)
def test_resume_checkpoint_is_found_and_later_ones_are_deleted_on_request(
    which: str, step: int, left: list[int], run: RunFolder
) -> None:
    """Finding it deletes nothing yet: this version may not be able to read its state."""
    info = find_resume_checkpoint(run, which)
    assert info is not None and info.step == step
    assert list(run.list_checkpoint_folders()) == [5, 10, 100]
    delete_later_checkpoints(run, info.step)
    assert list(run.list_checkpoint_folders()) == left


@pytest.mark.parametrize("name", ["model.safetensors", "training.pt", "checkpoint.json"])
def test_damaged_last_checkpoint_is_set_aside_and_the_one_before_used(
    name: str, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice for the same step; nothing is deleted."""
    path = damage(run, 100, name)
    info = find_resume_checkpoint(run, "last")
    assert info is not None and info.step == 10
    assert f"{path}: was truncated" in capsys.readouterr().err
    assert list(run.list_checkpoint_folders()) == [5, 10]
    shutil.copytree(info.path, run.checkpoints / "step-000100")
    find_resume_checkpoint(run, "last")
    aside = {path.name for path in run.checkpoints.glob("*.damaged*")}
    assert aside == {"step-000100.damaged", "step-000100.damaged-2"}
    assert find_resume_checkpoint(run, "last") == run.find_checkpoint("10")


def test_earlier_checkpoint_without_description_is_set_aside(run: RunFolder) -> None:
    """Its score is unknown, so that the best checkpoint would be unknown too."""
    (run.locate_checkpoint(5) / "checkpoint.json").unlink()
    assert find_resume_checkpoint(run, "last") == run.find_checkpoint("100")
    assert [info.step for info in run.list_checkpoints()] == [10, 100]
    assert (run.checkpoints / "step-000005.damaged" / "model.safetensors").exists()


def test_resume_is_refused_without_an_intact_checkpoint(run: RunFolder) -> None:
    for step in (5, 10, 100):
        damage(run, step)
    with pytest.raises(UserError, match=r"(?s)step-000100/.*step-000010/.*step-000005/.*no checkpoint is intact"):
        find_resume_checkpoint(run, "last")
    assert list(run.list_checkpoint_folders()) == [5, 10, 100]


@pytest.mark.parametrize("which", ["best", "5"])
def test_resume_is_refused_from_a_chosen_checkpoint_that_is_damaged(which: str, run: RunFolder) -> None:
    damage(run, 5, "training.pt")
    with pytest.raises(UserError, match=r"step-000005/training.pt: was truncated"):
        find_resume_checkpoint(run, which)
    assert list(run.list_checkpoint_folders()) == [5, 10, 100]


def test_last_intact_checkpoint_was_not_written_at_a_stop(run: RunFolder) -> None:
    save(info_of(run, 110, stopped=True), make_model(110), {})
    for up_to, step in ((200, 100), (99, 10), (10, 10), (9, 5)):
        info = find_last_intact_checkpoint(run, up_to)
        assert info is not None and info.step == step
    damage(run, 100, "training.pt")
    info = find_last_intact_checkpoint(run, 200)
    assert info is not None and info.step == 10
    assert find_last_intact_checkpoint(run, 4) is None


# --- pruning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (KeepConfig(), [5, 10, 100]),
        (KeepConfig(last=1), [5, 100]),
        (KeepConfig(best=2, last=1), [5, 100]),
        (KeepConfig(best=3, last=1), [5, 10, 100]),
    ],
)
def test_pruning_keeps_the_best_and_the_newest(keep: KeepConfig, left: list[int], run: RunFolder) -> None:
    checkpoints.prune(run, keep)
    assert list(run.list_checkpoint_folders()) == left


def test_pruning_keeps_a_checkpoint_of_a_stop_only_while_it_is_the_newest(run: RunFolder) -> None:
    for step, stopped, left in (
        (110, True, [5, 10, 100, 110]),
        (120, True, [5, 10, 100, 120]),
        (130, False, [5, 100, 130]),
    ):
        info = info_of(run, step, stopped)
        save(info, make_model(step), {})
        checkpoints.prune(run, KeepConfig())
        assert list(run.list_checkpoint_folders()) == left
        assert CheckpointInfo.read(info.path) == info


def test_pruning_leaves_unreadable_checkpoints_alone(run: RunFolder) -> None:
    damage(run, 10, "checkpoint.json")
    checkpoints.prune(run, KeepConfig(last=1))
    assert list(run.list_checkpoint_folders()) == [5, 10, 100]


# --- the disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def umask() -> Generator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o077, 0o000])
def test_file_modes_follow_the_umask(mask: int, umask: Callable[[int], int], tmp_path: Path) -> None:
    umask(mask)
    save(CheckpointInfo(tmp_path / "run" / "step-000001", 1, "loss", {}), make_model(1.0), {})
    for path in (tmp_path / "run").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask


@pytest.mark.parametrize("room", [0, 1 << 20])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("is_first", [False, True])
def test_full_disk_is_reported_and_keeps_earlier_checkpoints(
    number: int, room: int, is_first: bool, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is that of the system, which `torch.save` replaces by its own in the middle of a file."""
    if is_first:
        shutil.rmtree(run.checkpoints)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}
    open_file = Path.open

    class FullDisk(io.BytesIO):
        def write(self, content: Any) -> int:
            if self.tell() + len(content) > room:
                raise OSError(number, os.strerror(number))
            return super().write(content)

    def open_on_full_disk(path: Path, *arguments: Any, **options: Any) -> Any:
        return FullDisk() if path.name == "training.pt" else open_file(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_on_full_disk)
        with pytest.raises(UserError) as caught:
            save(info_of(run, 7), make_model(1.0), {"momentum": [torch.zeros(100_000) for _ in range(9)]})
    first, second = str(caught.value).splitlines()
    assert first.endswith(f"step-000007: the checkpoint cannot be written: {os.strerror(number)}")
    assert ("earlier checkpoints are intact: " in second) == (not is_first) and "make room on the disk" in second
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()} == before


def test_a_full_disk_is_named_before_the_first_checkpoint_has_a_folder(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run.path.mkdir(exist_ok=True)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=os.strerror(errno.ENOSPC)):
        save(info_of(run, 7), make_model(1.0), None)


@pytest.mark.parametrize("limit", [100, 1 << 20])
def test_a_checkpoint_above_the_limit_of_file_sizes_names_the_limit(limit: int, run: RunFolder) -> None:
    """The weights are larger than 100 bytes, and the training state is larger than 1 MiB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(UserError, match=r"ulimit -f"):
            save(info_of(run, 7), make_model(1.0), {"momentum": [torch.zeros(100_000) for _ in range(9)]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# --- Comparison of checkpoints by their scores ------------------------------------------------------------------------


@pytest.mark.parametrize(("metric", "better"), [("loss", 1.0), ("bleu", 3.0), ("chrf", 3.0), ("chrf++", 3.0)])
def test_is_better(metric: str, better: float) -> None:
    assert is_better(metric, better, than=2.0)
    assert not is_better(metric, 4.0 - better, than=2.0)
    assert not is_better(metric, 2.0, than=2.0)
    assert is_better(metric, 2.0, than=float("nan"))
    assert not is_better(metric, float("nan"), than=2.0)


# --- Manifests: a change of any byte of a folder is detected ----------------------------------------------------------

CONTENT = {"step": 5, "metric": "loss", "scores": {"loss": 0.1, "größe": 1e-300, "odd": math.inf}}


@pytest.fixture
def described(tmp_path: Path) -> Path:
    (tmp_path / "one").write_bytes(bytes(range(50)))
    (tmp_path / "empty").touch()
    write_manifest(tmp_path / "about.json", CONTENT)
    return tmp_path / "about.json"


def test_manifest_is_read_as_written(described: Path) -> None:
    found = read_manifest(described)
    assert {name: found[name] for name in CONTENT} == CONTENT
    assert sorted(found["files"]) == ["empty", "one"]
    assert found["files"]["one"]["bytes"] == 50
    verify_manifest(described)
    verify_manifest(described, "one")


@pytest.mark.parametrize("name", ["one", "about.json"])
def test_every_changed_byte_is_detected(name: str, described: Path) -> None:
    path = described.with_name(name)
    original = path.read_bytes()
    for i in range(len(original)):
        content = bytearray(original)
        content[i] ^= 1 << i % 8
        path.write_bytes(content)
        with pytest.raises(CorruptFileError) as caught:
            verify_manifest(described)
        assert caught.value.path == path
    path.write_bytes(original)
    verify_manifest(described)


@pytest.mark.parametrize("name", ["one", "about.json"])
def test_every_changed_length_is_detected(name: str, described: Path) -> None:
    path = described.with_name(name)
    original = path.read_bytes()
    for length in range(len(original)):
        path.write_bytes(original[:length])
        with pytest.raises(CorruptFileError, match=f"{name}: was truncated"):
            verify_manifest(described)
    path.write_bytes(original + b"\n")
    with pytest.raises(CorruptFileError, match=name):
        verify_manifest(described)


@pytest.mark.parametrize("name", ["one", "empty", "about.json"])
def test_missing_file_is_detected(name: str, described: Path) -> None:
    described.with_name(name).unlink()
    with pytest.raises(CorruptFileError, match=f"{name}: is missing"):
        verify_manifest(described)


@pytest.mark.parametrize("name", ["about.json", "empty"])
def test_read_error_is_reported(name: str, described: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sector of the disk."""

    def fail(path: str, _: int) -> int:
        raise OSError(5, "Input/output error", path)

    content = read_manifest(described)
    monkeypatch.setattr("os.open", fail)
    if name == "empty":
        monkeypatch.setattr("transformer_mt.runs.records.read_manifest", lambda _: content)
    with pytest.raises(CorruptFileError, match=rf"{name}: .*Input/output error"):
        verify_manifest(described)


def test_only_the_named_files_are_verified(described: Path) -> None:
    described.with_name("empty").write_text("changed")
    described.with_name("later").touch()  # no checksum is known, and nothing reads it
    verify_manifest(described, "one")
    with pytest.raises(CorruptFileError, match="empty: its checksum does not match"):
        verify_manifest(described)
    with pytest.raises(CorruptFileError, match="later: is not listed"):
        verify_manifest(described, "later")
