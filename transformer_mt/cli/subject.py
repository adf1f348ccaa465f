"""What a verb that takes `RUN-or-X.yaml` is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder


def read(path: Path, overrides: Sequence[str]) -> tuple[Config, RunFolder | None]:
    """A run folder with its configuration, or a YAML file; under the overrides of the command line.

    Raises `UserError` where there is neither, and for overrides of what a run has already.
    """
    if path.is_dir():
        run = RunFolder.open(path)
        for override in overrides:
            if override.startswith(("model", "tokenizer")):
                raise UserError(f"{override}: the run has its model and its tokenizers already; leave it out")
        return configuration.load(run.config, overrides), run
    if not path.exists():
        raise UserError(f"{path}: no such run folder and no such YAML file (looked in {Path.cwd()})")
    return configuration.load(path, overrides), None
