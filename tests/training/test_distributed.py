"""Several processes train what one trains (trap 23)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from transformer_mt.runs import RunFolder

pytestmark = pytest.mark.slow

SHARED = ("train", "--config", "tiny.yaml", "batches.accumulate=4", "keep.last=9", "train.max_steps=6")


def launch(folder: Path, processes: int, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`torchrun`, in a folder; or the command line alone."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), *options.pop("options", [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "-m", "transformer_mt", *SHARED, *arguments],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def train(folder: Path, processes: int, *arguments: str) -> str:
    process = launch(folder, processes, *arguments)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    path = RunFolder(folder / "runs" / name).checkpoint("last").path
    return safetensors.torch.load_file(path / "model.safetensors")


def curves(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timings = ("train/tokens_per_second", "train/waiting")
    return [{key: value for key, value in json.loads(line).items() if key not in timings} for line in lines]


def assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, weight in left.items():
        torch.testing.assert_close(
            weight, right[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.fixture(scope="module")
def alone(tiny: Path) -> Path:
    train(tiny, 1, "name=alone", "precision=fp32", "optimizer.eps=1e-3")
    return tiny


@pytest.mark.parametrize("processes", [2, 4])
def test_one_process_with_four_batches_is_two_with_two_and_four_with_one(alone: Path, processes: int) -> None:
    """Weights and curves: also with dropout, whose masks belong to a batch and not to a process."""
    name = f"shared-{processes}"
    said = train(alone, processes, f"name={name}", "precision=fp32", "optimizer.eps=1e-3")
    assert_close(weights(alone, name), weights(alone, "alone"))
    for here, there in zip(curves(alone, name), curves(alone, "alone"), strict=True):
        assert here == pytest.approx(there, rel=1e-3)
    assert said.count("training ended") == 1  # one speaks
    assert not list((alone / "runs" / name).rglob("*.tmp"))


def test_a_run_goes_on_with_another_number_of_processes(alone: Path) -> None:
    """1, then 3, which share 4 batches unevenly, then 1."""
    for processes, steps in ((1, 2), (3, 4), (1, 6)):
        settings = ("name=mixed", "precision=fp32", "optimizer.eps=1e-3", "validation.every=100")
        train(alone, processes, *settings, f"train.max_steps={steps}")
    assert_close(weights(alone, "mixed"), weights(alone, "alone"))
