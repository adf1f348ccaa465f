"""Training states of strangers: tensors that do not fit their parameter, and impossible values, are refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Tmt, assert_user_error

from transformer_mt.runs.checkpoints import load_state
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import read_manifest, write_manifest
from transformer_mt.training.optimizers import load_optimizers

State = dict[str, Any]


def moments(state: State) -> State:
    return state["optimizers"][0]["state"][0]


CRAFTED: dict[str, Callable[[State], object]] = {
    "smaller moment": lambda state: moments(state).update(exp_avg=torch.zeros(1)),
    "moment of another type": lambda state: moments(state).update(exp_avg=moments(state)["exp_avg"].double()),
    "missing moment": lambda state: moments(state).pop("exp_avg_sq"),
    "state of no parameter": lambda state: state["optimizers"][0]["state"].update({10**6: moments(state)}),
    "no weights": lambda state: state.update(raw_weights=None),
    "negative position": lambda state: state["progress"]["position"].update(epoch=-1),
    "text instead of a number": lambda state: state["progress"].update(best_score="best"),
    "another step": lambda state: state["progress"].update(step=1),
    "unknown sums": lambda state: state["window"].update(source_n_tgt={"a": 1.0}),
}


@pytest.fixture(scope="module")
def trained(tiny: Path, tmt: Tmt, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with an average of the weights, in a copy of the folder of `tiny.yaml`. Return the run."""
    folder, before = tmp_path_factory.mktemp("trained") / "tiny", Path.cwd()
    shutil.copytree(tiny, folder)
    os.chdir(folder)
    try:
        done = tmt("train", "--config", "tiny.yaml", "name=run", *SETTINGS, "train.max_steps=2")
    finally:
        os.chdir(before)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "run"


FAST = {"smaller moment", "no weights", "text instead of a number"}
SETTINGS = ("optimizer.ema_decay=0.9", "data.test={}")


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
        done = tmt("train", "--config", "tiny.yaml", "name=run", *SETTINGS, "train.max_steps=3")
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
