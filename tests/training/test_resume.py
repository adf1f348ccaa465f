"""A run that is stopped, killed or prolonged ends where an undisturbed one ends, bit for bit (traps 40, 41, 42)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from transformer_mt import pipeline
from transformer_mt.config import Config
from transformer_mt.runs import RunFolder

STEPS = 10
TIMINGS = ("train/tokens_per_second", "train/waiting")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough pairs for three batches an epoch: ten steps of two batches cross several epochs."""
    folder = tmp_path_factory.mktemp("text")
    numbers = [f"{i:03d}" for i in range(60)]
    (folder / "t.en").write_text("".join(f"line {' '.join(n)} goes in\n" for n in numbers), encoding="utf-8")
    (folder / "t.de").write_text("".join(f"Zeile {' '.join(n)} kommt heraus\n" for n in numbers), encoding="utf-8")
    return folder


def make_config(text: Path, runs_dir: Path, **train: Any) -> Config:
    """A tiny model with everything on that a resume could forget: dropout, sampling, accumulation, patience."""
    return Config.model_validate(
        {
            "name": "run",
            "runs_dir": str(runs_dir),
            "threads": 1,
            "data": {
                "src_lang": "en",
                "tgt_lang": "de",
                "train": {"src": str(text / "t.en"), "tgt": str(text / "t.de")},
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
            "schedule": {"warmup_steps": 5},
            "train": {"max_steps": STEPS, "save_every": 2, "log_every": 3, **train},
            "validation": {"every": 4, "metric": "loss", "patience": 50},
            "decoding": {"max_length_factor": 0, "max_length_offset": 5},
            "keep": {"last": 9, "best": 9},
        }
    )


def outcome(runs_dir: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Weights, training state and metrics (timings apart) at the end of a run."""
    run = RunFolder(runs_dir / "run")
    last = run.checkpoint("last").path
    entries = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    metrics = [{key: value for key, value in entry.items() if key not in TIMINGS} for entry in entries]
    state = torch.load(last / "training.pt", weights_only=True)
    for timing in ("seconds", "waited"):
        state["window"].pop(timing)
    return safetensors.torch.load_file(last / "model.safetensors"), state, metrics


def assert_same(left: Any, right: Any) -> None:
    """Equality to the bit through dicts, lists and tensors."""
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for pair in zip(left, right, strict=True):
            assert_same(*pair)
    else:
        assert left == right


@pytest.fixture(scope="module")
def undisturbed(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs_dir = tmp_path_factory.mktemp("undisturbed")
    pipeline.train(make_config(text, runs_dir))
    return runs_dir


@pytest.mark.parametrize("first", [1, 4, 7])
def test_steps_in_two_goes_equal_steps_in_one(first: int, text: Path, undisturbed: Path, tmp_path: Path) -> None:
    """The first go ends inside an epoch (1), at an entry of neither log nor curve (4), after a validation (7)."""
    pipeline.train(make_config(text, tmp_path, max_steps=first))
    pipeline.train(make_config(text, tmp_path))
    weights, state, metrics = outcome(tmp_path)
    expected_weights, expected_state, expected_metrics = outcome(undisturbed)
    assert_same(weights, expected_weights)
    assert_same(state["optimizer"], expected_state["optimizer"])
    # the end of the first go is validated as every end is, which an undisturbed run does not do at that step
    extra = [entry for entry in metrics if entry not in expected_metrics]
    assert all(entry["step"] == first and "valid/loss" in entry for entry in extra)
    assert [entry for entry in metrics if entry in expected_metrics] == expected_metrics


def start(config: Config, folder: Path) -> subprocess.Popen[str]:
    """The run through the command line."""
    path = folder / "run.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
    command = [sys.executable, "-m", "transformer_mt", "train", "--config", str(path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_checkpoint(process: subprocess.Popen[str], runs_dir: Path) -> None:
    while not RunFolder(runs_dir / "run").checkpoint_list():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)


@pytest.mark.slow
def test_a_killed_run_goes_on_by_the_same_command(text: Path, undisturbed: Path, tmp_path: Path) -> None:
    process = start(make_config(text, tmp_path), tmp_path)
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = start(make_config(text, tmp_path), tmp_path)
    _, errors = again.communicate()
    assert again.returncode == 0, errors
    for left, right in zip(outcome(tmp_path), outcome(undisturbed), strict=True):
        assert_same(left, right)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(
    number: signal.Signals, status: int, text: Path, tmp_path: Path
) -> None:
    process = start(make_config(text, tmp_path, max_steps=100_000), tmp_path)
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == status
    assert "same command goes on" in errors
    assert "Traceback" not in errors
    run = RunFolder(tmp_path / "run")
    assert torch.load(run.checkpoint("last").path / "training.pt", weights_only=True)["progress"]["step"] > 0


def test_curves_are_cut_back_to_the_checkpoint(text: Path, tmp_path: Path) -> None:
    """What was recorded after the last checkpoint, and a line torn by a kill, is recorded anew, not twice."""
    pipeline.train(make_config(text, tmp_path, max_steps=4))
    run = RunFolder(tmp_path / "run")
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write('{"step": 6, "train/loss": 1.0}\n{"step": 9, "tra')
    pipeline.train(make_config(text, tmp_path))
    steps = [json.loads(line)["step"] for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    assert steps == sorted(steps)
    losses = [entry for line in run.metrics.read_text().splitlines() if "train/loss" in (entry := json.loads(line))]
    assert [entry["step"] for entry in losses] == [3, 6, 9]


def test_a_checkpoint_of_another_step_can_be_resumed_from(text: Path, undisturbed: Path, tmp_path: Path) -> None:
    """Deleting the newest falls back on the one before, with the same end."""
    shutil.copytree(undisturbed / "run", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    for info in run.checkpoint_list():
        if info.step > 4:
            shutil.rmtree(info.path)
    pipeline.train(make_config(text, tmp_path))
    for left, right in zip(outcome(tmp_path), outcome(undisturbed), strict=True):
        assert_same(left, right)
