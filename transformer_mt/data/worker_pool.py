"""Worker processes that end with their parent and leave Ctrl-C to it.

They are spawned: a forked process would inherit locks of the threads of libraries such as `tokenizers`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import Pipe, get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from transformer_mt.errors import UserError

SAFE_PATH = "PYTHONSAFEPATH"  # variable of the environment that a new Python process reads

T = TypeVar("T")
R = TypeVar("R")


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
def map_in_processes(function: Callable[[T], R], items: Sequence[T], n_workers: int) -> Generator[Iterator[R]]:
    """Open processes, and yield an iterator over the results of `function`, in the order of the items.

    All items are submitted at once, and each process unpickles the function once. An error in the context ends the
    processes at once. Raises `UserError` if one was killed, or could not start.
    """
    stop, alive = Pipe(duplex=False)  # the workers read `stop`, and end when this process closes `alive`
    with _safe_imports():
        executor = ProcessPoolExecutor(n_workers, get_context("spawn"), _start_worker, (function, stop))
        # the processes, which `map` starts, inherit the mask: Ctrl-C also reaches them, but their parent ends them
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            try:
                results = executor.map(_call, items)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            yield results
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

_function: list[Callable[[Any], Any]] = []


def _start_worker(function: Callable[[Any], Any], stop: Connection) -> None:
    threading.Thread(target=_exit_with_parent, args=[stop], daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # not a thread for each core
    _function[:] = [function]


def _call(item: Any) -> Any:
    return _function[0](item)


def _exit_with_parent(stop: Connection) -> None:
    """End this process when its parent dies or closes `stop`, because it would otherwise wait for work forever."""
    if (parent := parent_process()) is not None:
        wait([parent.sentinel, stop])
        os._exit(1)
