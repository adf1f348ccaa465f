"""Environment variables of `torchrun` and SLURM, and handling of stop signals."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

REQUIRED_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that `torchrun` sets when there are several processes."""


def rank() -> int:
    """Return the rank of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """Return the number of processes that train together on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int | None:
    """Return the rank of this process on this machine, or None without a launcher."""
    number = os.environ.get("LOCAL_RANK")
    return None if number is None else int(number)


def under_torchrun() -> bool:
    """Return whether `torchrun` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def job_id() -> str | None:
    """Return an identifier that all processes and all restarts of this job share, or None without a launcher.

    If `torchrun` was given no --rdzv-id and runs on one machine, the job is named after the process of `torchrun`.
    """
    name = os.environ.get("SLURM_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID")
    is_one_host = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return f"{socket.gethostname()}:{os.getppid()}" if name == "none" and is_one_host else name


def restart_count() -> int:
    """Return how often `torchrun` has restarted this job, or SLURM has requeued it."""
    return sum(int(os.environ.get(name, "0")) for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


ANSWER_SECONDS = 0.4
"""A command that ends within this time after a signal needs no answer."""


@contextmanager
def answer_signals(log: Callable[[str], None]) -> Generator[None]:
    """Log that a stop signal has arrived, unless the context ends soon, and end the process at the next one.

    A thread logs it, because the main thread may be in a library for long before Python calls a handler. `torchrun`
    repeats its signal to processes that have received it already, and kills them after a while.
    """
    if threading.current_thread() is not threading.main_thread() or under_torchrun():
        yield
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    has_ended = threading.Event()

    def answer() -> None:
        # a signal that the main thread blocks, such as SIGHUP, would reach this thread and end the process
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with receiver:
            select.select([receiver], [], [])
            if has_ended.wait(ANSWER_SECONDS):
                return
            receiver.recv(1024)  # `timeout` sends its signal twice
            log("tmt: stopping; files, such as a checkpoint, are completed first; press Ctrl-C again to end at once")
            while (number := receiver.recv(1)) == bytes([signal.SIGALRM]):  # repeats of a signal during an import
                pass
            if number:
                os._exit(128 + number[0])  # safe during a save: files keep temporary names until they are complete

    threading.Thread(target=answer, daemon=True).start()
    previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # else signals to a child would count here
    try:
        yield
    finally:
        has_ended.set()
        signal.set_wakeup_fd(previous)
        sender.close()


class StopSignals:
    """A context in which SIGINT and SIGTERM set `number` for the training loop to poll."""

    def __init__(self) -> None:
        self.number = 0
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
        self.number = self.number or number
