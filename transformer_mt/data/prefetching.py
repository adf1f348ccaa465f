"""Batches built ahead, by a thread, while the model computes on those before."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from transformer_mt.data.batches import Batch, BatchStream, Position

AHEAD = 2  # steps whose batches are ready, or being built, while one is computed


class Step(NamedTuple):
    """The batches of one step of the optimiser, and the position in the stream behind them."""

    batches: list[Batch]
    position: Position


class Prefetcher:
    """The steps of a stream, of `count` batches each, for one process of `size`; to be used in a `with` statement.

    What is handed out does not depend on what is built ahead. An error in building is raised where its step is asked
    for.
    """

    def __init__(self, stream: BatchStream, count: int, rank: int = 0, size: int = 1, *, pinned: bool = False) -> None:
        self.stream, self.count, self.rank, self.size, self.pinned = stream, count, rank, size, pinned
        self._pool = ThreadPoolExecutor(1, "batches")
        self._steps: dict[Position, Future[Step]] = {}  # by the position before

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, position: Position) -> Step:
        """The step that begins at a position. The ones behind it are built meanwhile."""
        places = [self.stream.after(position, i * self.count) for i in range(AHEAD + 1)]
        self._steps = {place: self._steps.get(place) or self._pool.submit(self._build, place) for place in places}
        return self._steps[position].result()

    def describe_lines(self, position: Position) -> str:
        """Where the pairs of the step that begins at a position were read, for a person."""
        return self.stream.corpus.describe_lines(self.stream.rows(position, self.count))

    def _build(self, position: Position) -> Step:
        batches, after = self.stream.take(position, self.count, self.rank, self.size)
        return Step([batch.pinned() for batch in batches] if self.pinned else batches, after)
