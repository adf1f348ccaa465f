"""A run that was stopped, killed or extended ends with the same bits as an uninterrupted one (traps 40, 41, 42)."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kill_drill
import pytest
import torch
from helpers import Tmt, assert_user_error

from transformer_mt.errors import UserError
from transformer_mt.flows import train as pipeline
from transformer_mt.flows.configuration import Config
from transformer_mt.runs import checkpoints, folder
from transformer_mt.runs.checkpoints import load_state
from transformer_mt.runs.folder import KeepConfig, RunFolder
from transformer_mt.runs.records import read_manifest, write_manifest
from transformer_mt.training.metrics_logger import MetricsLogger
from transformer_mt.training.optimizers import load_optimizers
from transformer_mt.training.train_step import LossScale
from transformer_mt.training.training_config import ScheduleConfig

STEPS = 10


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write text for three batches per epoch, so that ten steps of two batches cross several epochs."""
    folder = tmp_path_factory.mktemp("text")
    numbers = [f"{i:03d}" for i in range(60)]
    for name, part in {"t": numbers, "some": ["617", "618"], "others": ["619"]}.items():
        (folder / f"{name}.en").write_text("".join(f"line {' '.join(n)} goes in\n" for n in part), encoding="utf-8")
        (folder / f"{name}.de").write_text(
            "".join(f"Zeile {' '.join(n)} kommt heraus\n" for n in part), encoding="utf-8"
        )
    return folder


def make_config(text: Path, runs_dir: Path, **train: Any) -> Config:
    """Return a tiny configuration with all features that have state or draw random numbers."""
    return Config.model_validate(
        {
            "name": "run",
            "runs_dir": str(runs_dir),
            "threads": 1,
            "data": {
                "src_lang": "en",
                "tgt_lang": "de",
                "train": {"src": str(text / "t.en"), "tgt": str(text / "t.de")},
                "test": {
                    name: {"src": str(text / f"{name}.en"), "tgt": str(text / f"{name}.de")}
                    for name in ("some", "others")
                },
                "modifiers": {"lower_source": 0.3, "typos": 0.3},
                "cache_dir": str(text / "cache"),
            },
            "tokenizer": {"vocab_size": 320, "sampling": 0.2, "source_bos": True},
            "batches": {"tokens": 256, "accumulate": 2},
            "model": {
                "d_model": 16,
                "d_ff": 32,
                "n_heads": 2,
                "encoder": {"n_layers": 1},
                "decoder": {"n_layers": 1},
                "dropout": {"attention": 0.1, "activation": 0.1},
            },
            "optimizer": {"kind": "muon", "weight_decay": 0.1},
            "schedule": {"warmup_steps": 5},
            "train": {"max_steps": STEPS, "save_every": 2, "log_every": 3, **train},
            "validation": {"every": 4, "metric": "loss", "patience": 50},
            "decoding": {"max_length_factor": 0, "max_length_offset": 5},
            "keep": {"last": 9, "best": 9},
        }
    )


def assert_same(runs_dir: Path, expected: Path) -> None:
    """Compare checkpoints, metrics, curves and scores of two runs, to the bit."""
    left, right = (kill_drill.outcome(RunFolder(folder / "run")) for folder in (runs_dir, expected))
    assert list(kill_drill.differences(left, right)) == []


