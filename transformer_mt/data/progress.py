"""What a person is told while a large corpus is read or encoded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from transformer_mt.system.logging import log_rank0

SECONDS = 10  # between two lines; what is done sooner says nothing

T = TypeVar("T")


def blocks(items: Iterator[T], size: int, done: str, total: int | None = None) -> Iterator[list[T]]:
    """The items in lists of `size`. From time to time, a line such as `data: encoded 40,000 of 90,000 pairs`."""
    count, told = 0, time.perf_counter()
    while block := list(islice(items, size)):
        yield block
        count += len(block)
        if time.perf_counter() - told >= SECONDS:
            of_all = "" if total is None else f" of {total:,}"
            log_rank0(f"data: {done} {count:,}{of_all} pairs")
            told = time.perf_counter()
