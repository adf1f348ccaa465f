"""The loop of `tmt translate` and `tmt score`: read a window of lines, process it, write its output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transformer_mt.cli.line_input import Line, windows
from transformer_mt.cli.line_output import Settings, open_output

WINDOW_LINES = 1000

ProcessWindow = Callable[[Sequence[Line], int], str]
"""Turns the lines of a window and the number of its first line (from 1) into output text."""


def process_lines(
    lines: Iterator[Line | None],
    process: ProcessWindow,
    output: Path | None,
    settings: Settings | None = None,
    *,
    resume: bool = False,
    is_interactive: bool = False,
) -> None:
    """Write the output of each window. Show a progress bar on a terminal, unless the lines come from the user."""
    from tqdm import tqdm

    shows_output = sys.stdout.isatty() and not output
    with open_output(output, settings, resume) as file:
        first = file.progress.lines
        is_quiet = is_interactive or shows_output or not sys.stderr.isatty()
        with tqdm(initial=first, unit=" lines", disable=is_quiet, file=sys.stderr) as bar:
            for window in windows(file.skip_finished(lines), WINDOW_LINES):
                file.write(window, process(window, file.progress.lines + 1))
                bar.update(len(window))
