"""Runs of format 3: commands read them, but `tmt train` does not resume them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Tmt = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def old_run(tiny_run: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny run as an earlier version left it, in a copy of its working directory."""
    shutil.copytree(tiny, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    run = Path("runs") / tiny_run.name
    metadata = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps({**metadata, "format": 3}), encoding="utf-8")
    config = (run / "config.yaml").read_text(encoding="utf-8")
    old_config = config.replace("\nkeep:", "\nkeep:\n  when_full: exit").replace("kind: adam", "kind: schedule_free")
    assert old_config.count("when_full") == old_config.count("schedule_free") == 1
    (run / "config.yaml").write_text(old_config, encoding="utf-8")
    return run


@pytest.mark.parametrize(
    "command",
    [
        "translate RUN one",
        "evaluate RUN",
        "export RUN --to weights --output weights",
        "config RUN --tokens one",
    ],
)
def test_command_reads_format_3(command: str, old_run: Path, tmt: Tmt) -> None:
    done = tmt(*command.replace("RUN", str(old_run)).split())
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_exported_weights_of_format_3_are_read_and_start_a_new_run(old_run: Path, tmt: Tmt) -> None:
    assert tmt("export", old_run, "--to", "weights", "--output", "weights").returncode == 0
    assert tmt("translate", "weights", "one").stdout == tmt("translate", old_run, "one").stdout
    for name, start in (("one", "weights"), ("two", old_run)):
        done = tmt("train", "--config", "tiny.yaml", "train.max_steps=1", f"name={name}", f"train.init_from={start}")
        assert done.returncode == 0, done.stderr


def test_train_refuses_to_resume_format_3(old_run: Path, tmt: Tmt) -> None:
    before = {path: path.read_bytes() for path in old_run.rglob("*") if path.is_file()}
    done = tmt("train", "--config", "tiny.yaml", "train.max_steps=14")
    assert done.returncode == 2
    assert done.stderr == (
        "tmt: runs/tiny: was trained by an earlier version (run format 3), and this one cannot resume it;\n"
        "continue from its weights in a new run (name=NEW train.init_from=runs/tiny), or train again with --restart\n"
    )
    assert {path: path.read_bytes() for path in old_run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_train_restarts_a_run_of_format_3(old_run: Path, tmt: Tmt) -> None:
    done = tmt("train", "--config", "tiny.yaml", "train.max_steps=1", "--restart")
    assert done.returncode == 0, done.stderr
    assert json.loads((old_run / "run.json").read_text(encoding="utf-8"))["format"] == 4
