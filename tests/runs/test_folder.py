"""The run folder: its files, its format, and finding checkpoints."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import RUN_RECORD

from transformer_mt.config.section import Section
from transformer_mt.config.yaml_files import read_yaml
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.runs.folder import (
    EXPORT,
    FORMAT,
    HOLDER_FILE,
    LOCK_FILE,
    RunFolder,
    is_locked,
    lock_folder,
    record_start,
)
from transformer_mt.runs.records import CheckpointInfo, rank_checkpoints, write_manifest
from transformer_mt.system import files
from transformer_mt.system.files import MAX_RECORD_BYTES, WRITE_ERROR_REMEDIES, write_text


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that was started and has no checkpoint."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    write_text(run.config, "model: {d_model: 8}\n")
    write_text(run.metadata, json.dumps({**RUN_RECORD, "format": FORMAT}))
    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- writing ----------------------------------------------------------------------------------------------------------


def test_folder_is_removed_if_the_run_was_not_started(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "new" / "run")
    with pytest.raises(ZeroDivisionError), run.locked():
        run.tokenizer.touch()
        raise ZeroDivisionError
    assert not run.path.exists()


@pytest.mark.parametrize("left", [[], ["tokenizer.json"], ["tokenizer.json", "config.yaml", ".run.json.1.tmp"]])
def test_start_that_was_killed_early_is_repeated(left: list[str], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for name in (".lock", *left):
        (run.path / name).touch()
    with run.locked():
        assert not (run.path / ".run.json.1.tmp").exists()
    assert not run.path.exists()


@pytest.mark.parametrize("present", [["tokenizer.json"], [".lock", "thesis.tex", "tokenizer.json"]])
def test_folder_of_other_files_is_refused(present: list[str], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    for name in present:
        (run.path / name).touch()
    with pytest.raises(UserError, match="holds files and is no run"), run.locked():
        pass
    assert names(run.path) == present


def test_locking_removes_leftovers_of_a_killed_process(run: RunFolder) -> None:
    before = names(run.path)
    (run.checkpoints / ".step-000005.77.tmp").mkdir(parents=True)
    (run.checkpoints / ".step-000005.77.tmp" / "model.safetensors").touch()
    (run.path / ".config.yaml.77.tmp").touch()
    with run.locked():
        assert names(run.checkpoints) == []
    assert names(run.path) == sorted([".lock", "checkpoints", *before])


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/step-000005", "tensorboard", ".lock", "metrics.jsonl"])
def test_run_with_a_link_to_the_outside_is_not_trained(name: str, run: RunFolder, tmp_path: Path) -> None:
    """A resume would delete later checkpoints and truncate curves there."""
    (tmp_path / "precious").mkdir()
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=rf"run/{name}: is a link out of the run folder"), run.locked():
        pass
    assert names(run.path / name) == []


def test_checkpoints_behind_a_link_are_read(run: RunFolder, tmp_path: Path) -> None:
    add_checkpoint(run, 5)
    run.checkpoints.rename(tmp_path / "elsewhere")
    run.checkpoints.symlink_to(tmp_path / "elsewhere")
    assert run.find_checkpoint("last").step == 5


def test_move_aside_renames_the_run_with_all_its_files(run: RunFolder) -> None:
    with run.locked():
        aside = run.move_aside()
    assert not run.path.exists()
    assert aside.parent == run.path.parent
    assert aside.name.startswith("run.")
    assert names(aside) == [".lock", "config.yaml", "run.json"]
    assert RunFolder.open(aside).read_record().to_json() == {**RUN_RECORD, "format": FORMAT}


# --- opening ----------------------------------------------------------------------------------------------------------


def test_exported_model_is_refused_with_a_command_to_type(tmp_path: Path) -> None:
    folder = tmp_path / "my engine"
    folder.mkdir()
    (folder / EXPORT).touch()
    with pytest.raises(UserError, match=re.escape(f"`python '{folder}/translate.py'`")):
        RunFolder.open(folder)


@pytest.mark.parametrize(
    ("version", "released", "named"),
    [(3, "0.1.0", "tmt 0.1.x can read it"), (FORMAT + 1, "1.2.3", "tmt 1.2.x"), (0, None, "another version of tmt")],
)
def test_another_format_is_refused_with_the_version_that_reads_it(
    version: int, released: str | None, named: str, run: RunFolder
) -> None:
    provenance = {**RUN_RECORD["provenance"], "versions": {"transformer-mt": released}}
    write_text(run.metadata, json.dumps({**RUN_RECORD, "provenance": provenance, "format": version}))
    with pytest.raises(UserError, match=named):
        RunFolder.open(run.path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"{}", b"\xff"])
def test_damaged_run_json_is_refused(content: bytes, run: RunFolder) -> None:
    run.metadata.write_bytes(content)
    with pytest.raises(UserError, match=r"run.json: is damaged"):
        RunFolder.open(run.path)


def test_oversized_run_json_is_refused_without_blaming_the_disk(run: RunFolder) -> None:
    run.metadata.write_bytes(b" " * (MAX_RECORD_BYTES + 1))
    with pytest.raises(OSError, match="is larger than") as caught:
        RunFolder.open(run.path)
    assert caught.value.errno not in WRITE_ERROR_REMEDIES


class Keep(Section):
    best: int = 1


def test_section_of_the_configuration_is_read(run: RunFolder) -> None:
    write_text(run.config, "keep: {best: 3}\n")
    assert run.read_section("keep", Keep) == Keep(best=3)
    write_text(run.config, "keep: {best: 3, key_of_a_tool: wait}\n")
    assert run.read_section("keep", Keep) == Keep(best=3)
    write_text(run.config, "keep: {best: three}\n")
    with pytest.raises(UserError, match=r"section keep .*config.yaml"):
        run.read_section("keep", Keep)


def test_keys_and_filters_that_were_removed_are_ignored_in_a_run(run: RunFolder) -> None:
    write_text(run.config, "train: {ledger: yes, max_steps: 1}\ndata: {filters: [{score: {min: 1}}, {copy: {}}]}\n")
    assert run.read_config().values == {"train": {"max_steps": "1"}, "data": {"filters": [{"copy": {}}]}}
    write_text(run.config, "model: {layer_drop: 0.1, encoder: {layer_drop: null}, norm_position: sublayer}\n")
    assert run.read_config().values == {"model": {"encoder": {}, "norm_position": "sublayer"}}
    with pytest.raises(UserError, match="section model is damaged; run"):
        run.read_section("model", ModelConfig)
    for damaged in ("train: 3\n", "data: {filters: score}\n", "data: {filters: [3, [4]]}\n"):
        write_text(run.config, damaged)
        assert run.read_config().values == read_yaml(run.config).values


@pytest.mark.parametrize("key", ["model.qk_norm", "model.embedding_norm", "data.train.reverse", "data.test.x.reverse"])
def test_a_run_that_needs_a_removed_key_is_refused(key: str, run: RunFolder) -> None:
    *sections, name = key.split(".")
    text = "".join(f"{section}: {{" for section in sections) + name + ": %s" + "}" * len(sections) + "\n"
    write_text(run.config, text % "false")
    assert name not in str(run.read_config().values)
    write_text(run.config, text % "true")
    with pytest.raises(UserError, match=rf"config\.yaml: .*{name}: .*0\.2\.0"):
        run.read_config()


# --- checkpoints ------------------------------------------------------------------------------------------------------


def add_checkpoint(run: RunFolder, step: int, metric: str = "loss", folder: str = "", **scores: float) -> None:
    path = run.checkpoints / (folder or f"step-{step:06d}")
    path.mkdir(parents=True)
    write_manifest(path / "checkpoint.json", {"step": step, "metric": metric, "scores": scores})


def test_run_without_checkpoints_is_refused(run: RunFolder) -> None:
    for name in ("step-000005.damaged", "step-000005.damaged-2", ".step-000005.7.tmp", "step-x", "other"):
        (run.checkpoints / name).mkdir(parents=True)  # none of them is a checkpoint
    for which in ("best", "last", "5"):
        with pytest.raises(UserError, match="has no checkpoint; train longer"):
            run.find_checkpoint(which)


@pytest.mark.parametrize("content", [None, b"", b"{", b"{}", b"[]", b"3", b"{}\n}\n", b"\xff\n}\n"])
def test_damaged_description_is_refused_where_it_is_needed(content: bytes | None, run: RunFolder) -> None:
    """The best checkpoint is then unknown; intact ones can still be named."""
    for step in (5, 10):
        add_checkpoint(run, step, loss=1.0)
    path = run.checkpoints / "step-000010" / "checkpoint.json"
    path.unlink() if content is None else path.write_bytes(content)
    assert run.find_checkpoint("5").step == 5
    for which in ("best", "last", "10"):
        with pytest.raises(UserError, match=r"step-000010/checkpoint.json: "):
            run.find_checkpoint(which)


def test_checkpoint_under_the_name_of_another_step_is_refused(run: RunFolder) -> None:
    add_checkpoint(run, 5)
    (run.checkpoints / "step-000005").rename(run.checkpoints / "step-000006")
    with pytest.raises(UserError, match="belongs to another step"):
        run.find_checkpoint("last")


def test_link_to_a_missing_checkpoint_is_refused(run: RunFolder, tmp_path: Path) -> None:
    """It is not mistaken for a checkpoint that training has just deleted, because the retry would never end."""
    run.checkpoints.mkdir()
    (run.checkpoints / "step-000005").symlink_to(tmp_path / "unmounted")
    with pytest.raises(UserError, match="step-000005"):
        run.find_checkpoint("best")


def test_checkpoints_are_ordered_by_number(run: RunFolder) -> None:
    """Trap 43: by name, 100 comes before 9; by time, after the clock was set back, the newest comes first."""
    for step in (9, 100, 10):
        add_checkpoint(run, step, folder=f"step-{step}")
        for path in (run.checkpoints / f"step-{step}").rglob("*"):
            os.utime(path, (1e9 - step, 1e9 - step))
    assert [info.step for info in run.list_checkpoints()] == [9, 10, 100]
    assert run.find_checkpoint("last").step == 100
    assert run.find_checkpoint("10").step == 10
    assert run.find_checkpoint("best").step == 100  # the newest, because none was validated


@pytest.mark.parametrize("which", ["999", "1", "010", "newest", "", "-1"])
def test_unknown_checkpoint_is_refused_with_a_list(which: str, run: RunFolder) -> None:
    for step in (9, 10, 100):
        add_checkpoint(run, step)
    with pytest.raises(UserError, match=r"has best, last and the steps 9, 10, 100$"):
        run.find_checkpoint(which)


@pytest.mark.parametrize(
    ("metric", "best_first"), [("loss", [10, 30, 9, 40]), ("bleu", [40, 9, 10, 30]), ("chrf", [9, 10, 30, 40])]
)
def test_best_checkpoint_is_chosen_by_the_metric(metric: str, best_first: list[int], run: RunFolder) -> None:
    """The earlier one of equal scores is better; a checkpoint without scores is never the best."""
    add_checkpoint(run, 9, metric, loss=2.0, bleu=20.0, chrf=5.0)
    add_checkpoint(run, 10, metric, loss=1.0, bleu=10.0, chrf=5.0)
    add_checkpoint(run, 30, metric, loss=1.0, bleu=10.0, chrf=5.0)
    add_checkpoint(run, 40, metric, loss=3.0, bleu=30.0, chrf=5.0)
    add_checkpoint(run, 100, metric)
    assert [info.step for info in rank_checkpoints(run.list_checkpoints())] == best_first
    assert run.find_checkpoint("best").step == best_first[0]
    assert run.find_checkpoint("last").step == 100


@pytest.mark.parametrize(("which", "step"), [("best", 20), ("last", 30), ("10", None)])
def test_checkpoint_deleted_while_it_is_read_is_chosen_again(
    which: str, step: int | None, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            run.find_checkpoint(which)
    else:
        assert run.find_checkpoint(which).step == step
    assert [info.step for info in run.list_checkpoints()] == [20, 30]


def test_all_checkpoints_deleted_while_they_are_read(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    add_checkpoint(run, 10, loss=3.0)
    read = CheckpointInfo.read
    monkeypatch.setattr(CheckpointInfo, "read", lambda folder: (files.delete_folder(folder), read(folder)))
    with pytest.raises(UserError, match="has no checkpoint; "):
        run.find_checkpoint("best")


# --- The run lock: one process at a time trains a run -----------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from transformer_mt.runs.folder import lock_folder
from transformer_mt.errors import UserError
try:
    with lock_folder(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
except UserError as error:
    print(error)
"""


