"""`tmt prepare`: read, filter and encode the corpora of a training before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.cli.command import Command, group, option
from transformer_mt.cli.options import ConfigOptions, number
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.system.files import format_bytes
from transformer_mt.system.log import log

if TYPE_CHECKING:
    from transformer_mt.config.root import Config
    from transformer_mt.flows.prepare import TrainingData


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
        for line in build_report(data):
            log(f"data: {line}")
        print_table((), [*_make_rows(config, data)])
        path, overrides = self.config.split()
        command = " ".join(map(quote, ["tmt", "train", *(["--config", str(path)] if path else []), *overrides]))
        print_text(f"\nthe data is ready; next: {command}")


def _make_rows(config: Config, data: TrainingData) -> Iterator[tuple[str, str]]:
    from transformer_mt.flows.prepare import load_sources

    source = load_sources(config, config.data.train)
    yield "folder", config.data.cache_dir
    yield "text", f"{len(source):,} pairs, {format_bytes(source.n_bytes)}"
    if config.data.filters:
        yield "filtered", f"{len(data.train.text):,} pairs, {format_bytes(data.train.text.n_bytes)}"
    yield (
        "vocabulary",
        f"{data.tokenizers.src.vocab_size:,} entries"
        + ("" if data.tokenizers.joint else f" and {data.tokenizers.tgt.vocab_size:,}"),
    )
    n_tokens = len(data.train.src.ids) + len(data.train.tgt.ids)
    bits = 8 * data.train.tgt.ids.itemsize
    yield (
        "ids",
        f"{len(data.train):,} pairs, {n_tokens:,} tokens of {bits} bits, {format_bytes(data.train.n_bytes)}",
    )
