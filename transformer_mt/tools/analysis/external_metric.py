"""External metric: a program of the user reads sentences, and writes one number for each.

The program may need another environment, a GPU or an hour. Whatever happens to it, the other scores are kept.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scorer, Texts

EXTERNAL_METRIC = "external"
"""Name of the metric in tables and JSON."""
_SEPARATORS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


class LineScores(NamedTuple):
    """The scores of all translations of one system."""

    lines: list[float]
    system: float | None
    """The score of the system, or None if it is the mean of the lines."""


@dataclass
class ExternalMetric:
    """A program that reads `source TAB translation TAB reference`, and writes a number for each line.

    It is started without a shell. After its first failure it is not started again.
    """

    words: Sequence[str]
    has_system_score: bool
    """Whether one more number follows, the score of the system."""
    seconds: float
    """Maximum time of one start."""
    problem: UserError | None = None
    """The first failure."""

    @classmethod
    def parse(cls, text: str, *, has_system_score: bool, seconds: float) -> ExternalMetric:
        """Divide a command into words as a shell does. Raises `UserError` if there is no such program."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"evaluate: --metric-command: {error}: {text}") from None
        if not words or not shutil.which(words[0]):
            name = words[0] if words else text
            advice = "pass a name or path of a program; it runs without a shell, so write ~ and pipes as sh -c '...'"
            raise UserError(f'evaluate: --metric-command: there is no program "{name}"; {advice}')
        return cls(words, has_system_score, seconds)

    @property
    def signature(self) -> str:
        """Return the command line, and how the score of the system is computed."""
        return f"command:{shlex.join(self.words)}|system:{'last' if self.has_system_score else 'mean'}"

    def score(
        self, name: str, sources: Texts, hypotheses: Texts, references: Texts, scorer: Scorer
    ) -> LineScores | None:
        """Score the translations of a system, or return None and set `problem`. Line breaks in a text become spaces."""
        if self.problem:
            return None
        columns = sources, scorer.detokenize(hypotheses), scorer.detokenize(references)
        rows = ("\t".join(_SEPARATORS.sub(" ", text) for text in row) for row in zip(*columns, strict=True))
        try:
            return self._parse_output(self._run("".join(f"{row}\n" for row in rows)), len(sources))
        except UserError as error:
            self.problem = UserError(f"evaluate: --metric-command: {name}: {error}")
        return None

    def _run(self, text: str) -> str:
        """Return the output of the program. Its messages go to standard error."""
        try:
            process = subprocess.Popen(
                self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise UserError(f"cannot be started: {error}") from None
        with process:
            try:
                output, _ = process.communicate(text.encode(), self.seconds)
            except BaseException as error:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also its own processes
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    advice = "raise --metric-timeout, or look at what the program waits for"
                    raise UserError(f"is not done after {self.seconds:g} s; {advice}") from None
                raise
        if process.returncode:
            status = f"exit status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
            raise UserError(f"ends with {status}; its own messages are above")
        return output.decode(errors="replace")

    def _parse_output(self, output: str, n_translations: int) -> LineScores:
        lines = output.removesuffix("\n").split("\n") if output else []
        numbers = [_parse_number(number, line) for number, line in enumerate(lines, start=1)]
        n_expected = n_translations + self.has_system_score
        if len(numbers) != n_expected:
            system = ", and one for the system" if self.has_system_score else ""
            raise UserError(f"writes {len(numbers)} lines, not {n_expected}: one for each translation{system}")
        return LineScores(numbers[:n_translations], numbers[n_translations] if self.has_system_score else None)


def _parse_number(number: int, line: str) -> float:
    try:
        value = float(line)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f'line {number} of its output is no number: "{line[:80]}"; write messages to standard error')
    return value