@contextmanager
def other_process(folder: Path) -> Generator[subprocess.Popen[str]]:
    """Start a process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("function", ["os.open", "pathlib.Path.write_text"], ids=["lock", "its holder"])
def test_a_run_on_a_read_only_disk_is_refused_with_a_remedy(
    function: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(function, refuse)
    with pytest.raises(UserError, match=f"{tmp_path}: cannot be written: .*runs_dir"), lock_folder(tmp_path):
        pass


def test_lock_is_refused_to_another_process_and_names_its_holder(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        refusal = subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout.strip()
    host = re.escape(socket.gethostname())
    assert re.fullmatch(
        rf"{tmp_path}: another process is training this run \(process {os.getpid()} on {host}"
        r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\); wait for it or stop it",
        refusal,
    )
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def test_lock_of_a_killed_process_is_taken_at_once(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with other_process(tmp_path) as process:
        assert is_locked(tmp_path)
        with pytest.raises(UserError, match=rf"\(process {process.pid} on .* since "), lock_folder(tmp_path):
            pass
        process.kill()
        process.wait()
        assert str(process.pid) in (tmp_path / HOLDER_FILE).read_text(encoding="utf-8")
        assert not is_locked(tmp_path)
        with lock_folder(tmp_path):
            assert str(os.getpid()) in (tmp_path / HOLDER_FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"host": "x"}', "\0" * 100])
def test_unreadable_holder_file_leaves_out_the_holder(content: str | None, tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        path = tmp_path / HOLDER_FILE
        path.unlink() if content is None else path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="another process is training this run; wait"), lock_folder(tmp_path):
            pass


def test_asking_in_a_loop_whether_a_run_is_locked_refuses_no_start(tmp_path: Path) -> None:
    ask = """
import sys
from pathlib import Path
from transformer_mt.runs.folder import is_locked
print("asking", flush=True)
while True:
    is_locked(Path(sys.argv[1]))
"""
    with subprocess.Popen([sys.executable, "-c", ask, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asking\n"
        for _ in range(20):
            with lock_folder(tmp_path):
                pass
        process.kill()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_that_cannot_be_written_is_not_locked(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        holder = (tmp_path / HOLDER_FILE).read_bytes()
    (tmp_path / HOLDER_FILE).write_bytes(holder)  # of a killed process
    for path in (tmp_path / LOCK_FILE, tmp_path):
        path.chmod(path.stat().st_mode & ~0o222)
    assert not is_locked(tmp_path)


def test_the_processes_of_all_nodes_and_of_one_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    facts: dict[str, Any] = {"fingerprints": {}, "sizes": {}, "lengths": {}, "warm_start": None}
    record_start(RunFolder(tmp_path), "", hardware="CPU", parameters=1, report=[], **facts)
    record = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (record["processes"], record["local_processes"]) == (8, 4)
