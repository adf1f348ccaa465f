"""Stop signals: the step that is being taken is finished first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, ClassVar

from transformer_mt.system import launcher


class StopSignals:
    """Turns SIGINT and SIGTERM into a number that the loop looks at; a second signal ends the process at once.

    Under `torchrun` it does not: that repeats a signal to processes which have had it, and ends them after a time.
    A signal comes to the process, and so the number is the class's: 0 until there was one, and outside of `with`.
    """

    number: ClassVar[int] = 0

    def __init__(self) -> None:
        self._may_end_at_once = not launcher.under_torchrun()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        StopSignals.number = 0

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.number and self._may_end_at_once:
            os._exit(128 + number)  # what is being written has its own name until it is whole
        StopSignals.number = self.number or number
