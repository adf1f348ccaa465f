"""Messages for the user on standard error, above a progress bar if there is one."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any
from unicodedata import category

from transformer_mt.system import launcher

LAYOUT = "\n\t"
"""Characters that the program's own messages use to lay out text."""
MAX_LISTED = 20  # entries of a long list

Warn = Callable[[str], None]
"""Function that receives the text of a warning."""

_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # parts of words


def make_visible(text: str, *, keep: str = "") -> str:
    r"""Replace each character that draws nothing, or that a terminal obeys, by its escape, such as `\x1b`.

    Escape sequences could hide text, change the title of the window or answer for the user. Bidirectional overrides
    could reverse text. `keep` lists characters to leave unchanged: `LAYOUT` for a message with several lines.
    """
    if text.isprintable():
        return text
    kept = _JOINERS + keep
    return "".join(
        character.encode("unicode_escape").decode()
        if category(character) in _INVISIBLE and character not in kept
        else character
        for character in text
    )


def label_piece(text: str) -> str:
    """Return a token for display, with ▁ for spaces and escapes for control characters."""
    return make_visible(text.replace(" ", "▁"))


def format_probability(probability: float) -> str:
    """Return three decimals, or such as 3e-05 for a probability that they would show as 0."""
    return f"{probability:.3f}" if probability >= 0.0005 or not probability else f"{probability:.0e}"


def cut_list(entries: Sequence[str]) -> list[str]:
    """Return the first entries of a list, and how many there are in total if there are more."""
    more = [f"... {len(entries):,} in total"] if len(entries) > MAX_LISTED else []
    return [*entries[:MAX_LISTED], *more]


def log_rank0(text: str) -> None:
    """Write a message if this process has rank 0."""
    if launcher.rank() == 0:
        log(text)


def log(text: str) -> None:
    """Write a message, with escapes for control characters.

    If standard error cannot be written, this and all later messages are dropped.
    """
    write: Callable[..., None] = print
    if "tqdm" in sys.modules:  # otherwise there is no bar
        from tqdm import tqdm

        write = tqdm.write
    try:
        write(make_visible(text, keep=LAYOUT), file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def format_duration(seconds: float) -> str:
    """Format a duration in its largest unit, such as "50 seconds", "12 minutes" or "3.5 hours"."""
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 100 * 60 else f"{seconds / 3600:.1f} hours"


class Severity(IntEnum):
    """Severity of a finding. The value is the exit status of the command."""

    OK = 0
    WARNING = 1  # worth a look; training works, but worse than it could
    ERROR = 2  # training cannot work, or its result cannot be trusted


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
        self._n_done = 0
        self._n_reported: int | None = None  # in the last message

    @contextmanager
    def show(self, n_done: int = 0, *, bar: bool = True, messages: bool = True) -> Generator[ProgressReport]:
        """Show a bar if standard error is a terminal, otherwise messages. `n_done` units are finished already.

        Operations that may run at the same time, or in a worker process, have no bar, but messages.
        """
        is_rank0 = launcher.rank() == 0
        if bar and is_rank0 and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self.title, total=self.total, initial=n_done, unit=f" {self.unit}", dynamic_ncols=True
            )
        elif messages and is_rank0:
            self._wait, self._next_message = FIRST_WAIT, time.monotonic() + FIRST_WAIT
        try:
            yield self
            if self._n_reported not in (None, self._n_done):
                self._report()
        finally:
            if self._bar is not None:
                self._bar.close()
            self._bar, self._next_message, self._n_reported = None, math.inf, None

    def update(self, n_done: int) -> None:
        """Set the number of finished units."""
        self._n_done = n_done
        if self._bar is not None:
            self._bar.update(n_done - self._bar.n)
        elif (now := time.monotonic()) >= self._next_message:
            self._report()
            self._wait = min(2 * self._wait, MAX_WAIT)
            self._next_message = now + self._wait

    def _report(self) -> None:
        of_total = "" if self.total is None else f" of {self.total:,}"
        log(f"{self.title} {self._n_done:,}{of_total} {self.unit}")
        self._n_reported = self._n_done
