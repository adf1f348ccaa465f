"""`tmt train` with damaged runs, full disks and unusable data."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any, NoReturn

import pytest
import torch
from helpers import Tmt, assert_user_error, read_folder, read_metrics

from transformer_mt.runs.folder import RunFolder

TRAIN = ("train", "--config", "tiny.yaml")


def test_a_failed_save_leaves_no_partial_checkpoint(run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command resumes after space was freed."""
    before = read_folder(run_copy / "checkpoints")

    def save(_: object, file: IO[bytes]) -> NoReturn:
        file.write(b"half")
        raise RuntimeError("unexpected pos 704")

    message = "step-000014: the checkpoint cannot be written: unexpected pos 704"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        assert_user_error(tmt(*TRAIN, "train.max_steps=14"), message, "run the same command again to resume")
    assert read_folder(run_copy / "checkpoints") == before
    assert tmt(*TRAIN, "train.max_steps=14").returncode == 0
    assert list(read_metrics(run_copy)["valid/loss"]) == [4, 8, 12, 14]


@pytest.mark.parametrize("when", ["torch.save", "transformer_mt.flows.train.write_readme"])
def test_a_run_that_was_moved_is_reported(when: str, run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is not made again, so that it can be moved back, and the same command resumes."""
    before, moved = resolve_name(when), run_copy.with_name("moved")

    def move(*arguments: Any, **options: Any) -> None:
        if run_copy.exists():
            run_copy.rename(moved)
        before(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(when, move)
        done = tmt(*TRAIN, "train.max_steps=20", "validation.every=4")
    assert_user_error(done, "runs/tiny: was moved or deleted")
    assert "disk" not in done.stderr
    assert not run_copy.exists()
    moved.rename(run_copy)
    assert tmt(*TRAIN, "train.max_steps=14").returncode == 0


@pytest.mark.parametrize("runs_dir", ["/proc/nowhere", "train.en", "/dev/null"])
def test_a_runs_dir_that_cannot_contain_folders_is_refused(runs_dir: str, in_tiny: Path, tmt: Tmt) -> None:
    assert_user_error(tmt(*TRAIN, f"runs_dir={runs_dir}"), f"{runs_dir}")


@pytest.mark.parametrize(
    ("train", "parts"),
    [
        ("{src: W/nope, tgt: W/two}", ("data.train: ", "W/nope: no such file")),
        ("{src: W/two, tgt: W/ten}", ("W/two has 2 lines, W/ten has 10",)),
        ("{src: W/two, tgt: W/blank}", ("none of 2 pairs is left: 2 have an empty side",)),
    ],
)
def test_unusable_training_data_is_refused(
    train: str, parts: tuple[str, ...], unusable: Path, in_tiny: Path, tmt: Tmt, tmp_path: Path
) -> None:
    done = tmt(*TRAIN, f"data.train={train}".replace("W", str(unusable)), f"runs_dir={tmp_path}")
    assert_user_error(done, *(part.replace("W", str(unusable)) for part in parts))
    assert not RunFolder(tmp_path / "tiny").exists()
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (
            ("data.max_length=2",),
            "none of 50 pairs is left: 0 have an empty side, 50 are longer than",
        ),
        (
            ("data.validation=null", "data.train={src: W/two, tgt: W/two}"),
            "2 training pairs are too few to split some off",
        ),
        (("device=cuda:99",), "device: cuda:99 is not available"),
        (("scoring.text=moses", "data.tgt_lang=xx"), 'scoring.text: Moses has no rules for "xx"'),
    ],
)
def test_unusable_settings_are_refused_before_a_run_exists(
    overrides: tuple[str, ...], part: str, unusable: Path, in_tiny: Path, tmt: Tmt, tmp_path: Path
) -> None:
    done = tmt(*TRAIN, *(override.replace("W", str(unusable)) for override in overrides), f"runs_dir={tmp_path}")
    assert_user_error(done, part.replace("W", str(unusable)))
    assert not RunFolder(tmp_path / "tiny").exists()


def test_a_damaged_tokenizer_file_is_reported(run_copy: Path, tmt: Tmt) -> None:
    (run_copy / "tokenizer.json").write_text("{}")
    assert_user_error(tmt("translate", run_copy, "one"), f"{run_copy}/tokenizer.json: ")
    (run_copy / "tokenizer.json").unlink()
    assert_user_error(tmt("translate", run_copy, "one"), "no such file; the run folder is incomplete")
