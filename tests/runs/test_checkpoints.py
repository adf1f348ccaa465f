"""Checkpoints: what was saved is what is loaded, or an error; and which of them stay."""

from __future__ import annotations

import errno
import io
import os
import pickle
import runpy
import shutil
import stat
from collections.abc import Callable, Generator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from transformer_mt.errors import UserError
from transformer_mt.runs import checkpoints, manifest
from transformer_mt.runs.checkpoints import delete_later, find_start, load_state, load_weights, save, verify
from transformer_mt.runs.folder import CheckpointInfo, RunFolder
from transformer_mt.system import files
from transformer_mt.training.progress import KeepConfig

ROOT = Path(__file__).resolve().parents[2]


def make_model(value: float) -> nn.Linear:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    return model


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Checkpoints of the steps 5, 10 and 100, whose weights are their steps; 5 is the best."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for step, loss in ((5, 1.0), (10, 3.0), (100, 2.0)):
        info = CheckpointInfo(run.checkpoints / f"step-{step:06d}", step, "loss", {"loss": loss})
        save(info, make_model(float(step)), {"progress": {"step": step}})
    return run


def spoil(run: RunFolder, step: int, name: str = "model.safetensors") -> Path:
    path = run.checkpoint_folders()[step] / name
    path.write_bytes(path.read_bytes()[:-1])
    return path


