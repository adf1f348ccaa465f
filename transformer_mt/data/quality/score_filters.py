"""Filters that read a score for each pair from a file or from a command."""

from __future__ import annotations

import math
import shlex
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from transformer_mt.config.section import PathName, section_error
from transformer_mt.data.quality.filter_base import Block, Filter, FilterContext, FilterFunction
from transformer_mt.data.quality.normalization import normalize_spaces
from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError


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


class ScoreFilter(ScoredFilter):
    """Remove pairs by a file of scores, one line for each pair of data.train in the order of its files."""

    name: ClassVar[str] = "score"
    is_stateful: ClassVar[bool] = True

    file: PathName
    """text file, plain or .gz, with one number per line; required"""

    def external_state(self) -> object:
        """Return path, size and modification time of the file."""
        return _file_state(Path(self.file))

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Compare the number of lines with that of the pairs, and open the file."""
        path = Path(self.file)
        try:
            n_lines = sum(1 for _ in read_lines(path))
        except UserError as error:
            raise self.make_error(str(error), "file") from None
        if n_lines != context.n_corpus:
            raise self.make_error(
                f"{path} has {n_lines:,} lines, and data.train has {context.n_corpus:,} pairs; write one score for "
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


class CommandFilter(ScoredFilter):
    """Remove pairs by the scores of a command, which reads lines `source<tab>target` and writes a number for each."""

    name: ClassVar[str] = "command"
    needs_all_pairs: ClassVar[bool] = True
    is_stateful: ClassVar[bool] = True

    run: str = Field(min_length=1)
    """shell command, started once; it reads `source<tab>target` lines and writes one number per line; required"""

    def external_state(self) -> object:
        """Return path, size and modification time of the files that the command names."""
        try:
            words = shlex.split(self.run)
        except ValueError:  # the shell will report it
            words = []
        return [_file_state(Path(word)) for word in words if "\0" not in word and Path(word).is_file()]

    def make_function(self, context: FilterContext) -> FilterFunction:
        """Run the command on all pairs. Files rather than pipes: a command may read all before it writes."""
        inputs, outputs = context.folder / "command.tsv", context.folder / "command.txt"
        n_pairs = 0
        with inputs.open("w", encoding="utf-8", newline="\n") as file:
            for block in context.blocks():
                n_pairs += len(block)
                file.writelines("\t".join(map(normalize_spaces, pair)) + "\n" for pair in block.pairs())
        with inputs.open("rb") as stdin, outputs.open("wb") as stdout:
            done = subprocess.run(self.run, shell=True, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)
        inputs.unlink()
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise self.make_error(
                f"the command failed with status {done.returncode}{''.join(f': {line[:200]}' for line in last)}; "
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


def _file_state(path: Path) -> list[object]:
    """Return path, size and modification time of a file; only its path if it is missing."""
    if not path.is_file():
        return [str(path)]
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns]
