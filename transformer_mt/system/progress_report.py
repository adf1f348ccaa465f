"""Progress of a long command on standard error: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from transformer_mt.system.display import make_visible
from transformer_mt.system.logging import log

FIRST_LINE = 10.0  # seconds until the first line; each wait is twice as long, so that a log file stays short


class ProgressReport:
    """Reports the number of finished lines inside of `shown`, and nothing outside of it."""

    def __init__(self, title: str, total: int | None = None) -> None:
        """`total` is the number of lines, if it is known."""
        self.title, self.total = make_visible(title), total
        self._bar: Any = None
        self._next_line = self._wait = FIRST_LINE

    @contextmanager
    def shown(self, done: int = 0, *, lines: bool = True) -> Generator[ProgressReport]:
        """Show a bar if standard error is a terminal, otherwise lines, if they are wanted. `done`: finished lines."""
        from tqdm import tqdm

        is_terminal = sys.stderr.isatty()
        self._next_line = time.monotonic() + FIRST_LINE if lines and not is_terminal else float("inf")
        self._wait = FIRST_LINE
        with tqdm(
            desc=self.title, total=self.total, initial=done, unit=" lines", disable=not is_terminal, dynamic_ncols=True
        ) as self._bar:
            yield self
        self._bar = None

    def update(self, done: int) -> None:
        """Set the number of finished lines."""
        if self._bar is None:
            return
        if not self._bar.disable:
            self._bar.update(done - self._bar.n)
        elif (now := time.monotonic()) >= self._next_line:
            of_total = "" if self.total is None else f" of {self.total:,}"
            log(f"{self.title} {done:,}{of_total} lines")
            self._wait *= 2
            self._next_line = now + self._wait
