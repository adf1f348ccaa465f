"""Batches built ahead, by a thread, while the model computes on those before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.data.batching import Batch, BatchStream, Position

AHEAD = 2  # steps whose batches are ready, or being built, while one is computed


class Step(NamedTuple):
    """The batches of one step of the optimiser, and the position in the stream behind them."""

    batches: list[Batch]
    position: Position


@dataclass(frozen=True)
class Share:
    """Of the `count` batches that make a step, those that one process of `size` computes."""

    count: int
    rank: int = 0
    size: int = 1


class Feed:
    """The steps of a stream from a position on, without end, to be used in a `with` statement.

    What is handed out does not depend on what is built ahead. An error in building is raised where its step is asked
    for.
    """

    def __init__(self, stream: BatchStream, position: Position, share: Share, *, pinned: bool = False) -> None:
        self.stream, self.share, self.pinned = stream, share, pinned
        self.waited = 0.0  # seconds that were spent waiting for batches
        self._next = position  # of the step that will be begun next
        self._pool = ThreadPoolExecutor(1, "batches")
        self._steps: deque[Future[Step]] = deque()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        began = time.perf_counter()
        while len(self._steps) <= AHEAD:
            self._steps.append(self._pool.submit(self._build, self._next))
            self._next = self.stream.after(self._next, self.share.count)
        step = self._steps.popleft().result()
        self.waited += time.perf_counter() - began
        return step

    def _build(self, position: Position) -> Step:
        batches, after = self.stream.take(position, self.share.count, self.share.rank, self.share.size)
        return Step([batch.pinned() for batch in batches] if self.pinned else batches, after)
