"""Filters that read a score for each pair from a file or from a command."""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from transformer_mt.config.section import PathName, section_error
from transformer_mt.data.corpus import BLOCK_SIZE, ParallelCorpus
from transformer_mt.data.stages import Runner, Stage, TaskMetadata
from transformer_mt.data.text_files import read_file_state, read_lines
from transformer_mt.errors import UserError
from transformer_mt.system.launcher import exit_on_sigterm
from transformer_mt.system.log import log_rank0
from transformer_mt.tools.quality.filter_base import CorpusFilter, FilterContext, FilterFunction, MakeShardFunction
from transformer_mt.tools.quality.signals import normalize_spaces

FORMAT_VERSION = 1  # of the stored scores; part of their key
SCORES = "scores"  # file of a stage
MAX_ERROR_BYTES = 10_000  # last part of the standard error of a command, in which its last line is searched


class ScoredFilter(CorpusFilter):
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

    def find_reasons(self, scores: NDArray[np.float64]) -> dict[int, str]:
        """Return the reason for each score outside the limits. NaN is outside."""
        low = -math.inf if self.min is None else self.min
        high = math.inf if self.max is None else self.max
        outside = np.flatnonzero(~((low <= scores) & (scores <= high)))
        return {i: f"score {scores[i]:g}" for i in outside.tolist()}

    def parse_scores(self, path: Path, origin: str, key: str) -> Iterator[float]:
        """Yield the numbers of a file, one per line. Raises `UserError` with the line of one that is not a number."""
        for number, line in enumerate(read_lines(path, "replace"), start=1):
            try:
                yield float(line)
            except ValueError:
                raise self.make_error(f'{origin}: line {number:,} is not a number: "{line[:40]}"', key) from None


class ScoreFilter(ScoredFilter, name="score"):
    """Remove pairs by a file of scores, one line for each pair of data.train in the order of its files."""

    file: PathName
    """text file, plain or compressed, with one number per line; required"""

    def external_state(self) -> object:
        """Return path, size and modification time of the file."""
        try:
            return read_file_state(Path(self.file))
        except UserError as error:
            raise self.make_error(str(error), "file") from None

    def find(self, pairs: ParallelCorpus, context: FilterContext, cache_dir: Path, runner: Runner) -> MakeShardFunction:
        """Read the scores of the unfiltered corpus."""
        corpus = context.corpus
        key = [FORMAT_VERSION, corpus.key, corpus.fingerprint, self.external_state()]
        stage = Stage("score", cache_dir, key, 1, partial(store_scores, self, len(corpus)))
        return FoundScores(self, runner(stage)[0].folder / SCORES)


def store_scores(filter_: ScoreFilter, n_pairs: int, _task: int, folder: Path) -> TaskMetadata:
    """Task: store the scores of a file. Raises `UserError` if their number is not that of the pairs."""
    path = Path(filter_.file)
    n_lines = write_scores(filter_.parse_scores(path, filter_.file, "file"), folder)
    if n_lines != n_pairs:
        raise filter_.make_error(
            f"{path} has {n_lines:,} lines, and data.train has {n_pairs:,} pairs; write one score for "
            "each pair of the unfiltered corpus",
            "file",
        )
    return {}


@dataclass(frozen=True)
class FoundScores:
    """Stored scores of all pairs."""

    filter_: ScoredFilter
    path: Path
    bounds: NDArray[np.int64] | None = None  # first score of each shard; None: those of the unfiltered corpus

    def __call__(self, shard: int) -> FilterFunction:
        """Return the function that compares the scores of a block with the limits."""
        scores = np.memmap(self.path, np.float64, mode="r")
        if self.bounds is None:
            return lambda block: self.filter_.find_reasons(scores[block.rows])
        first = int(self.bounds[shard])
        return lambda block: self.filter_.find_reasons(scores[first + block.positions])


def write_scores(scores: Iterator[float], folder: Path) -> int:
    """Write scores into a folder, and return their number."""
    n_scores = 0
    with (folder / SCORES).open("wb") as file:
        while block := [*islice(scores, BLOCK_SIZE)]:
            file.write(np.array(block, np.float64).data)
            n_scores += len(block)
    return n_scores


def _check_command(command: str) -> str:
    if "\0" in command:
        raise ValueError("a command cannot contain a zero byte")
    return command


class CommandFilter(ScoredFilter, name="command"):
    """Remove pairs by the scores of a command, which reads lines `source<tab>target` and writes a number for each."""

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

    def find(self, pairs: ParallelCorpus, context: FilterContext, cache_dir: Path, runner: Runner) -> MakeShardFunction:
        """Score all pairs that the filters before have left."""
        if not self._may_run:
            raise self.make_error(
                "commands run only in tmt train, prepare, plan and check of a configuration file; `tmt prepare "
                "X.yaml` caches the result",
                "run",
            )
        key = [FORMAT_VERSION, pairs.key, pairs.fingerprint, self.run, self.external_state()]
        stage = Stage("command", cache_dir, key, 1, partial(run_command, self, pairs))
        return FoundScores(self, runner(stage)[0].folder / SCORES, pairs.bounds)


def run_command(filter_: CommandFilter, pairs: ParallelCorpus, _task: int, folder: Path) -> TaskMetadata:
    """Task: store the scores of a command. Files rather than pipes: a command may read all before it writes."""
    n_pairs = len(pairs)
    inputs, outputs = folder / "command.tsv", folder / "command.txt"
    with inputs.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines("\t".join(map(normalize_spaces, pair)) + "\n" for pair in pairs)
    log_rank0(f"data: filter {filter_.name} scores {n_pairs:,} pairs with: {filter_.run}")
    status, last_line = _run_in_shell(filter_.run, inputs, outputs)
    inputs.unlink()
    if status:
        raise filter_.make_error(
            f"the command failed with status {status}{last_line and f': {last_line[:200]}'}; "
            f"run it by hand: {filter_.run}",
            "run",
        )
    n_lines = write_scores(filter_.parse_scores(outputs, "output of the command", "run"), folder)
    if n_lines != n_pairs:
        raise filter_.make_error(
            f"the command wrote {n_lines:,} lines for {n_pairs:,} pairs; it must write one number for each", "run"
        )
    outputs.unlink()
    return {}


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
