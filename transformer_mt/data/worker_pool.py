"""Worker processes that end with their parent and leave Ctrl-C to it.

They are spawned: a forked process would inherit locks of the threads of libraries such as `tokenizers`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import Any, TypeVar

from transformer_mt.errors import UserError

ITEMS_AHEAD = 3  # per worker, so that none waits for its next item
WAKE_SECONDS = 1.0

T = TypeVar("T")
R = TypeVar("R")


class WorkerPool:
    """Processes that call functions for this one. `open_pool` makes it."""

    def __init__(self, executor: ProcessPoolExecutor, n_workers: int) -> None:
        self._executor, self._ahead = executor, ITEMS_AHEAD * n_workers

    def submit(self, function: Callable[[T], R], item: T) -> Future[R]:
        """Let a worker call a function, and return its future result."""
        # a process that is started here inherits the mask: Ctrl-C also reaches it, but its parent ends it
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._executor.submit(function, item)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def map_in_order(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results in the order of the items, and submit only a few items ahead."""
        pending = deque[Future[R]]()
        for item in items:
            pending.append(self.submit(function, item))
            if len(pending) > self._ahead:
                yield wait_for(pending.popleft())
        while pending:
            yield wait_for(pending.popleft())


def wait_for(future: Future[R]) -> R:
    """Return the result of a future. A signal that another thread received is handled when this one wakes up."""
    while not future.done():
        wait([future], timeout=WAKE_SECONDS)
    return future.result()


@contextmanager
def open_pool(n_workers: int, initializer: Callable[..., None], *arguments: Any) -> Generator[WorkerPool]:
    """Yield a pool whose workers first call `initializer(*arguments)`. An error in the context ends them at once.

    Raises:
        UserError: A worker was killed, or could not start.
    """
    executor = ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker, (initializer, arguments))
    try:
        yield WorkerPool(executor, n_workers)
    except BaseException as error:
        for process in active_children():
            process.terminate()
        if not isinstance(error, BrokenProcessPool):
            raise
        raise UserError(
            f"one of {n_workers} worker processes ended unexpectedly, perhaps because memory ran out; pass a smaller "
            "--workers"
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)


def _start_worker(initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    initializer(*arguments)


def _exit_with_parent() -> None:
    """End this process if its parent was killed, because the pool would wait for work for ever."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
