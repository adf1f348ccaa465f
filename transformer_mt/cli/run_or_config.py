"""The positional argument `RUN-or-X.yaml` of `tmt plot` and `tmt tokenize`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder


def load_run_or_config(path: Path, overrides: Sequence[str]) -> tuple[Config, RunFolder | None]:
    """Load the configuration of a run folder, or a YAML file, with overrides. Return it and the run, if it is one.

    Raises `UserError` if the path does not exist, and for overrides of the model or tokenizer of a run.
    """
    if path.is_dir():
        run = RunFolder.open(path)
        for override in overrides:
            if override.startswith(("model", "tokenizer")):
                raise UserError(f"{override}: the model and tokenizers of a run cannot be changed; leave it out")
        return configuration.load_run(run, overrides), run
    if not path.exists():
        raise UserError(f"{path}: no such run folder and no such YAML file (looked in {Path.cwd()})")
    return configuration.load(path, overrides), None
