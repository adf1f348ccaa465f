"""Test sets are scored on the device of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, cast

import pytest
import torch

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.train import score_test_sets
from transformer_mt.flows.translation import LoadOptions
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import Machine


def test_test_sets_are_scored_on_the_configured_device(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 passes on `cuda`, not its own cuda:0, and uses no larger batches than validation does."""
    devices: list[str] = []

    def load(path: Path, options: LoadOptions, *, batch_tokens: int, **_: object) -> NoReturn:
        assert batch_tokens == 4096
        devices.append(options.device)
        raise UserError("loading")

    monkeypatch.setattr("transformer_mt.flows.train.load_translator", load)
    monkeypatch.setattr("transformer_mt.flows.train.read_gpu_bytes", lambda _: 1 << 30)
    run, sets = RunFolder(tiny_run), cast(dict[str, ParallelCorpus], {"unseen": None})
    config = configuration.load(run.config)
    for name in ("cuda", "cuda:1"):
        changed = config.model_copy(update={"device": name, "decoding": config.decoding.with_options({"beam": 3})})
        with pytest.raises(UserError, match="loading"):
            score_test_sets(run, changed, Machine(torch.device("cuda:0"), "fp32", 1), 12, sets)
    assert devices == ["cuda", "cuda:1"]
