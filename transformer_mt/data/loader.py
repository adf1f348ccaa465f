"""Prefetching: a background thread builds the next batches while the model trains on the current ones."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.batches import Batch, BatchStream, Sentences, StreamPosition
from transformer_mt.data.bucketing import Rows
from transformer_mt.data.text_files import Pair
from transformer_mt.data.tokenizers.subword_sampling import SubwordSamplers, sample_sides
from transformer_mt.data.worker_pool import WorkerPool, open_pool
from transformer_mt.system.device import Machine, count_available_cores
from transformer_mt.system.launcher import local_world_size
from transformer_mt.system.log import log
from transformer_mt.tools.augmentation.symbol_insertion import EncodedPairs, SymbolInserter

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

T = TypeVar("T")
State = tuple[SubwordSamplers | None, SymbolInserter | None]
Joined = tuple[NDArray[np.int32], list[int]]  # ids of all sentences in a row, and the length of each


def count_sampling_workers(machine: Machine) -> int:
    """Return the number of workers: on CUDA, one per core of this rank except one; otherwise 0."""
    if machine.device.type != "cuda":
        return 0
    return max(0, min(MAX_WORKERS, count_available_cores() // local_world_size() - 1))


@contextmanager
def open_sampling_workers(stream: BatchStream, n_workers: int) -> Generator[None]:
    """Let workers sample the subwords of a stream and insert its symbols inside the `with` block, if it has any."""
    samplers, modifier = stream.subword_samplers, stream.modifier
    inserter = modifier.symbol_inserter if modifier is not None else None
    if n_workers == 0 or (samplers is None and inserter is None):
        yield
        return
    sample_in_process = stream.sample_subwords
    with open_pool(n_workers, _get_state, samplers, inserter) as pool:
        workers = SamplingWorkers(pool, n_workers, samplers, inserter)
        if samplers is not None:
            stream.sample_subwords = workers.sample_subwords
        if modifier is not None and inserter is not None:
            stream.modifier = modifier.with_insert_symbols(workers.insert_symbols)
        try:
            yield
        finally:
            stream.sample_subwords, stream.modifier = sample_in_process, modifier


class SamplingWorkers:
    """Divides the sentences of a batch among workers. If one was killed, this process continues alone."""

    def __init__(
        self,
        pool: WorkerPool[State],
        n_workers: int,
        samplers: SubwordSamplers | None,
        inserter: SymbolInserter | None,
    ) -> None:
        self._pool: WorkerPool[State] | None = pool
        self._n_workers, self._samplers, self._inserter = n_workers, samplers, inserter

    def sample_subwords(self, sides: Sequence[Sentences], rows: Rows, epoch: int) -> Sequence[Sentences]:
        """Return sampled ids of the sentences of each side, see `sample_sides`."""
        samplers = self._samplers
        assert samplers is not None

        def divide(pool: WorkerPool[State]) -> Sequence[Sentences]:
            futures = [
                [
                    pool.submit(_sample_subwords, (side, _join(ids[share]), rows[share], epoch))
                    for share in self._divide(len(rows))
                ]
                for side, ids in enumerate(sides)
            ]
            return [[ids for future in of_side for ids in _split(future.result())] for of_side in futures]

        return self._run(divide, lambda: sample_sides(samplers, sides, rows, epoch))

    def insert_symbols(
        self, pairs: Sequence[Pair], max_insertions: int, max_terms: int, seeds: Sequence[str]
    ) -> EncodedPairs:
        """Return the ids of both sides with symbols, see `SymbolInserter`."""
        inserter = self._inserter
        assert inserter is not None

        def divide(pool: WorkerPool[State]) -> EncodedPairs:
            futures = [
                pool.submit(_insert_symbols, (pairs[share], max_insertions, max_terms, seeds[share]))
                for share in self._divide(len(pairs))
            ]
            results = [future.result() for future in futures]
            src, tgt = ([ids.tolist() for result in results for ids in _split(result[side])] for side in (0, 1))
            return src, tgt

        return self._run(divide, lambda: inserter(pairs, max_insertions, max_terms, seeds))

    def _run(self, divide: Callable[[WorkerPool[State]], T], in_process: Callable[[], T]) -> T:
        """Divide a task among the workers, or do it in this process if one of them has ended."""
        if self._pool is not None:
            try:
                return divide(self._pool)
            except BrokenProcessPool:  # out of memory, or a signal to all processes of a job
                log(
                    "warning: a process that samples subwords ended unexpectedly; the training process samples them now"
                )
                self._pool = None
        return in_process()

    def _divide(self, n_sentences: int) -> list[slice]:
        """Return the share of a batch that each worker gets."""
        size = max(MIN_SHARE, -(-n_sentences // self._n_workers))
        return [slice(start, start + size) for start in range(0, n_sentences, size)]


def _join(sentences: Sentences) -> Joined:
    """Join sentences to one array, because a message with many small arrays is slow."""
    return np.concatenate([np.asarray(ids, np.int32) for ids in sentences]), [*map(len, sentences)]


def _split(joined: Joined) -> list[NDArray[np.int32]]:
    ids, lengths = joined
    return np.split(ids, np.cumsum(lengths)[:-1])


# --- in a worker process ----------------------------------------------------------------------------------------------


def _get_state(samplers: SubwordSamplers | None, inserter: SymbolInserter | None) -> State:
    """Return the state of a worker: the samplers, which were sent without their caches, and the inserter."""
    return samplers, inserter


def _sample_subwords(state: State, arguments: tuple[int, Joined, Rows, int]) -> Joined:
    samplers, _ = state
    assert samplers is not None
    side, joined, rows, epoch = arguments
    return _join(samplers[side].sample_rows(_split(joined), epoch, side, rows))


def _insert_symbols(state: State, arguments: tuple[Sequence[Pair], int, int, Sequence[str]]) -> tuple[Joined, Joined]:
    _, inserter = state
    assert inserter is not None
    src, tgt = inserter(*arguments)
    return _join(src), _join(tgt)