@pytest.mark.parametrize("room", [0, 1 << 20])
def test_a_quota_is_told_from_other_errors(room: int, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the state is written, where torch has an error of its own for whatever happens."""
    open_file = Path.open

    class Quota(io.BytesIO):
        def write(self, content: Any) -> int:
            if self.tell() + len(content) > room:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            return super().write(content)

    def open_with_quota(path: Path, *arguments: Any, **options: Any) -> Any:
        return Quota() if path.name == "training.pt" else open_file(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_with_quota)
    info = CheckpointInfo(run.checkpoints / "step-000007", 7, "loss", {})
    with pytest.raises(UserError, match="a quota of bytes or of files is used up"):
        save(info, make_model(1.0), {"momentum": [torch.zeros(100_000) for _ in range(9)]})


def test_what_was_saved_is_loaded(run: RunFolder) -> None:
    model, info = make_model(0.0), run.checkpoint("10")
    assert info.scores == {"loss": 3.0}
    assert (
        info.files["model.safetensors"]["sha256"] == sha256((info.path / "model.safetensors").read_bytes()).hexdigest()
    )
    load_weights(model, info)
    assert torch.equal(model.weight, torch.full((2, 3), 10.0))
    assert load_state(info) == {"progress": {"step": 10}}
    verify(info)


class Trick:
    """What would be done, were it unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_state_that_would_do_something_is_not_loaded(run: RunFolder) -> None:
    """Trap 39, though its seal is right: whoever sends a run can write that too."""
    info, done = run.checkpoint("10"), run.path / "done"
    torch.save({"progress": Trick(done)}, info.path / "training.pt")
    about = manifest.read_manifest(info.path / "checkpoint.json")
    manifest.write_manifest(info.path / "checkpoint.json", about)
    with pytest.raises(pickle.UnpicklingError, match="WeightsUnpickler"):
        load_state(info)
    assert not done.exists()


def test_damaged_files_are_not_loaded(run: RunFolder) -> None:
    info, model = run.checkpoint("10"), make_model(0.0)
    for name, load in (
        ("training.pt", lambda: load_state(info)),
        ("model.safetensors", lambda: load_weights(model, info)),
    ):
        spoil(run, 10, name)
        with pytest.raises(UserError, match=rf"step-000010/{name}: was truncated .*\n.*or delete .*step-000010 "):
            load()
    assert torch.equal(model.weight, torch.zeros(2, 3))


def test_the_weights_of_another_model(run: RunFolder) -> None:
    with pytest.raises(UserError, match=r"cannot be read .*was .*/run/config.yaml changed"):
        load_weights(nn.Linear(4, 2), run.checkpoint("10"))


@pytest.mark.parametrize("moment", ["before it is read", "while it is compared", "once it was found whole"])
def test_weights_that_are_deleted_before_they_are_read(
    moment: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the training that goes on: those of the checkpoint that is the best now are loaded, and none is damaged."""
    where, name = {
        "before it is read": (checkpoints, "check_seal"),
        "while it is compared": (manifest, "_describe"),
        "once it was found whole": (safetensors.torch, "load_model"),
    }[moment]
    function = getattr(where, name)

    def late(*arguments: Any) -> Any:
        if (doomed := run.checkpoints / "step-000005").exists():
            files.delete_folder(doomed)
        return function(*arguments)

    monkeypatch.setattr(where, name, late)
    model = make_model(0.0)
    assert checkpoints.load_chosen(model, run, "best").step == 100
    assert torch.equal(model.weight, torch.full((2, 3), 100.0))


@pytest.mark.parametrize("which", ["best", "5"])
def test_weights_that_are_damaged_are_said_to_be(which: str, run: RunFolder) -> None:
    spoil(run, 5)
    with pytest.raises(UserError, match=r"step-000005/model.safetensors: was truncated"):
        checkpoints.load_chosen(make_model(0.0), run, which)


@pytest.mark.parametrize(
    ("which", "step", "left"), [("last", 100, [5, 10, 100]), ("best", 5, [5]), ("10", 10, [5, 10])]
)
def test_where_a_training_goes_on_is_its_end(which: str, step: int, left: list[int], run: RunFolder) -> None:
    """Nothing is deleted until that is said: what was found may be unreadable to this version of the program."""
    info = find_start(run, which)
    assert info is not None and info.step == step
    assert list(run.checkpoint_folders()) == [5, 10, 100]
    delete_later(run, info.step)
    assert list(run.checkpoint_folders()) == left


def test_a_run_that_has_no_checkpoint_begins(tmp_path: Path) -> None:
    assert find_start(RunFolder(tmp_path / "new"), "last") is None


@pytest.mark.parametrize("name", ["model.safetensors", "training.pt", "checkpoint.json"])
def test_the_last_whole_checkpoint(name: str, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice in a row; nothing is thrown away."""
    path = spoil(run, 100, name)
    info = find_start(run, "last")
    assert info is not None and info.step == 10
    assert f"{path}: was truncated" in capsys.readouterr().err
    assert list(run.checkpoint_folders()) == [5, 10]
    shutil.copytree(info.path, run.checkpoints / "step-000100")
    find_start(run, "last")
    assert {path.name for path in run.checkpoints.glob("*.damaged*")} == {
        "step-000100.damaged",
        "step-000100.damaged-2",
    }
    assert find_start(run, "last") == run.checkpoint("10")


def test_an_earlier_one_without_its_description_is_set_aside_too(run: RunFolder) -> None:
    """Whether it is the best can no longer be known."""
    (run.checkpoints / "step-000005" / "checkpoint.json").unlink()
    assert find_start(run, "last") == run.checkpoint("100")
    assert [info.step for info in run.checkpoint_list()] == [10, 100]
    assert (run.checkpoints / "step-000005.damaged" / "model.safetensors").exists()


def test_without_a_whole_one_nothing_changes(run: RunFolder) -> None:
    for step in (5, 10, 100):
        spoil(run, step)
    with pytest.raises(UserError, match=r"(?s)step-000100/.*step-000010/.*step-000005/.*no checkpoint is whole"):
        find_start(run, "last")
    assert list(run.checkpoint_folders()) == [5, 10, 100]


@pytest.mark.parametrize("which", ["best", "5"])
def test_one_that_was_asked_for_must_be_whole(which: str, run: RunFolder) -> None:
    spoil(run, 5, "training.pt")
    with pytest.raises(UserError, match=r"step-000005/training.pt: was truncated"):
        find_start(run, which)
    assert list(run.checkpoint_folders()) == [5, 10, 100]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (KeepConfig(), [5, 10, 100]),
        (KeepConfig(last=1), [5, 100]),
        (KeepConfig(best=2, last=1), [5, 100]),
        (KeepConfig(best=3, last=1), [5, 10, 100]),
    ],
)
def test_which_ones_stay(keep: KeepConfig, left: list[int], run: RunFolder) -> None:
    checkpoints.prune(run, keep)
    assert list(run.checkpoint_folders()) == left


