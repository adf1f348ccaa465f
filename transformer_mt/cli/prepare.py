"""`tmt prepare`: read, filter and encode the corpora of a training before it starts, on one machine or on a cluster."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib.util import find_spec
from shlex import quote
from typing import TYPE_CHECKING, ClassVar, Literal

from transformer_mt.cli.command import Command, OptionGroup, group, list_given_flags, option
from transformer_mt.cli.options import ConfigOptions, number
from transformer_mt.cli.table import print_text
from transformer_mt.errors import MissingPackageError, UserError

if TYPE_CHECKING:
    from transformer_mt.data.stages import Runner

OWN_SBATCH_OPTIONS = ("array", "dependency", "job-name", "partition", "time", "wait")


def _sbatch_option(text: str) -> tuple[str, str]:
    key, _, value = text.removeprefix("--").partition("=")
    if not key or key in OWN_SBATCH_OPTIONS:
        raise argparse.ArgumentTypeError(
            f"{text}: pass KEY=VALUE, where KEY is none of {', '.join(OWN_SBATCH_OPTIONS)}"
        )
    return key, value


@dataclass(frozen=True, kw_only=True)
class EngineOptions(OptionGroup):
    """Where the tasks of a preparation run."""

    TITLE: ClassVar[str] = "several machines"
    DESCRIPTION: ClassVar[str | None] = (
        "A preparation is a series of stages, and a stage has independent tasks. All machines need the same files, "
        "environment and data.cache_dir. The result does not depend on the engine."
    )

    engine: Literal["local", "slurm"] | None = option(
        "where tasks run: local (default): processes of this machine; slurm: job arrays"
    )
    jobs: int | None = option("slurm: jobs per stage (default: one per task)", metavar="N", parse=number(1))
    partition: str | None = option("slurm: partition of the jobs", metavar="P")
    time: str | None = option("slurm: time limit of a job, such as 2:00:00", metavar="T")
    sbatch: tuple[tuple[str, str], ...] = option(
        "slurm: a further option of sbatch, such as mem=8G; repeat the option for more",
        default=(),
        metavar="KEY=VALUE",
        parse=_sbatch_option,
    )

    def check(self, workers: int | None) -> None:
        """Raise `UserError` for options that belong to another engine."""
        mode, allowed = "--engine local, the default", {"--engine", "--workers"}
        if self.engine == "slurm":
            mode, allowed = "--engine slurm", {"--engine", "--jobs", "--partition", "--time", "--sbatch"}
        for name in list_given_flags(self) + ["--workers"] * (workers is not None):
            if name not in allowed:
                raise UserError(f"prepare: {name} has no effect with {mode}; leave it out, or see `tmt prepare --help`")


@dataclass(frozen=True, kw_only=True)
class Prepare(Command):
    """Read, filter and encode the data of a training before it starts.

    The results are in data.cache_dir, so that `tmt train` of the same configuration starts at once. An interrupted
    command resumes. A training that starts meanwhile waits for the results.
    """

    EXAMPLE: ClassVar[str] = "tmt prepare mine.yaml --engine slurm --jobs 64 --time 2:00:00"

    config: ConfigOptions = group(ConfigOptions)
    workers: int | None = option(
        "processes of this machine (default: one per core); the result does not depend on it",
        metavar="N",
        parse=number(1),
    )
    engine: EngineOptions = group(EngineOptions)

    def execute(self) -> None:
        """Run `tmt prepare`."""
        self.engine.check(self.workers)
        config = self.config.load()
        from transformer_mt.flows.prepare import build_report, check_and_prepare_data

        data = check_and_prepare_data(config, self._make_runner())
        print_text(*build_report(data), "")
        path, overrides = self.config.split()
        command = " ".join(map(quote, ["tmt", "train", *(["--config", str(path)] if path else []), *overrides]))
        print_text(f"the data is ready in {config.data.cache_dir}; next: {command}")

    def _make_runner(self) -> Runner:
        from transformer_mt.data.stages import LocalRunner
        from transformer_mt.system.device import count_available_cores

        engine = self.engine
        if engine.engine != "slurm":
            return LocalRunner(self.workers or count_available_cores())
        if find_spec("datatrove") is None:
            raise MissingPackageError("--engine slurm", "transformer_mt[cluster]")
        from transformer_mt.tools.cluster.slurm import SlurmRunner

        options = {"partition": engine.partition, "time": engine.time, **dict(engine.sbatch)}
        return SlurmRunner(engine.jobs, {key: value for key, value in options.items() if value is not None})
