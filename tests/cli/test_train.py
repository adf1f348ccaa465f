"""`tmt train`: the log, resuming, restarting."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any, NoReturn

import pytest
import torch
from helpers import Tmt, assert_succeeded, assert_user_error, read_curves, read_folder, read_metrics
from safetensors.torch import load_file

from transformer_mt.data.sources import load_pairs
from transformer_mt.errors import Interrupted
from transformer_mt.flows import configuration
from transformer_mt.flows.run_overview import list_runs
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import write_manifest
from transformer_mt.system import device
from transformer_mt.training.trainer import StepDone, Trainer

TRAIN = ("train", "--config", "tiny.yaml")


def test_training_logs_data_progress_and_the_end(tiny_run: Path, in_tiny: Path) -> None:
    printed = (in_tiny / "train.log").read_text(encoding="utf-8").split("\n")
    assert re.fullmatch(
        r"training tiny: \w+ to \w+, on cpu \(precision \w+, threads 1\), until 12 steps.*; a validation every 4 .*",
        printed[0],
    )
    assert printed[1:6] == [
        "data: learning the vocabulary from 50 pairs",
        "data: the text fills 326 of 340 entries (tokenizer.vocab_size)",
        "data: 50 training pairs, 150 source and 150 target tokens (mean 3.0 and 3.0 a sentence)",
        "data: 8 pairs in validation",
        "data: 6 pairs in unseen",
    ]
    assert "step 1 begins; a line every 3 steps (train.log_every)" in printed
    assert any(
        re.fullmatch(r"step 3 of 12  loss \d\.\d+  ppl [\d.]+  [\d,]+ tokens/s  .* left", line) for line in printed
    )
    assert any(re.match(r"step 4  validation  loss .* bleu .*\(best so far\)", line) for line in printed)
    assert sum(line.startswith("  reference  ") for line in printed) == 3 * 2
    ended = r"training ended: train.max_steps 12 reached; \d+ seconds in total"
    assert any(re.fullmatch(ended, line) for line in printed)
    assert "the run is in runs/tiny; next:" in printed
    assert printed[-2].startswith("tensorboard --logdir runs/tiny  ")


def test_a_finished_training_is_not_repeated(run_copy: Path, tmt: Tmt) -> None:
    tmt(*TRAIN)  # writes the lengths to run.json, which the tiny run lacks
    before, curves = read_folder(run_copy), read_curves(run_copy)
    done = tmt(*TRAIN)
    assert done.returncode == 0
    assert "resuming after step 12" in done.stderr
    after = read_folder(run_copy)
    differing = {name for name in {**before, **after} if before.get(name) != after.get(name)}
    assert all(name.startswith("tensorboard/") for name in differing)  # the scores of test sets move to a new file
    assert read_curves(run_copy) == curves


@pytest.mark.parametrize("deletes_curves", [False, True])
def test_a_run_without_checkpoints_says_that_it_starts_again(deletes_curves: bool, run_copy: Path, tmt: Tmt) -> None:
    shutil.rmtree(run_copy / "checkpoints")
    if deletes_curves:
        (run_copy / "metrics.jsonl").unlink()
    done = tmt(*TRAIN)
    assert_succeeded(done)
    assert ("runs/tiny: has no checkpoint" in done.stderr) is not deletes_curves
    assert RunFolder.open(run_copy).list_checkpoint_folders()


def test_training_resumes_with_more_steps(run_copy: Path, tmt: Tmt) -> None:
    done = tmt(*TRAIN, "train.max_steps=14", "threads=2")
    assert done.returncode == 0
    assert "threads: 1 -> 2\ntrain.max_steps: 12 -> 14\n" in done.stderr
    assert "device, threads or compile changed: results may differ in the last bits" in done.stderr
    assert list(read_metrics(run_copy)["valid/loss"]) == [4, 8, 12, 14]
    assert "train.max_steps 14 reached" in (run_copy / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_auto_threads_are_resolved_again_if_the_process_count_changes(
    run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same process count they stay the same, because rounding depends on them."""

    def train_and_load_threads(processes: int, cores: int, max_steps: int) -> object:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
        done = tmt(*TRAIN, "name=shared", "threads=auto", f"train.max_steps={max_steps}")
        assert done.returncode == 0, done.stderr
        return configuration.load(run_copy.with_name("shared") / "config.yaml").threads

    assert [train_and_load_threads(2, 4, 1), train_and_load_threads(2, 8, 2)] == [2, 2]
    assert [train_and_load_threads(1, 8, 3), train_and_load_threads(1, 4, 4)] == [1, 1]  # the default of torch here
    assert train_and_load_threads(4, 12, 5) == 3


