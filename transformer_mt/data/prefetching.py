"""Batches built ahead, by a thread, while the model computes on those before."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from transformer_mt.data.batches import Batch, BatchStream, StreamPosition

PREFETCHED_STEPS = 2  # steps whose batches are ready, or being built, while one is computed


class StepBatches(NamedTuple):
    """The batches of one step of the optimiser, and the position in the stream behind them."""

    batches: list[Batch]
    position: StreamPosition


class Prefetcher:
    """The steps of a stream, of `count` batches each, for one process of `size`; to be used in a `with` statement.

    What is handed out does not depend on what is built ahead. An error in building is raised where its step is asked
    for.
    """

    def __init__(
        self, stream: BatchStream, count: int, rank: int = 0, size: int = 1, *, pin_memory: bool = False
    ) -> None:
        self.stream, self.count, self.rank, self.size, self.pin_memory = stream, count, rank, size, pin_memory
        self._pool = ThreadPoolExecutor(1, "batches")
        self._steps: dict[StreamPosition, Future[StepBatches]] = {}  # by the position before

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, position: StreamPosition) -> StepBatches:
        """The step that begins at a position. The ones behind it are built meanwhile."""
        places = [self.stream.advance(position, i * self.count) for i in range(PREFETCHED_STEPS + 1)]
        self._steps = {place: self._steps.get(place) or self._pool.submit(self._build, place) for place in places}
        return self._steps[position].result()

    def describe_lines(self, position: StreamPosition) -> str:
        """Where the pairs of the step that begins at a position were read, for a person."""
        return self.stream.corpus.describe_lines(self.stream.rows_at(position, self.count))

    def _build(self, position: StreamPosition) -> StepBatches:
        batches, after = self.stream.take(position, self.count, self.rank, self.size)
        return StepBatches([batch.pin_memory() for batch in batches] if self.pin_memory else batches, after)
