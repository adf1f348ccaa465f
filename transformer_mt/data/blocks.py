"""Processing of a large corpus in blocks, with progress messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from transformer_mt.system.logging import log_rank0

BLOCK_SIZE = 10_000  # pairs in memory at a time
LOG_EVERY = 10  # seconds between messages

T = TypeVar("T")


def in_blocks(pairs: Iterator[T], verb: str, total: int | None = None) -> Iterator[list[T]]:
    """Yield the pairs in lists of BLOCK_SIZE, and log lines such as `data: encoded 40,000 of 90,000 pairs`."""
    count, last_log = 0, time.perf_counter()
    while block := list(islice(pairs, BLOCK_SIZE)):
        yield block
        count += len(block)
        if time.perf_counter() - last_log >= LOG_EVERY:
            of_total = "" if total is None else f" of {total:,}"
            log_rank0(f"data: {verb} {count:,}{of_total} pairs")
            last_log = time.perf_counter()
