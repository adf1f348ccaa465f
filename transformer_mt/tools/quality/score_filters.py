"""Filters that read a score for each pair from a file or from a command."""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from transformer_mt.config.section import PathName, section_error
from transformer_mt.data.text_files import read_file_state, read_lines
from transformer_mt.errors import UserError
from transformer_mt.system.launcher import exit_on_sigterm
from transformer_mt.system.log import log_rank0
from transformer_mt.tools.quality.filter_base import Block, Filter, FilterContext, FilterFunction
from transformer_mt.tools.quality.signals import normalize_spaces

MAX_ERROR_BYTES = 10_000  # last part of the standard error of a command, in which its last line is searched


class ScoredFilter(Filter):
    """Base of the filters that compare a number for each pair with limits."""

    min: float | None = None
    """remove pairs with a lower score; null: no lower limit"""
    max: float | None = None
    """remove pairs with a higher score; null: no upper limit"""

    @model_validator(mode="after")
    def _has_a_limit(self) -> ScoredFilter:
        if self.min is None and self.max is None:
            raise section_error("", "set min or max")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise section_error("min", f"{self.min:g} is more than max, {self.max:g}: no pair would be left")
        return self

    def find_reasons(self, scores: list[float]) -> dict[int, str]:
        """Return the reason for each score outside the limits. NaN is outside."""
        low = -math.inf if self.min is None else self.min
        high = math.inf if self.max is None else self.max
        return {i: f"score {score:g}" for i, score in enumerate(scores) if not low <= score <= high}

    def parse_scores(self, path: Path, origin: str, key: str) -> Iterator[float]:
        """Yield the numbers of a file, one per line. Raises `UserError` with the line of one that is not a number."""
        for number, line in enumerate(read_lines(path), start=1):
            try:
                yield float(line)
            except ValueError:
                raise self.make_error(f'{origin}: line {number:,} is not a number: "{line[:40]}"', key) from None


class ScoreFilter(ScoredFilter, name="score"):
    """Remove pairs by a file of scores, one line for each pair of data.train in the order of its files."""

    is_stateful: ClassVar[bool] = True

    file: PathName
    """text file, plain or .gz, with one number per line; required"""

    def external_state(self) -> object:
        """Return path, size and modification time of the file."""
        try:
            return read_file_state(Path(self.file))
        except UserError as error:
            raise self.make_error(str(error), "file") from None

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Compare the number of lines with that of the pairs, and open the file."""
        path = Path(self.file)
        try:
            n_lines = sum(1 for _ in read_lines(path))
        except UserError as error:
            raise self.make_error(str(error), "file") from None
        if n_lines != len(context.corpus):
            raise self.make_error(
                f"{path} has {n_lines:,} lines, and data.train has {len(context.corpus):,} pairs; write one score for "
                "each pair of the unfiltered corpus",
                "file",
            )
        scores, position = self.parse_scores(path, self.file, "file"), 0

        def apply(block: Block) -> dict[int, str]:
            nonlocal position
            if not len(block):
                return {}
            first, position = position, int(block.rows[-1]) + 1
            chunk = [*islice(scores, position - first)]
            return self.find_reasons([chunk[row - first] for row in block.rows.tolist()])

        return apply


def _check_command(command: str) -> str:
    if "\0" in command:
        raise ValueError("a command cannot contain a zero byte")
    return command


class CommandFilter(ScoredFilter, name="command"):
    """Remove pairs by the scores of a command, which reads lines `source<tab>target` and writes a number for each."""

    needs_all_pairs: ClassVar[bool] = True
    is_stateful: ClassVar[bool] = True

    run: Annotated[str, Field(min_length=1), AfterValidator(_check_command)]
    """shell command, started once; it reads `source<tab>target` lines and writes one number per line; required"""

    _may_run: bool = PrivateAttr(default=False)

    def allow_commands(self) -> None:
        """Allow the filter to run its command, if the user has named the file that has it."""
        self._may_run = self._location is not None and self._location.is_named_file

    def external_state(self) -> object:
        """Return path, size and modification time of the files that the command names."""
        try:
            words = shlex.split(self.run)
        except ValueError:  # the shell will report it
            words = []
        return [read_file_state(Path(word)) for word in words if os.path.isfile(word)]  # noqa: PTH113  (a word may be too long for Path.is_file)

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Run the command on all pairs. Files rather than pipes: a command may read all before it writes."""
        if not self._may_run:
            raise self.make_error(
                "commands run only in tmt train, prepare, plan and check of a configuration file; `tmt prepare "
                "X.yaml` caches the result",
                "run",
            )
        inputs, outputs = context.folder / "command.tsv", context.folder / "command.txt"
        n_pairs = 0
        with inputs.open("w", encoding="utf-8", newline="\n") as file:
            for block in context.blocks():
                n_pairs += len(block)
                file.writelines("\t".join(map(normalize_spaces, pair)) + "\n" for pair in block.pairs())
        log_rank0(f"data: filter {self.name} scores {n_pairs:,} pairs with: {self.run}")
        status, last_line = _run_in_shell(self.run, inputs, outputs)
        inputs.unlink()
        if status:
            raise self.make_error(
                f"the command failed with status {status}{last_line and f': {last_line[:200]}'}; "
                f"run it by hand: {self.run}",
                "run",
            )
        try:
            n_lines = sum(1 for _ in read_lines(outputs))
        except UserError:
            raise self.make_error("the command wrote text that is not UTF-8; it must write numbers", "run") from None
        if n_lines != n_pairs:
            raise self.make_error(
                f"the command wrote {n_lines:,} lines for {n_pairs:,} pairs; it must write one number for each", "run"
            )
        scores = self.parse_scores(outputs, "output of the command", "run")
        return lambda block: self.find_reasons([*islice(scores, len(block))])


def _run_in_shell(command: str, inputs: Path, outputs: Path) -> tuple[int, str]:
    """Run a command on files. Return its status and the last line of its errors. Kill it if this process is stopped."""
    with exit_on_sigterm(), inputs.open("rb") as stdin, outputs.open("wb") as stdout, TemporaryFile() as stderr:
        process = subprocess.Popen(
            command, shell=True, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )
        try:
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        stderr.seek(max(0, stderr.tell() - MAX_ERROR_BYTES))
        return status, "".join(stderr.read().decode(errors="replace").strip().splitlines()[-1:])
