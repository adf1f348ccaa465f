"""Prefetching: a background thread builds the next batches while the model trains on the current ones."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition

PREFETCHED_STEPS = 2  # optimizer steps whose batches are built ahead


class StepBatches(NamedTuple):
    """The batches of one optimizer step, and the stream position after them."""

    batches: list[Batch]
    position: StreamPosition


class Prefetcher:
    """Context manager that builds the batches of upcoming optimizer steps in a background thread.

    `take` returns the prepared batches of `BatchStream.take`, or raises the error that occurred while building them.
    """

    def __init__(
        self,
        stream: BatchStream,
        count: int,
        rank: int = 0,
        world_size: int = 1,
        prepare: Callable[[list[Batch]], list[Batch]] | None = None,
    ) -> None:
        """Prefetch one rank's share of `count` batches per optimizer step. `prepare` then packs or pins them."""
        self.stream, self.count, self.rank, self.world_size = stream, count, rank, world_size
        self.prepare = prepare
        self._pool = ThreadPoolExecutor(1, "batches")
        self._steps: dict[StreamPosition, Future[StepBatches]] = {}  # by the position of the step's first batch

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, position: StreamPosition) -> StepBatches:
        """Return the step that starts at a position, and submit the following steps."""
        starts = [self.stream.advance(position, i * self.count) for i in range(PREFETCHED_STEPS + 1)]
        self._steps = {start: self._steps.get(start) or self._pool.submit(self._build, start) for start in starts}
        return self._steps[starts[0]].result()

    def describe_lines(self, position: StreamPosition) -> str:
        """Return the first few `file:line` of the pairs in the step that starts at a position."""
        return self.stream.corpus.describe_lines(self.stream.rows_at(position, self.count))

    def _build(self, position: StreamPosition) -> StepBatches:
        batches, after = self.stream.take(position, self.count, self.rank, self.world_size)
        return StepBatches(self.prepare(batches) if self.prepare else batches, after)
