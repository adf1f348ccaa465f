"""`tmt export --average`: the mean of the weights of checkpoints, and its validation scores."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import Tmt, assert_succeeded, assert_user_error, load_plain, read_folder
from safetensors.torch import load_file

from transformer_mt.errors import UserError
from transformer_mt.flows import export
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import CheckpointInfo


@pytest.fixture(scope="module")
def longer(tiny_run: Path, tiny: Path, tmt: Tmt, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Resume the tiny run to step 20, and keep all its checkpoints."""
    folder = tmp_path_factory.mktemp("average") / "copy"
    shutil.copytree(tiny, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = tmt("train", "--config", "tiny.yaml", "train.max_steps=20", "keep.last=9", "keep.best=9")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def run(longer: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(longer)
    return RunFolder.open("runs/tiny")


def test_the_result_is_the_mean_of_the_weights(run: RunFolder, tmt: Tmt, tmp_path: Path) -> None:
    before = read_folder(run.path)
    printed = assert_succeeded(tmt("export", run.path, "--average", 3, "--output", tmp_path / "mean"))
    assert read_folder(run.path) == before, "the run has not changed"
    steps = [info.step for info in run.list_checkpoints()[-3:]]
    assert steps == [12, 16, 20]
    parts = [load_file(run.find_checkpoint(str(step)).path / "model.safetensors") for step in steps]
    found = load_file(RunFolder.open(tmp_path / "mean").find_checkpoint("best").path / "model.safetensors")
    assert found.keys() == parts[0].keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, torch.stack([part[name].double() for part in parts]).mean(0).float()), name
    assert "steps 12, 16, 20, " in printed


def test_the_mean_is_validated_like_the_checkpoints(run: RunFolder, tmt: Tmt, tmp_path: Path, tiny: Path) -> None:
    """The mean of two copies of a checkpoint has the scores of the checkpoint."""
    done = shutil.copytree(run.path, tmp_path / "twin")
    twin = RunFolder.open(done)
    last = run.find_checkpoint("last")
    for step in (101, 102):  # the newest
        from transformer_mt.runs.checkpoints import save

        info = CheckpointInfo(twin.checkpoints / f"step-{step:06d}", step, last.metric, {})
        save(info, load_plain(run.path, "last", precision="fp32").model, None)
    assert_succeeded(tmt("export", twin.path, "--average", 2, "--output", tmp_path / "mean"))
    scores = RunFolder.open(tmp_path / "mean").find_checkpoint("best").scores
    assert scores.keys() == last.scores.keys()
    for name, value in last.scores.items():
        assert scores[name] == pytest.approx(value, rel=1e-5), name


def test_scores_are_printed_with_those_of_the_checkpoints(run: RunFolder, tmt: Tmt, tmp_path: Path) -> None:
    printed = assert_succeeded(
        tmt("export", run.path, "--average", 2, "--checkpoint", "best", "--output", tmp_path / "mean")
    ).split("\n")
    assert printed[0].split() == ["step", "loss", "nll", "ppl", "bleu", "chrf", "degenerate"]
    rows = {line.split()[0]: line.split()[1:] for line in printed[1:4]}
    best = sorted(run.list_checkpoints(), key=lambda info: info.scores["loss"])[:2]
    assert list(rows) == [*sorted((str(info.step) for info in best), key=int), "average"]
    for info in best:
        assert rows[str(info.step)][0] == f"{info.scores['loss']:.4f}"
    mean = RunFolder.open(tmp_path / "mean").find_checkpoint("best")
    assert rows["average"][0] == f"{mean.scores['loss']:.4f}"
    assert mean.step == max(info.step for info in best)


def test_a_checkpoint_deleted_by_a_running_training_is_reported(run: RunFolder) -> None:
    found = [replace(run.find_checkpoint("last"), path=run.checkpoints / "step-000099")]
    with pytest.raises(UserError, match="step-000099: was deleted"):
        export.load_average(load_plain(run.path).model, found)


@pytest.mark.slow
def test_the_folder_is_read_like_a_run_and_the_training_can_continue(
    longer: Path, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(longer, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    out = Path("runs/mean")
    printed = assert_succeeded(tmt("export", "runs/tiny", "--average", 2, "--output", out))
    assert f"{out}: weights of runs/tiny, steps 16, 20" in printed
    translations = assert_succeeded(tmt("translate", out, "one two three"))
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "- Weights only: the mean of runs/tiny, steps 16, 20" in card
    assert "- unseen, at step" not in card, "the mean has no test scores"
    done = tmt("train", "--config", "tiny.yaml", "train.max_steps=24")
    assert_succeeded(done)
    assert "resuming after step 20" in done.stderr
    run = RunFolder.open("runs/tiny")
    assert run.find_checkpoint("last").step == 24
    assert assert_succeeded(tmt("translate", out, "one two three")) == translations
    assert "holds only weights" in tmt("train", "--config", "tiny.yaml", f"name={out.name}").stderr
    assert_succeeded(tmt("export", out, "--to", "weights", "--output", "again"))


@pytest.mark.parametrize("option", [["--src", "train.en"], ["--quantization", "int8"]])
def test_only_the_given_option_is_refused(option: list[str], run: RunFolder, tmt: Tmt) -> None:
    done = tmt("export", run.path, "--output", "new", *option)
    assert_user_error(done, option[0])
    assert {"--src", "--quantization"} & {*done.stderr.split()} == {option[0]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--average", "7"], "runs/tiny has only 4 of 7 checkpoints (steps: 20, 16, 12, 8)"),
        (["--average", "2", "--checkpoint", "8"], "pass --checkpoint best"),
    ],
)
def test_wrong_arguments_are_refused(run: RunFolder, tmt: Tmt, words: list[str], message: str) -> None:
    before = sorted(Path("runs").iterdir())
    done = tmt("export", run.path, "--output", "runs/mean", *words)
    assert_user_error(done, message)
    assert_user_error(tmt("export", run.path, "--output", "runs", "--average", 2), "runs: exists already; pass a new")
    assert sorted(Path("runs").iterdir()) == before


def test_changed_validation_pairs_are_refused(
    longer: Path, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores on other pairs are not comparable, and the pairs may be training pairs."""
    shutil.copytree(longer, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    for lang in ("en", "de"):
        with Path(f"valid.{lang}").open("a", encoding="utf-8") as file:
            file.write("one\n")
    done = tmt("export", "runs/tiny", "--average", 2, "--output", "runs/mean")
    assert_user_error(done, "export: the validation pairs of runs/tiny")
    assert not Path("runs/mean").exists()