@pytest.fixture(scope="module")
def uninterrupted(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs_dir = tmp_path_factory.mktemp("uninterrupted")
    pipeline.train(make_config(text, runs_dir))
    return runs_dir


@pytest.mark.parametrize("first", [*(pytest.param(step, marks=pytest.mark.slow) for step in (1, 4)), 7])
def test_resumed_run_equals_an_uninterrupted_one(first: int, text: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """The first part ends inside an epoch (1), at a validation (4), or between two log entries (7)."""
    start = time.perf_counter()
    pipeline.train(make_config(text, tmp_path, max_steps=first))
    hours = RunFolder(tmp_path / "run").read_record().to_json()["hours"]
    pipeline.train(make_config(text, tmp_path))
    passed = (time.perf_counter() - start) / 3600
    assert passed > RunFolder(tmp_path / "run").read_record().to_json()["hours"] > hours > 0
    found, expected = (kill_drill.outcome(RunFolder(folder / "run")) for folder in (tmp_path, uninterrupted))
    ours, theirs = (each["checkpoints"][str(STEPS)] for each in (found, expected))
    # the end of the first part is validated, which the uninterrupted run does not do at that step
    for each in (ours, theirs):
        for key in ("best_score", "best_step", "without_improvement", "last_validated"):
            del each["state"]["progress"][key]
    assert list(kill_drill.differences(ours, theirs)) == []
    extra = [entry for entry in found["metrics"] if entry not in expected["metrics"]]
    assert all(entry["step"] == first and "valid/loss" in entry for entry in extra)
    assert [entry for entry in found["metrics"] if entry in expected["metrics"]] == expected["metrics"]


def test_resumed_run_in_fp16_equals_an_uninterrupted_one(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss scale falls in the first steps, and grows later, which depends on the steps before the stop."""
    monkeypatch.setattr(LossScale, "INITIAL", 2.0**14)
    monkeypatch.setattr(LossScale, "GROWTH_INTERVAL", 2)
    config = make_config(text, tmp_path / "whole").model_copy(update={"precision": "fp16"})
    pipeline.train(config)
    scales = [
        checkpoints.load_state(info)["loss_scale"]["value"].item()
        for info in RunFolder(tmp_path / "whole" / "run").list_checkpoints()
    ]
    assert scales[0] < 2.0**14 and 2 * min(scales) in scales[scales.index(min(scales)) :]
    run = without_later_checkpoints(tmp_path / "whole", tmp_path)
    pipeline.train(config.model_copy(update={"runs_dir": str(tmp_path)}))
    assert run.path == tmp_path / "run"
    assert_same(tmp_path, tmp_path / "whole")


@pytest.mark.slow
def test_training_beyond_a_schedule_that_ends_at_0_is_refused(text: Path, tmp_path: Path) -> None:
    """As they would be with `base: runs/OLD/config.yaml`, where the old run's end is written down, and by a run that is
    over and gets more steps."""

    def train(name: str, final: float, max_steps: int) -> None:
        schedule = {"kind": "cosine", "warmup_steps": 2, "total_steps": 4, "final": final}
        config = make_config(text, tmp_path, max_steps=max_steps)
        pipeline.train(config.model_copy(update={"schedule": ScheduleConfig.model_validate(schedule), "name": name}))

    train("one", 0.1, 6)
    nothing_left = r"schedule\.total_steps: 4: the learning rate is 0 after it.*\n"
    with pytest.raises(UserError, match=nothing_left + "set it to null"):
        train("two", 0.0, 6)
    assert not (tmp_path / "two").exists()
    train("two", 0.0, 4)
    before = (tmp_path / "two" / "config.yaml").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=nothing_left + r"set train\.max_steps: 4, or start .*train\.init_from=.*two"):
        train("two", 0.0, 6)
    assert (tmp_path / "two" / "config.yaml").read_text(encoding="utf-8") == before


def test_extended_run_keeps_its_schedule(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A larger train.max_steps does not change schedule.total_steps."""

    def go_on(max_steps: int, total_steps: int | None = None) -> str:
        config = make_config(text, tmp_path, max_steps=max_steps, log_every=1)
        schedule = {"kind": "cosine", "warmup_steps": 2, "peak": 1e-3, "final": 0.1, "total_steps": total_steps}
        pipeline.train(config.model_copy(update={"schedule": ScheduleConfig.model_validate(schedule)}))
        return capsys.readouterr().err

    assert "curve ends" not in go_on(4)
    run = RunFolder(tmp_path / "run")
    assert run.read_section("schedule", ScheduleConfig).total_steps == 4
    assert "cosine ends at step 4 (schedule.total_steps); later steps" in go_on(6)
    with pytest.raises(UserError, match=r"schedule\.total_steps: 4 -> 8"):
        go_on(8, total_steps=8)
    assert run.read_section("schedule", ScheduleConfig).total_steps == 4
    metrics = kill_drill.outcome(run)["metrics"]
    rates = [entry["train/learning_rate"] for entry in metrics if "train/learning_rate" in entry]
    assert rates == pytest.approx([0.5e-3, 1e-3, 0.55e-3, 1e-4, 1e-4, 1e-4])


def without_later_checkpoints(runs_dir: Path, folder: Path) -> RunFolder:
    """Copy a run without its checkpoints after step 4."""
    shutil.copytree(runs_dir / "run", folder / "run")
    run = RunFolder(folder / "run")
    for info in run.list_checkpoints():
        if info.step > 4:
            shutil.rmtree(info.path)
    return run


LOST: dict[str, Callable[[dict[str, Any]], object]] = {
    "moments": lambda state: [of["exp_avg"].zero_() for of in state["optimizers"][1]["state"].values()],
    "place in the stream": lambda state: state["progress"]["position"].update(epoch=0, index=0),
    "best score": lambda state: state["progress"].update(best_score=0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("piece", LOST)
def test_comparison_finds_each_lost_part_of_the_state(
    piece: str, text: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """Without this test, a comparison that ignores a part would pass."""
    run = without_later_checkpoints(uninterrupted, tmp_path)
    info = run.find_checkpoint("4")
    state = torch.load(info.path / "training.pt", weights_only=True)
    LOST[piece](state)
    torch.save(state, info.path / "training.pt")
    write_manifest(info.path / "checkpoint.json", {"step": info.step, "metric": info.metric, "scores": info.scores})
    pipeline.train(make_config(text, tmp_path))
    assert list(kill_drill.differences(kill_drill.outcome(run), kill_drill.outcome(RunFolder(uninterrupted / "run"))))


@pytest.mark.slow
def test_killed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """It is killed at random moments, during a save, and again after a resume."""
    assert kill_drill.drill(tmp_path, 2, random.Random(1), ["validation.probes=0"])


@pytest.mark.slow
def test_run_killed_while_scoring_test_sets_records_each_score_once(
    text: Path, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed before and after run.json is written, and between two entries of the curves."""
    config = make_config(text, tmp_path)
    for moment in (1, 2, 3, 4):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(moment, patch)
            pipeline.train(config)
    pipeline.train(config)
    assert_same(tmp_path, uninterrupted)


def test_resume_of_a_mixture_is_exact(text: Path, tmp_path: Path) -> None:
    values = make_config(text, tmp_path).model_dump(mode="json", exclude_defaults=True)
    pair = {"src": str(text / "t.en"), "tgt": str(text / "t.de")}
    there = {"name": "there", "tag": "2de", "weight": 3, **pair}
    back = {"name": "back", "tag": "2en", "weight": 1, "src": pair["tgt"], "tgt": pair["src"]}
    values["data"] |= {"train": [there, back], "test": {}}

    def mixed(runs_dir: Path) -> Config:
        return Config.model_validate({**values, "runs_dir": str(runs_dir)})

    pipeline.train(mixed(tmp_path / "whole"))
    run = without_later_checkpoints(tmp_path / "whole", tmp_path / "parts")
    n_taken = checkpoints.load_state(run.find_checkpoint("last"))["progress"]["position"]["n_taken"]
    assert sum(n_taken) == 2 * 4 and min(n_taken) > 0
    pipeline.train(mixed(tmp_path / "parts"))
    assert_same(tmp_path / "parts", tmp_path / "whole")
    entries = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    logged = [entry for entry in entries if "train/loss" in entry]
    assert [entry["train/share/there"] + entry["train/share/back"] for entry in logged] == pytest.approx([1, 1, 1])
    for entry in logged:
        parts = [entry[f"train/share/{name}"] * entry[f"train/nll/{name}"] for name in ("there", "back")]
        assert sum(parts) == pytest.approx(entry["train/nll"], rel=1e-5)
    assert all("valid/nll/back" in entry for entry in entries if "valid/loss" in entry)


class Killed(BaseException):
    """Ends the process like SIGKILL: no handler catches it."""


def test_resume_deletes_checkpoints_that_a_killed_run_left_undeleted(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(text, tmp_path)
    config = config.model_copy(update={"keep": KeepConfig(best=1, last=1)})
    prune = checkpoints.prune

    def killed_prune(run: RunFolder, keep: KeepConfig) -> None:
        last = run.list_checkpoints()[-1]
        if last.step == STEPS and last.scores:
            raise Killed
        prune(run, keep)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "prune", killed_prune)
        with pytest.raises(Killed):
            pipeline.train(config)
    run = RunFolder(tmp_path / "run")
    before = [*run.list_checkpoint_folders()]
    pipeline.train(config)
    kept = {run.find_checkpoint("best").step, STEPS}
    assert set(run.list_checkpoint_folders()) == kept < {*before}


def kill_at(moment: int, patch: pytest.MonkeyPatch) -> None:
    """Raise `Killed` at one of four moments of `finish`."""
    write, record, recorded = folder.write_record, MetricsLogger.log_scalars, list[str]()

    def killed_write(run: RunFolder, about: dict[str, Any]) -> None:
        if moment == 2 and "ended" in about:
            write(run, about)
        if moment <= 2 and "ended" in about:
            raise Killed
        write(run, about)

    def killed_record(self: MetricsLogger, step: int, scalars: dict[str, float]) -> None:
        tests = [name for name in scalars if name.startswith("test/")]
        if tests and len(recorded) == moment - 3:
            raise Killed
        recorded.extend(tests[:1])
        record(self, step, scalars)

    patch.setattr(folder, "write_record", killed_write)
    patch.setattr(MetricsLogger, "log_scalars", killed_record)


def test_resume_truncates_curves_to_the_checkpoint(text: Path, tmp_path: Path) -> None:
    """Later entries and an incomplete line are not kept."""
    pipeline.train(make_config(text, tmp_path, max_steps=4))
    run = RunFolder(tmp_path / "run")
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write('{"step": 6, "train/loss": 1.0}\n{"step": 9, "tra')
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join([b"\xff{}\n", b"{}\n", *lines]))  # as a bad disk might leave it
    pipeline.train(make_config(text, tmp_path))
    steps = [json.loads(line)["step"] for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    assert steps == sorted(steps)
    losses = [entry for line in run.metrics.read_text().splitlines() if "train/loss" in (entry := json.loads(line))]
    assert [entry["step"] for entry in losses] == [3, 6, 9]


# --- Training states of strangers: tensors that do not fit their parameter, and impossible values, are refused --------

State = dict[str, Any]


def moments(state: State) -> State:
    return state["optimizers"][0]["state"][0]


CRAFTED: dict[str, Callable[[State], object]] = {
    "smaller moment": lambda state: moments(state).update(exp_avg=torch.zeros(1)),
    "moment of another type": lambda state: moments(state).update(exp_avg=moments(state)["exp_avg"].double()),
    "missing moment": lambda state: moments(state).pop("exp_avg_sq"),
    "state of no parameter": lambda state: state["optimizers"][0]["state"].update({10**6: moments(state)}),
    "negative position": lambda state: state["progress"]["position"].update(epoch=-1),
    "text instead of a number": lambda state: state["progress"].update(best_score="best"),
    "another step": lambda state: state["progress"].update(step=1),
    "unknown sums": lambda state: state["window"].update(source_n_tgt={"a": 1.0}),
}


@pytest.fixture(scope="module")
def trained(tiny: Path, tmt: Tmt, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train in a copy of the folder of `tiny.yaml`. Return the run."""
    folder, before = tmp_path_factory.mktemp("trained") / "tiny", Path.cwd()
    shutil.copytree(tiny, folder)
    os.chdir(folder)
    try:
        done = tmt("train", "--config", "tiny.yaml", "name=run", "data.test={}", "train.max_steps=2")
    finally:
        os.chdir(before)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "run"


FAST = {"smaller moment", "text instead of a number"}


@pytest.mark.parametrize(
    "crafted", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in CRAFTED]
)
def test_a_crafted_training_state_is_refused(
    crafted: str, trained: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.parents[1])
    info = RunFolder(trained).find_checkpoint("last")
    path, description = info.path / "training.pt", info.path / "checkpoint.json"
    content = path.read_bytes()
    state = load_state(info)
    CRAFTED[crafted](state)
    torch.save(state, path)
    write_manifest(description, read_manifest(description))
    try:
        done = tmt("train", "--config", "tiny.yaml", "name=run", "data.test={}", "train.max_steps=3")
        assert_user_error(done, "step-000002/training.pt: ")
    finally:
        path.write_bytes(content)
        write_manifest(description, read_manifest(description))


def test_settings_of_a_crafted_optimizer_are_ignored() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    make = lambda: torch.optim.Adam([weight], lr=0.0, betas=(0.9, 0.98), fused=True)  # noqa: E731
    weight.grad = torch.ones(2, 3)
    old, new = make(), make()
    old.step()
    saved = old.state_dict()
    expected = {name: value.clone() for name, value in saved["state"][0].items()}
    saved["param_groups"][0].update(betas=("x", 2.0), amsgrad=True, fused=False)
    load_optimizers([new], [saved])
    assert new.param_groups[0]["betas"] == (0.9, 0.98) and new.param_groups[0]["amsgrad"] is False
    assert all(torch.equal(value, new.state[weight][name]) for name, value in expected.items())
