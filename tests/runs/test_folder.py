"""The run folder: what is in it, and that checkpoints are found by number."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from transformer_mt.config.section import Section
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import EXPORT, FORMAT, CheckpointInfo, RunFolder, is_better, ranked
from transformer_mt.runs.manifest import write_manifest
from transformer_mt.system import files
from transformer_mt.system.files import write_text


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that has begun."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    write_text(run.config, "model: {d_model: 8}\n")
    write_text(run.record, json.dumps({"format": FORMAT}))
    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- writing a run ---------------------------------------------------------------------------------------------------


def test_a_run_that_did_not_begin_leaves_nothing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "new" / "run")
    with pytest.raises(ZeroDivisionError), run.locked():
        run.tokenizer.touch()
        raise ZeroDivisionError
    assert not run.path.exists()


def test_a_start_that_was_killed_before_the_record_was_written_is_begun_anew(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    for left in ([], ["tokenizer.json"], ["tokenizer.json", "config.yaml", ".run.json.1.tmp"]):
        run.path.mkdir()
        for name in (".lock", *left):
            (run.path / name).touch()
        with run.locked():
            assert not (run.path / ".run.json.1.tmp").exists()
        assert not run.path.exists()  # it was not begun this time either


@pytest.mark.parametrize("there", [["tokenizer.json"], [".lock", "thesis.tex", "tokenizer.json"]])
def test_a_folder_of_other_files_is_not_taken(there: list[str], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for name in there:
        (run.path / name).touch()
    with pytest.raises(UserError, match="holds files and is no run"), run.locked():
        pass
    assert names(run.path) == there


def test_who_holds_the_lock_clears_what_a_killed_process_left(run: RunFolder) -> None:
    before = names(run.path)
    (run.checkpoints / ".step-000005.77.tmp").mkdir(parents=True)
    (run.checkpoints / ".step-000005.77.tmp" / "model.safetensors").touch()
    (run.path / ".config.yaml.77.tmp").touch()
    with run.locked():
        assert names(run.path) == sorted([".lock", "checkpoints", *before])
        assert names(run.checkpoints) == []


# --- reading a run ----------------------------------------------------------------------------------------------------


def add_checkpoint(run: RunFolder, step: int, metric: str = "loss", folder: str = "", **scores: float) -> None:
    path = run.checkpoints / (folder or f"step-{step:06d}")
    path.mkdir(parents=True)
    write_manifest(path / "checkpoint.json", {"step": step, "metric": metric, "scores": scores})


def test_a_run_opens(run: RunFolder) -> None:
    assert RunFolder.open(run.path) == RunFolder.open(str(run.path)) == run


def test_a_command_that_is_named_can_be_typed(tmp_path: Path) -> None:
    folder = tmp_path / "my engine"
    folder.mkdir()
    (folder / EXPORT).touch()
    with pytest.raises(UserError, match=re.escape(f"`tmt translate --engine ctranslate2 '{folder}'`")):
        RunFolder.open(folder)


def test_a_section_of_the_run_s_configuration(run: RunFolder) -> None:
    class Model(Section):
        d_model: int

    assert run.section("model", Model) == Model(d_model=8)


@pytest.mark.parametrize("which", ["missing", "file"])
def test_no_run_folder(which: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="no such run folder; `tmt train` makes one"):
        RunFolder.open(tmp_path / which)


def test_a_folder_that_is_no_run(tmp_path: Path, run: RunFolder) -> None:
    with pytest.raises(UserError, match=r"is not a run folder \(it has no run.json\)"):
        RunFolder.open(tmp_path)
    run.config.unlink()
    with pytest.raises(UserError, match="is not a run folder"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("version", [FORMAT + 1, 0, "1", None])
def test_another_format_is_answered(version: Any, run: RunFolder) -> None:
    write_text(run.record, json.dumps({"format": version}))
    with pytest.raises(UserError, match=f"was written in run format {version}, and this program reads format {FORMAT}"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"{}", b"\xff"])
def test_a_damaged_record(content: bytes, run: RunFolder) -> None:
    run.record.write_bytes(content)
    with pytest.raises(UserError, match=r"run.json: is damaged"):
        RunFolder.open(run.path)


def test_no_checkpoint_yet(run: RunFolder) -> None:
    for name in ("step-000005.damaged", "step-000005.damaged-2", ".step-000005.7.tmp", "step-x", "other"):
        (run.checkpoints / name).mkdir(parents=True)  # not one of them is a checkpoint
    for which in ("best", "last", "5"):
        with pytest.raises(UserError, match="has no checkpoint yet; train longer"):
            run.checkpoint(which)


@pytest.mark.parametrize("damage", [None, b"", b"{", b"{}", b"[]", b"3", b"{}\n}\n", b"\xff\n}\n"])
def test_a_damaged_description(damage: bytes | None, run: RunFolder) -> None:
    """The best of several cannot be told any more; those that are whole can still be asked for."""
    for step in (5, 10):
        add_checkpoint(run, step, loss=1.0)
    path = run.checkpoints / "step-000010" / "checkpoint.json"
    path.unlink() if damage is None else path.write_bytes(damage)
    assert run.checkpoint("5").step == 5
    for which in ("best", "last", "10"):
        with pytest.raises(UserError, match=r"step-000010/checkpoint.json: .*is damaged and was not used"):
            run.checkpoint(which)


def test_a_checkpoint_under_another_s_name(run: RunFolder) -> None:
    add_checkpoint(run, 5)
    (run.checkpoints / "step-000005").rename(run.checkpoints / "step-000006")
    with pytest.raises(UserError, match="is not this checkpoint's"):
        run.checkpoint("last")


def test_times_do_not_count(run: RunFolder) -> None:
    """A clock that was set back makes the newest checkpoint the oldest file."""
    for step in (9, 10, 100):
        add_checkpoint(run, step)
        for path in (run.checkpoints / f"step-{step:06d}").rglob("*"):
            os.utime(path, (1e9 - step, 1e9 - step))
    assert [info.step for info in run.checkpoint_list()] == [9, 10, 100]


def test_checkpoints_are_ordered_by_number(run: RunFolder) -> None:
    """Trap 43: the name sorts 100 before 9."""
    for step in (9, 100, 10):
        add_checkpoint(run, step, folder=f"step-{step}")
    assert [info.step for info in run.checkpoint_list()] == [9, 10, 100]
    assert run.checkpoint("last").step == 100
    assert run.checkpoint("10").step == 10
    assert run.checkpoint("best").step == 100  # the newest, where none was validated


@pytest.mark.parametrize("which", ["999", "1", "010", "newest", "", "-1"])
def test_an_unknown_checkpoint_is_answered_with_those_there_are(which: str, run: RunFolder) -> None:
    for step in (9, 10, 100):
        add_checkpoint(run, step)
    with pytest.raises(UserError, match=r"has best, last and the steps 9, 10, 100$"):
        run.checkpoint(which)


@pytest.mark.parametrize(
    ("metric", "best_first"), [("loss", [10, 30, 9, 40]), ("bleu", [40, 9, 10, 30]), ("chrf", [9, 10, 30, 40])]
)
def test_the_best_checkpoint(metric: str, best_first: list[int], run: RunFolder) -> None:
    """By the run's metric; of equals the earlier; an unvalidated one is never the best."""
    add_checkpoint(run, 9, metric, loss=2.0, bleu=20.0, chrf=5.0)
    add_checkpoint(run, 10, metric, loss=1.0, bleu=10.0, chrf=5.0)
    add_checkpoint(run, 30, metric, loss=1.0, bleu=10.0, chrf=5.0)
    add_checkpoint(run, 40, metric, loss=3.0, bleu=30.0, chrf=5.0)
    add_checkpoint(run, 100, metric)
    assert [info.step for info in ranked(run.checkpoint_list())] == best_first
    assert run.checkpoint("best").step == best_first[0]
    assert run.checkpoint("last").step == 100


