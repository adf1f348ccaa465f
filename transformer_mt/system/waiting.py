"""How the threads of a matrix product on a CPU wait for each other: spinning, or asleep.

torch and CTranslate2 divide each product among threads of GNU OpenMP (libgomp). A thread that is done spins, because
most products take less time than waking a sleeping thread. But if other programs use the cores, it spins while the
thread that it waits for has no core, and a training can become twelve times slower.

libgomp itself stops spinning in a process that has more OpenMP threads than cores (GOMP_SPINCOUNT in its manual). So a
watcher adds idle threads while the cores are contended, and ends them when they are not. The threads that compute stay
the same, and with them every bit of the results.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

Waiting = Literal["auto", "active", "passive"]

THREADS = Path("/proc/self/task")
MEMORY_MAP = Path("/proc/self/maps")
OPENMP_VARIABLES = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
"""Variables of the environment with which a user decides about the waiting of OpenMP."""

SAMPLE_SECONDS = 0.5
CONTENDED, QUIET = 0.25, 0.08
"""Seconds per second that all threads together are ready to run but have no core: where sleeping starts and ends."""
QUIET_SECONDS = 20.0  # until the threads spin again; it doubles with each return, so that the waiting rarely changes
CONTENDED_MESSAGE = "other programs use the cores: threads sleep while they wait for each other (train.waiting)"
FREE_MESSAGE = "the cores are free again: threads spin while they wait for each other"
WATCHER = "waiting"  # name of the thread that watches


def start(waiting: Waiting, n_threads: int, log: Callable[[str], None] | None = None) -> None:
    """Let the threads of this process spin (active), sleep (passive), or sleep while the cores are contended (auto).

    A running watcher is kept. `log` gets a line at each change. Nothing changes for a single thread, in a
    process with a variable of `OPENMP_VARIABLES`, and where the system is not Linux, or does not count delays.
    """
    is_decided = waiting == "active" or any(map(os.environ.get, OPENMP_VARIABLES))
    is_started = any(thread.name == WATCHER for thread in threading.enumerate())
    if n_threads > 1 and not is_decided and not is_started and read_delay() is not None:
        threading.Thread(target=_watch, args=(waiting, log), daemon=True, name=WATCHER).start()


def _watch(waiting: Waiting, log: Callable[[str], None] | None) -> None:
    """Let the OpenMP threads sleep, always or while the cores are contended."""
    contention, idle_threads = Contention(), IdleThreads()
    delay, seconds = read_delay() or 0.0, time.perf_counter()
    while True:
        if contention.is_contended or waiting == "passive":
            idle_threads.start()
        else:
            idle_threads.end()
        time.sleep(SAMPLE_SECONDS)
        delay_before, delay = delay, read_delay() or 0.0
        seconds_before, seconds = seconds, time.perf_counter()
        has_changed = contention.update(delay - delay_before, seconds - seconds_before)
        if has_changed and waiting == "auto" and log is not None:
            log(CONTENDED_MESSAGE if contention.is_contended else FREE_MESSAGE)


def read_delay() -> float | None:
    """Return the seconds that the threads of this process were ready to run but had no core. None: unknown."""
    if sys.platform != "linux":
        return None
    delay = None
    for thread in THREADS.iterdir():
        with suppress(OSError, IndexError):  # a thread that has ended, or a kernel without the second number
            delay = (delay or 0) + int((thread / "schedstat").read_text(encoding="ascii").split()[1])
    return None if delay is None else delay / 1e9


class Contention:
    """Decides from samples of the delay whether the cores are contended."""

    def __init__(self) -> None:
        self.is_contended = False
        self._n_contended = 0  # samples in a row
        self._quiet_seconds = 0.0
        self._needed_seconds = QUIET_SECONDS

    def update(self, delay: float, seconds: float) -> bool:
        """Add the delay of all threads in some seconds. Return whether the decision has changed.

        The delay of threads that have ended is no longer counted, so it may be negative.
        """
        before, share = self.is_contended, delay / seconds
        self._n_contended = self._n_contended + 1 if share > CONTENDED else 0
        self._quiet_seconds = self._quiet_seconds + seconds if share < QUIET else 0.0
        if not self.is_contended and self._n_contended >= 2:
            self.is_contended = True
        elif self.is_contended and self._quiet_seconds >= self._needed_seconds:
            self.is_contended = False
            self._needed_seconds *= 2
        return self.is_contended != before


class IdleThreads:
    """Idle OpenMP threads, one more than the cores, in each copy of libgomp that is loaded."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._libraries: set[str] = set()

    def start(self) -> None:
        """Start threads in the copies that have none yet."""
        memory_map = MEMORY_MAP.read_text(encoding="utf-8", errors="surrogateescape")
        found = {*re.findall(r"/.*/libgomp[^/\n]*$", memory_map, re.MULTILINE)}
        for library in found - self._libraries:
            threading.Thread(target=self._hold, args=(library, self._end), daemon=True).start()
        self._libraries |= found

    def end(self) -> None:
        """End all of them."""
        self._end.set()
        self._end, self._libraries = threading.Event(), set()

    @staticmethod
    def _hold(library: str, end: threading.Event) -> None:
        """Run a parallel region that does nothing. Its threads live as long as the thread that runs it."""
        openmp = ctypes.CDLL(library)
        function = ctypes.cast(openmp.omp_get_thread_num, ctypes.c_void_p)
        openmp.GOMP_parallel(function, None, ctypes.c_uint(len(os.sched_getaffinity(0)) + 1), ctypes.c_uint(0))
        end.wait()