def test_the_speed_after_a_resume_is_that_of_the_new_process(run_copy: Path, tmt: Tmt) -> None:
    """The process before it took a million seconds for a trillion tokens since the last line."""
    folder = RunFolder(run_copy).find_checkpoint("8").path
    state: dict[str, Any] = torch.load(folder / "training.pt", weights_only=True)
    state["window"].update(seconds=1e6, seconds_waiting=1e6)
    state["window"]["sums"]["n_tgt"] += 1e12
    torch.save(state, folder / "training.pt")
    about = json.loads((folder / "checkpoint.json").read_text())
    write_manifest(folder / "checkpoint.json", {key: about[key] for key in ("step", "metric", "scores", "stopped")})
    done = tmt(*TRAIN, "--checkpoint", "8", "train.max_steps=9")
    assert done.returncode == 0, done.stderr
    assert "step 9 begins; a line every 3 steps" in done.stderr
    metrics = read_metrics(run_copy)
    assert 1 < metrics["train/tokens_per_second"][9] < 1e8
    assert 0 <= metrics["train/data_wait"][9] <= 1


def test_training_resumes_from_an_earlier_checkpoint(run_copy: Path, tmt: Tmt) -> None:
    expected = load_file(RunFolder(run_copy).find_checkpoint("12").path / "model.safetensors")
    done = tmt(*TRAIN, "--checkpoint", "8")
    assert done.returncode == 0
    assert "resuming after step 8\n" in done.stderr
    assert list(read_metrics(run_copy)["valid/loss"]) == [4, 8, 12]
    again = load_file(RunFolder(run_copy).find_checkpoint("12").path / "model.safetensors")
    assert all(torch.equal(again[name], expected[name]) for name in expected)


