"""`tmt train`: train a model, or resume its training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from transformer_mt.cli.command import Command, flag, group, option
from transformer_mt.cli.options import CONFIG_FILE, ConfigOptions
from transformer_mt.errors import Interrupted
from transformer_mt.system.log import log_rank0


@dataclass(frozen=True, kw_only=True)
class NamedConfigOptions(ConfigOptions):
    """The configuration as an option. `ConfigOptions.split` also accepts it as the first argument."""

    config: Path | None = option(
        f"{CONFIG_FILE}; it may also be the first argument, without --config", metavar="X.yaml"
    )


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Train a model; the same command resumes an interrupted training.

    N processes are started by: torchrun --nproc-per-node N -m transformer_mt train ... batches.accumulate=N
    """

    EXAMPLE: ClassVar[str] = "tmt train --config mine.yaml name=wide model.d_model=384"

    config: NamedConfigOptions = group(NamedConfigOptions)
    restart: bool = flag("start from scratch; the old run is renamed", is_exclusive=True)
    checkpoint: str = option(
        "resume from this checkpoint (default: last), and delete later ones",
        default="last",
        metavar="last|best|STEP",
        is_exclusive=True,
    )

    def execute(self) -> None:
        """Train, unless a signal interrupts."""
        config = self.config.load()
        if self.config.split()[0] is None:
            found = min(Path().glob("[!.]*.yaml"), default=None)
            write = "" if found else "write a configuration with `tmt init SRC TGT`, then "
            log_rank0(
                "no configuration given: this trains the built-in quickstart corpus; to train on your own files, "
                f"{write}run `tmt train --config {found or 'mine.yaml'}`"
            )
        from transformer_mt.flows import train

        try:
            train.train(config, checkpoint=self.checkpoint, restart=self.restart)
        except Interrupted as stop:
            if self.restart or self.checkpoint != "last":
                stop.advice = "leave out --restart and --checkpoint to resume; they would discard this checkpoint"
            raise
        except (KeyboardInterrupt, SystemExit):
            log_rank0("tmt: stopped before the first step or after the last one; no step is lost")
            raise
