"""Worker processes that end with their parent and leave Ctrl-C to it.

They are spawned: a forked process would inherit locks of the threads of libraries such as `tokenizers`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import Pipe, get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from transformer_mt.errors import UserError

ITEMS_AHEAD = 3  # per worker, so that none waits for its next item
SAFE_PATH = "PYTHONSAFEPATH"  # variable of the environment that a new Python process reads

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class WorkerPool(Generic[S]):
    """Processes that call functions for this one. `open_pool` makes it.

    Each process makes a state of type `S` at its first call, and passes it to every function.
    """

    def __init__(self, executor: ProcessPoolExecutor, n_workers: int) -> None:
        self._executor, self._ahead = executor, ITEMS_AHEAD * n_workers

    def submit(self, function: Callable[[S, T], R], item: T) -> Future[R]:
        """Let a worker call `function(state, item)`, and return its future result."""
        # a process that is started here inherits the mask: Ctrl-C also reaches it, but its parent ends it
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._executor.submit(_call_with_state, function, item)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def map_in_order(self, function: Callable[[S, T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results in the order of the items, and submit only a few items ahead."""
        pending = deque[Future[R]]()
        for item in items:
            pending.append(self.submit(function, item))
            if len(pending) > self._ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def _safe_imports() -> Generator[None]:
    """Keep Python processes that are started meanwhile from importing files of the current directory."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def open_pool(n_workers: int, make_state: Callable[..., S], *arguments: Any) -> Generator[WorkerPool[S]]:
    """Yield a pool whose workers keep the state `make_state(*arguments)`. An error in the context ends them at once.

    Raises `UserError` if a worker was killed, or could not start.
    """
    stop, alive = Pipe(duplex=False)  # the workers read `stop`, and end when this process closes `alive`
    initializer_arguments = partial(make_state, *arguments), stop
    with _safe_imports():  # the executor also starts processes in later calls
        executor = ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker, initializer_arguments)
        try:
            yield WorkerPool(executor, n_workers)
        except BaseException as error:
            alive.close()
            if not isinstance(error, BrokenProcessPool):
                raise
            raise UserError(
                f"one of {n_workers} worker processes ended unexpectedly, perhaps because memory ran out; pass a "
                "smaller --workers"
            ) from None
        finally:
            executor.shutdown(cancel_futures=True)
            alive.close()
            stop.close()


# --- in a worker process ----------------------------------------------------------------------------------------------

_make_state: list[Callable[[], Any]] = []


def _start_worker(make_state: Callable[[], Any], stop: Connection) -> None:
    threading.Thread(target=_exit_with_parent, args=[stop], daemon=True).start()
    _make_state[:] = [make_state]


@cache
def _state() -> Any:
    """Make the state at the first call, because the parent would not see an error of the start of a process."""
    return _make_state[0]()


def _call_with_state(function: Callable[[Any, T], R], item: T) -> R:
    return function(_state(), item)


def _exit_with_parent(stop: Connection) -> None:
    """End this process if its parent was killed, because the pool would wait for work for ever, or if it says so."""
    if (parent := parent_process()) is not None:
        wait([parent.sentinel, stop])
        os._exit(1)
