"""Processing of a large corpus in blocks, with progress messages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import TypeVar

from transformer_mt.system.logging import log_rank0

BLOCK_SIZE = 10_000  # pairs in memory at a time
LOG_EVERY = 10  # seconds between messages

T = TypeVar("T")
B = TypeVar("B", bound=Sized)


def in_blocks(pairs: Iterator[T], verb: str, total: int | None = None) -> Iterator[list[T]]:
    """Yield the pairs in lists of BLOCK_SIZE, and log the progress."""
    return log_progress(iter(lambda: list(islice(pairs, BLOCK_SIZE)), []), verb, total)


def log_progress(blocks: Iterable[B], verb: str, total: int | None = None, start: int = 0) -> Iterator[B]:
    """Yield the blocks, and log lines such as `data: encoded 40,000 of 90,000 pairs`. The count begins at `start`."""
    count, progress = start, ProgressLog()
    of_total = "" if total is None else f" of {total:,}"
    for block in blocks:
        n_pairs = len(block)  # the consumer may change it
        yield block
        count += n_pairs
        progress.log(f"data: {verb} {count:,}{of_total} pairs")


class ProgressLog:
    """Log of progress with at most one message in `LOG_EVERY` seconds. Other messages are left out."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def log(self, message: str) -> None:
        """Log a message if the last one is old enough."""
        if time.perf_counter() - self._last >= LOG_EVERY:
            log_rank0(message)
            self._last = time.perf_counter()