def test_a_run_that_resumes_earlier_is_no_longer_finished(
    run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its README no longer shows the scores of the deleted checkpoint."""

    def fit(_: Trainer) -> NoReturn:
        raise Interrupted(15, "step 8")

    monkeypatch.setattr(Trainer, "fit", fit)
    readme = (run_copy / "README.md").read_text(encoding="utf-8")
    assert "Status: finished at step 12 of 12: " in readme and "unseen, at step " in readme
    done = tmt(*TRAIN, "--checkpoint", "8")
    assert done.returncode == 128 + 15
    assert "tmt: stopped by SIGTERM and saved at step 8; leave out --restart and --checkpoint to resume" in done.stderr
    readme = (run_copy / "README.md").read_text(encoding="utf-8")
    assert "Status: stopped at step 8 of 12\n" in readme
    assert "step 12" not in readme and "unseen" not in readme.partition("## Scores")[2]


def test_an_interrupted_run_names_its_best_step_in_log_and_readme(
    in_tiny: Path, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives in step 6, after a validation at step 4."""
    readmes: list[str] = []
    take_step, run = Trainer.take_step, RunFolder(tmp_path / "cut")

    def interrupted_step(self: Trainer) -> StepDone:
        if self.progress.step == 5:
            readmes.append(run.readme.read_text(encoding="utf-8"))
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(self)

    monkeypatch.setattr(Trainer, "take_step", interrupted_step)
    done = tmt(*TRAIN, f"runs_dir={tmp_path}", "name=cut")
    assert done.returncode == 128 + signal.SIGINT
    loss = read_metrics(run.path)["valid/loss"][4]
    best = f"best so far: step 4, loss {loss:.4f}"
    assert f"tmt: stopped by SIGINT and saved at step 6; {best}; the same command resumes\n" in done.stderr
    assert "Status: running at step 4 of 12 when this file was written\n" in readmes[0]
    readme = run.readme.read_text(encoding="utf-8")
    assert "Status: stopped at step 6 of 12\n" in readme
    assert f"validation, at step 4 (the best by loss, greedy): loss {loss:.3f}" in readme
    (listed,) = list_runs(run.path)
    assert (listed.status, listed.step, listed.max_steps) == ("stopped", 6, 12)


def test_an_unknown_checkpoint_deletes_nothing(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy / "checkpoints")
    assert_user_error(tmt(*TRAIN, "--checkpoint", "9"), "best, last and the steps 8, 12")
    assert_user_error(tmt(*TRAIN, "name=new", "--checkpoint", "8"), "new: has no checkpoint; ")
    assert not Path("runs/new").exists()
    assert read_folder(run_copy / "checkpoints") == before


def test_a_refused_resume_changes_nothing(run_copy: Path, tmt: Tmt) -> None:
    """Another version of the program has written the progress of this complete checkpoint."""
    folder = run_copy / "checkpoints" / "step-000008"
    state: dict[str, Any] = torch.load(folder / "training.pt", weights_only=True)
    torch.save({**state, "progress": {"since": "another version"}}, folder / "training.pt")
    about = json.loads((folder / "checkpoint.json").read_text())
    write_manifest(folder / "checkpoint.json", {key: about[key] for key in ("step", "metric", "scores", "stopped")})
    before = read_folder(run_copy)
    assert_user_error(tmt(*TRAIN, "train.max_steps=14", "--checkpoint", "8"), "step-000008/training.pt: ")
    assert read_folder(run_copy) == before


def test_resume_refuses_and_lists_changed_settings(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    done = tmt(*TRAIN, "model.d_ff=64", "seed=7", "keep.last=9")
    refused_lines = done.stderr[done.stderr.index("tmt: ") :].split("\n")
    assert done.returncode == 2
    assert refused_lines == [
        "tmt: runs/tiny: this run was created with other settings:",
        "  seed: 1 -> 7",
        "  model.d_ff: 32 -> 64",
        "resume with the settings of the run: tmt train --config runs/tiny/config.yaml",
        "or choose another name (name=...), or start over with tmt train --restart (the old run is moved aside)",
        "",
    ]
    assert read_folder(run_copy) == before


CHANGES = ("tokenizer.vocab_size=350", "schedule.warmup_steps=99", "data.filters=[duplicate]")


def test_the_suggested_command_resumes_the_run(run_copy: Path, tmt: Tmt) -> None:
    """Also if settings differ that may change, such as `keep.last`, and if the run was moved."""
    run_copy.rename(run_copy.with_name("moved"))
    before = (run_copy.with_name("moved") / "config.yaml").read_text(encoding="utf-8")
    refused = tmt(*TRAIN, "name=moved", "keep.last=9", *CHANGES)
    assert refused.returncode == 2
    (suggested,) = re.findall("^resume with the settings of the run: tmt (.*)$", refused.stderr, re.MULTILINE)
    done = tmt(*shlex.split(suggested))
    assert_succeeded(done)
    assert "resuming after step 12\n" in done.stderr
    after = RunFolder(run_copy.with_name("moved")).config.read_text(encoding="utf-8")
    assert after.replace("name: moved", "name: tiny") == before


@pytest.mark.parametrize("place", ["runs/new", "elsewhere/deep/tiny", "runs/a new name", "top"])
@pytest.mark.parametrize("inside", [False, True], ids=["from outside", "in the folder"])
def test_a_renamed_or_moved_folder_is_resumed(
    place: str, inside: bool, run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is the run, whatever its configuration says."""
    folder = Path(place).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    run_copy.rename(folder)
    config = f"{place}/config.yaml"
    if inside:  # the texts are relative to the current folder, so that they are in it, too
        for text in Path().glob("*.*"):
            (folder / text.name).write_bytes(text.read_bytes())
        monkeypatch.chdir(folder)
        config = "config.yaml"
    done = tmt("train", "--config", config)
    assert_succeeded(done)
    assert "resuming after step 12\n" in done.stderr
    assert not run_copy.exists()


def test_another_name_starts_a_new_run_with_the_settings_of_a_renamed_one(run_copy: Path, tmt: Tmt) -> None:
    run_copy.rename(run_copy.with_name("new"))
    done = tmt("train", "--config", "runs/new/config.yaml", "name=third")
    assert_succeeded(done)
    assert "resuming" not in done.stderr
    assert RunFolder(run_copy.with_name("third")).exists()


def test_resume_refuses_changed_text(run_copy: Path, tmt: Tmt) -> None:
    Path("train.de").write_text(Path("train.de").read_text().replace("eins", "ein"))
    before = read_folder(run_copy)
    assert_user_error(tmt(*TRAIN), "the text of train has changed", "(written after it: train.de)")
    assert read_folder(run_copy) == before


def test_a_refused_restart_keeps_the_old_run(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    missing = "data.train={src: missing.en, tgt: train.de}"
    refusals = {missing: "missing.en: no such file", "device=cuda:99": "device: cuda:99 is not available"}
    for change, reason in refusals.items():
        done = tmt(*TRAIN, "--restart", change)
        assert_user_error(done, reason)
        assert "no new run was created; the old run is runs/tiny again" in done.stderr
        assert [*run_copy.parent.glob("tiny*")] == [run_copy]
        assert read_folder(run_copy) == before


def test_changed_decoding_rescores_the_test_sets(run_copy: Path, tmt: Tmt) -> None:
    """A setting that does not affect translations causes no rescoring."""
    before = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    for change in ("decoding.batch_tokens=64", "decoding.beam=1"):
        done = tmt(*TRAIN, change)
        assert done.returncode == 0, done.stderr
        assert ("unseen (" in done.stderr) == (change == "decoding.beam=1")
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    assert record["tested"] == {"step": 12, "decoding": {**before["tested"]["decoding"], "beam": 1}}


# --- tmt train with damaged runs, full disks and unusable data --------------------------------------------------------


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


@pytest.mark.parametrize(
    "when",
    ["torch.save", "transformer_mt.training.metrics_logger.append_text", "transformer_mt.flows.train.write_readme"],
)
def test_the_folder_of_a_run_that_was_moved_is_not_made_again(
    when: str, run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder can then be moved back, and the same command resumes."""
    before, moved = resolve_name(when), run_copy.with_name("moved")

    def move(*arguments: Any, **options: Any) -> None:
        if run_copy.exists():
            run_copy.rename(moved)
        before(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(when, move)
        done = tmt(*TRAIN, "train.max_steps=20", "validation.every=4")
    assert_user_error(done, "runs/tiny: the run folder was moved or deleted; ")
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


def test_held_out_text_in_other_languages_gives_a_warning(run_copy: Path, tmt: Tmt) -> None:
    sides = [*zip(*load_pairs("validation")[:30], strict=True)]
    for name, lines in zip(("v.en", "v.de"), sides, strict=True):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    tests = "data.test={good: {src: v.en, tgt: v.de}, bad: {src: v.de, tgt: v.en}}"
    validation = "data.validation={src: v.en, tgt: v.en}"
    settings = "train.max_steps=2", "data.src_lang=en", "data.tgt_lang=de"
    done = tmt(*TRAIN, "name=other", *settings, tests, validation)
    assert_succeeded(done)
    found = [line for line in done.stderr.splitlines() if "seems to be in" in line]
    assert [line.split(": ")[2] for line in found] == ["data.validation", "data.test.bad"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch can use the GPU")
@pytest.mark.parametrize(("requested", "has_driver"), [("auto", True), ("auto", False), ("cpu", True)])
def test_only_device_auto_warns_of_a_gpu_that_pytorch_cannot_use(
    requested: str, has_driver: bool, in_tiny: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "GPU_DRIVERS", (in_tiny,) if has_driver else ())
    done = tmt(*TRAIN, f"runs_dir={tmp_path}", f"device={requested}", "data.max_length=2")
    assert_user_error(done, "none of 50 pairs is left")
    assert ("warning: device: " in done.stderr) == (requested == "auto" and has_driver)


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
        (("tokenizer.kind=unigram", "tokenizer.sampling=0.1"), "tokenizer.sampling: unigram cannot sample subwords"),
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
