"""Stop signals: SIGINT and SIGTERM let the current step finish first."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformer_mt.system import launcher


@contextmanager
def exit_on_sigterm() -> Generator[None]:
    """Let SIGTERM raise `SystemExit`, so that cleanup code runs, also before the training loop."""
    if threading.current_thread() is not threading.main_thread():  # only this one can set handlers
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class StopSignals:
    """A context in which SIGINT and SIGTERM set `number` for the training loop to poll.

    A second signal ends the process at once, except under `torchrun`, which repeats its signal to processes that have
    received it already, and kills them after a while.
    """

    def __init__(self) -> None:
        self.number = 0
        self._second_signal_exits = not launcher.under_torchrun()
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only this one can set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous_handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.number and self._second_signal_exits:
            os._exit(128 + number)  # safe during a save: files keep temporary names until they are complete
        self.number = self.number or number