def test_one_of_a_stop_stays_while_it_is_the_newest(run: RunFolder) -> None:
    """And takes no other's place."""
    for step, stopped, left in (
        (110, True, [5, 10, 100, 110]),
        (120, True, [5, 10, 100, 120]),
        (130, False, [5, 100, 130]),
    ):
        info = CheckpointInfo(run.checkpoints / f"step-{step:06d}", step, "loss", {}, stopped)
        save(info, make_model(step), {})
        checkpoints.prune(run, KeepConfig())
        assert list(run.checkpoint_folders()) == left
        assert CheckpointInfo.read(info.path) == info


def test_the_newest_never_stands_alone_by_default(run: RunFolder) -> None:
    """Also where it is the best one: else nothing would be left to go on from."""
    save(CheckpointInfo(run.checkpoints / "step-000200", 200, "loss", {"loss": 0.1}), make_model(200.0), {})
    checkpoints.prune(run, KeepConfig())
    assert list(run.checkpoint_folders()) == [100, 200]


def test_pruning_leaves_alone_what_it_cannot_judge(run: RunFolder) -> None:
    spoil(run, 10, "checkpoint.json")
    checkpoints.prune(run, KeepConfig(last=1))
    assert list(run.checkpoint_folders()) == [5, 10, 100]


@pytest.fixture
def umask() -> Generator[Callable[[int], None]]:
    before = os.umask(0o022)
    yield lambda mask: (os.umask(mask), None)[1]
    os.umask(before)


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o002, 0o000])
def test_files_have_the_modes_that_the_umask_says(mask: int, umask: Callable[[int], None], tmp_path: Path) -> None:
    umask(mask)
    save(CheckpointInfo(tmp_path / "run" / "step-000001", 1, "loss", {}), make_model(1.0), {})
    for path in (tmp_path / "run").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask


def test_a_full_disk_leaves_the_earlier_ones(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that a checkpoint needs are known before the first is written, and closely."""
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    model = nn.Linear(1000, 1000)
    info = CheckpointInfo(run.checkpoints / "step-000200", 200, "loss", {})
    state: dict[str, Any] = {"optimizers": [{"state": [{"moment": torch.zeros(1000, 1000)}]}]}
    monkeypatch.setattr(files, "free", lambda _: 0)
    with pytest.raises(UserError, match=r"the checkpoint step-000200 needs 8\.\d MB, and 8\.\d MB") as caught:
        save(info, model, state)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
    monkeypatch.undo()
    save(info, model, state)
    lack = int(str(caught.value).split("(")[1].split(" ")[0].replace(",", ""))
    assert 1.0 <= lack / sum(path.stat().st_size for path in info.path.iterdir()) < 1.01


def test_the_warning_at_the_start(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam keeps three numbers a weight; what is there already has its room."""
    model = nn.Linear(1000, 999, bias=False)
    each = 3 * 4 * 999_000
    there = sum(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
    for free, warns in ((4 * each - there, False), (4 * each - there - 1, True)):
        monkeypatch.setattr(files, "free", lambda _, free=free: free)
        line = checkpoints.warning_of_room(run, KeepConfig(), model, copies=2)
        assert (line is not None) == warns
    assert (
        line is not None and "47.9 MB are free" in line and "need up to 47.9 MB more" in line and "12.0 MB each" in line
    )
    assert checkpoints.warning_of_room(run, KeepConfig(last=1), model, copies=2) is None
    assert checkpoints.warning_of_room(run, KeepConfig(last=1), model, copies=3) is not None


@pytest.mark.slow
@pytest.mark.drill
def test_the_damage_drill(tmp_path: Path) -> None:
    drill = runpy.run_path(str(ROOT / "scripts" / "damage_drill.py"))
    assert drill["drill"](2, seed=3, folder=tmp_path) == 4
