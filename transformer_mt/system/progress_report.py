"""Progress of a long operation on standard error: a bar on a terminal, otherwise a message now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from transformer_mt.system import launcher
from transformer_mt.system.display import make_visible
from transformer_mt.system.logging import log

FIRST_WAIT = 10.0
"""Seconds until the first message. Each wait is twice as long as the one before, so that a log file stays short."""
MAX_WAIT = 600.0
"""Longest time between two messages in seconds."""


class ProgressReport:
    """Reports the number of finished units, only inside `show` and on rank 0."""

    def __init__(self, title: str, total: int | None = None, unit: str = "lines") -> None:
        """`total` is the number of units, if it is known. A message is the title, both numbers and the unit."""
        self.title, self.total, self.unit = make_visible(title), total, unit
        self._bar: Any = None
        self._wait, self._next_message = FIRST_WAIT, math.inf

    @contextmanager
    def show(self, n_done: int = 0, *, bar: bool = True, messages: bool = True) -> Generator[ProgressReport]:
        """Show a bar if standard error is a terminal, otherwise messages. `n_done` units are finished already.

        Operations that may run at the same time, or in a worker process, have no bar, but messages.
        """
        from tqdm import tqdm

        is_rank0 = launcher.rank() == 0
        if bar and is_rank0 and sys.stderr.isatty():
            self._bar = tqdm(
                desc=self.title, total=self.total, initial=n_done, unit=f" {self.unit}", dynamic_ncols=True
            )
        elif messages and is_rank0:
            self._wait, self._next_message = FIRST_WAIT, time.monotonic() + FIRST_WAIT
        try:
            yield self
        finally:
            if self._bar is not None:
                self._bar.close()
            self._bar, self._next_message = None, math.inf

    def update(self, n_done: int) -> None:
        """Set the number of finished units."""
        if self._bar is not None:
            self._bar.update(n_done - self._bar.n)
        elif (now := time.monotonic()) >= self._next_message:
            of_total = "" if self.total is None else f" of {self.total:,}"
            log(f"{self.title} {n_done:,}{of_total} {self.unit}")
            self._wait = min(2 * self._wait, MAX_WAIT)
            self._next_message = now + self._wait
