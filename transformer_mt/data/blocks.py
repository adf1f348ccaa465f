"""Processing of a large corpus in blocks, with progress messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import TypeVar

from transformer_mt.system.progress_report import ProgressReport

BLOCK_SIZE = 10_000  # pairs in memory at a time

T = TypeVar("T")
B = TypeVar("B", bound=Sized)


def split_into_blocks(pairs: Iterator[T], verb: str, total: int | None = None) -> Iterator[list[T]]:
    """Yield the pairs in lists of BLOCK_SIZE, and log the progress."""
    return log_progress(iter(lambda: list(islice(pairs, BLOCK_SIZE)), []), verb, total)


def log_progress(blocks: Iterable[B], verb: str, total: int | None = None, start: int = 0) -> Iterator[B]:
    """Yield the blocks, and log messages such as `data: encoded 40,000 of 90,000 pairs`, counted from `start`."""
    with ProgressReport(f"data: {verb}", total, "pairs").show(start, bar=False) as progress:
        count = start
        for block in blocks:
            n_pairs = len(block)  # the consumer may change it
            yield block
            count += n_pairs
            progress.update(count)
