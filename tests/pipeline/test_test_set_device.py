"""Test sets are scored on the device of the configuration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import torch

from transformer_mt.config import root as configuration
from transformer_mt.errors import UserError
from transformer_mt.pipeline import train
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine


def test_test_sets_are_scored_on_the_configured_device(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 must not name its own cuda:0, and takes no more memory than its validations do."""
    devices: list[str] = []

    def load(path: Path, checkpoint: str, device: str, *_: object, batch_tokens: int) -> NoReturn:
        assert batch_tokens == 4096
        devices.append(device)
        raise UserError("loading")

    monkeypatch.setattr(train.Translator, "load", load)
    run, tables = RunFolder(tiny_run), SimpleNamespace(test={"unseen": None})
    config = configuration.load(run.config)
    for name in ("cuda", "cuda:1"):
        changed = config.model_copy(update={"device": name, "decoding": config.decoding.with_options({"beam": 3})})
        with pytest.raises(UserError, match="loading"):
            train.finish(run, changed, Machine(torch.device("cuda:0"), "fp32", 1), "", 0.0, *cast(Any, (tables, None)))
    assert devices == ["cuda", "cuda:1"]
