"""The README of a run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformer_mt.flows import configuration
from transformer_mt.flows.run_overview import write_readme
from transformer_mt.runs.folder import RunFolder


def test_readme_of_a_run_without_a_checkpoint_suggests_to_train(run_copy: Path) -> None:
    run = RunFolder.open(run_copy)
    config = configuration.load_run(run)
    write_readme(run, config, is_running=False)
    assert "tmt translate " in run.readme.read_text(encoding="utf-8")
    shutil.rmtree(run.checkpoints)
    write_readme(run, config, is_running=False)
    readme = run.readme.read_text(encoding="utf-8")
    assert "tmt translate " not in readme
    assert f"tmt train --config {run.config}  # " in readme