@pytest.mark.parametrize(("which", "step"), [("best", 20), ("last", 30), ("10", None)])
def test_one_that_is_deleted_while_it_is_read(
    which: str, step: int | None, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the training, which has found a better one: it is looked for again."""
    add_checkpoint(run, 10, loss=3.0)
    read = CheckpointInfo.read

    def read_late(folder: Path) -> CheckpointInfo:
        if folder.name == "step-000010" and folder.exists():
            add_checkpoint(run, 20, loss=1.0)
            add_checkpoint(run, 30, loss=2.0)
            files.delete_folder(folder)
        return read(folder)

    monkeypatch.setattr(CheckpointInfo, "read", read_late)
    if step is None:
        with pytest.raises(UserError, match=r"has best, last and the steps 20, 30$"):
            run.checkpoint(which)
    else:
        assert run.checkpoint(which).step == step
    assert [info.step for info in run.checkpoint_list()] == [20, 30]


def test_all_are_deleted_while_they_are_read(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    add_checkpoint(run, 10, loss=3.0)
    read = CheckpointInfo.read
    monkeypatch.setattr(CheckpointInfo, "read", lambda folder: (files.delete_folder(folder), read(folder)))
    with pytest.raises(UserError, match="has no checkpoint yet"):
        run.checkpoint("best")


def test_a_score_of_zero_is_a_score() -> None:
    infos = [CheckpointInfo(Path(), step, "loss", {"loss": loss}) for step, loss in ((1, 1.0), (2, 0.0))]
    assert [info.step for info in ranked(infos)] == [2, 1]


@pytest.mark.parametrize(("metric", "better"), [("loss", 1.0), ("bleu", 3.0), ("chrf", 3.0)])
def test_is_better(metric: str, better: float) -> None:
    assert is_better(metric, better, than=2.0)
    assert not is_better(metric, 4.0 - better, than=2.0)
    assert not is_better(metric, 2.0, than=2.0)


def test_move_aside_keeps_everything_under_another_name(run: RunFolder) -> None:
    aside = run.move_aside()
    assert not run.path.exists()
    assert aside.parent == run.path.parent
    assert aside.name.startswith("run.")
    assert RunFolder.open(aside).read_record() == {"format": FORMAT}


def test_a_link_to_nowhere_is_named_and_not_waited_for(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    (run.checkpoints / "step-000005").symlink_to(tmp_path / "unmounted")
    with pytest.raises(UserError, match="step-000005"):
        run.checkpoint("best")
