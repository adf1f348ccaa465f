"""Prefetching of batches in a background thread, and worker processes that sample subwords."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.batches import Batch, BatchStream, Rows, Sentences, StreamPosition
from transformer_mt.data.tokenizers.subword_sampling import SubwordSampler
from transformer_mt.data.worker_pool import open_pool
from transformer_mt.system.device import Machine, count_available_cores
from transformer_mt.system.launcher import local_world_size
from transformer_mt.system.log import log

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


MAX_WORKERS = 16
MIN_SHARE = 16  # sentences that are worth a message to another process

Joined = tuple[NDArray[np.int32], list[int]]  # ids of all sentences in a row, and the length of each


def count_sampling_workers(machine: Machine) -> int:
    """Return the number of workers: on CUDA, one per core of this rank except one; otherwise 0."""
    if machine.device.type != "cuda":
        return 0
    return max(0, min(MAX_WORKERS, count_available_cores() // local_world_size() - 1))


@contextmanager
def open_sampling_workers(stream: BatchStream, n_workers: int) -> Generator[None]:
    """Inside the `with` block, let worker processes sample the subwords of each batch, if the stream samples any.

    If a worker was killed, this process continues alone.
    """
    samplers, sample_in_process = stream.subword_samplers, stream.sample_subwords
    if n_workers == 0 or samplers is None or sample_in_process is None:
        yield
        return
    with open_pool(n_workers, tuple, samplers) as pool:  # the samplers are sent without their caches

        def sample(sides: Sequence[Sentences], rows: Rows, epoch: int) -> Sequence[Sentences]:
            size = max(MIN_SHARE, -(-len(rows) // n_workers))
            shares = [slice(start, start + size) for start in range(0, len(rows), size)]
            try:
                futures = [
                    [pool.submit(_sample_share, (side, _join(ids[share]), rows[share], epoch)) for share in shares]
                    for side, ids in enumerate(sides)
                ]
                return [[ids for future in of_side for ids in _split(future.result())] for of_side in futures]
            except BrokenProcessPool:  # out of memory, or a signal to all processes of a job
                log(
                    "warning: a process that samples subwords ended unexpectedly; the training process samples them now"
                )
                stream.sample_subwords = sample_in_process
                return sample_in_process(sides, rows, epoch)

        stream.sample_subwords = sample
        try:
            yield
        finally:
            stream.sample_subwords = sample_in_process


def _join(sentences: Sentences) -> Joined:
    """Join sentences to one array, because a message with many small arrays is slow."""
    return np.concatenate([np.asarray(ids, np.int32) for ids in sentences]), [*map(len, sentences)]


def _split(joined: Joined) -> list[NDArray[np.int32]]:
    ids, lengths = joined
    return np.split(ids, np.cumsum(lengths)[:-1])


def _sample_share(samplers: tuple[SubwordSampler, ...], arguments: tuple[int, Joined, Rows, int]) -> Joined:
    side, joined, rows, epoch = arguments
    return _join(samplers[side].sample_rows(_split(joined), epoch, side, rows))
