"""`tmt prepare`: read, filter and encode the corpora of a training before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import ClassVar

from transformer_mt.cli.command import Command, group, option
from transformer_mt.cli.options import ConfigOptions, number
from transformer_mt.cli.table import print_text


@dataclass(frozen=True, kw_only=True)
class Prepare(Command):
    """Read, filter and encode the data of a training before it starts.

    The results are in data.cache_dir, so that `tmt train` of the same configuration starts at once. An interrupted
    command resumes. A training that starts meanwhile waits for the results.
    """

    EXAMPLE: ClassVar[str] = "tmt prepare mine.yaml --workers 8"

    config: ConfigOptions = group(ConfigOptions)
    workers: int | None = option(
        "processes that filter and encode (default: one per core); the result does not depend on it",
        metavar="N",
        parse=number(1),
    )

    def execute(self) -> None:
        """Run `tmt prepare`."""
        config = self.config.load_for_training()
        from transformer_mt.flows.prepare import build_report, prepare_data
        from transformer_mt.flows.resolve import check_data_settings
        from transformer_mt.runs.folder import RunFolder
        from transformer_mt.system.device import count_available_cores

        config.allow_commands()
        run = RunFolder(Path(config.runs_dir) / str(config.name))
        check_data_settings(run, config)
        data = prepare_data(run, config, self.workers or count_available_cores())
        print_text(*build_report(data))
        path, overrides = self.config.split()
        command = " ".join(map(quote, ["tmt", "train", *(["--config", str(path)] if path else []), *overrides]))
        print_text(f"\nthe data is ready in {config.data.cache_dir}; next: {command}")
