"""Worker processes for subword sampling, which is too slow in one thread for a GPU.

A segmentation depends only on seed, epoch, side and row, so it does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.batches import BatchStream, Sentences
from transformer_mt.data.bucketing import Rows
from transformer_mt.data.tokenizers.subword_sampling import SubwordSamplers, sample_sides
from transformer_mt.data.worker_pool import WorkerPool, open_pool
from transformer_mt.system.device import Machine, available_cores
from transformer_mt.system.launcher import local_world_size
from transformer_mt.system.logging import log

MAX_WORKERS = 16
MIN_CHUNK = 16  # sentences that are worth a message to another process

Joined = tuple[NDArray[np.int32], list[int]]  # ids of all sentences in a row, and the length of each


def count_sampling_workers(machine: Machine) -> int:
    """Return the number of workers: on CUDA, one per core of this rank except one; otherwise 0."""
    if machine.device.type != "cuda":
        return 0
    return max(0, min(MAX_WORKERS, available_cores() // local_world_size() - 1))


@contextmanager
def open_sampling_workers(stream: BatchStream, n_workers: int) -> Generator[None]:
    """Let workers sample the subwords of a stream inside the `with` block, if it samples any."""
    if stream.subword_samplers is None or n_workers == 0:
        yield
        return
    in_process = stream.sample_subwords
    with open_pool(n_workers, _get_samplers, stream.subword_samplers) as pool:
        stream.sample_subwords = SamplingWorkers(pool, n_workers, stream.subword_samplers)
        try:
            yield
        finally:
            stream.sample_subwords = in_process


class SamplingWorkers:
    """Divides the sentences of a batch among workers. If one was killed, this process continues alone."""

    def __init__(self, pool: WorkerPool[SubwordSamplers], n_workers: int, samplers: SubwordSamplers) -> None:
        self._pool: WorkerPool[SubwordSamplers] | None = pool
        self._n_workers, self._samplers = n_workers, samplers

    def __call__(self, sides: Sequence[Sentences], rows: Rows, epoch: int) -> Sequence[Sentences]:
        """Return sampled ids of the sentences of each side, see `sample_sides`."""
        if self._pool is not None:
            try:
                futures = [self._submit(self._pool, side, ids, rows, epoch) for side, ids in enumerate(sides)]
                return [[ids for future in chunks for ids in _split(future.result())] for chunks in futures]
            except BrokenProcessPool:  # out of memory, or a signal to all processes of a job
                log(
                    "warning: a process that samples subwords ended unexpectedly; the training process samples them now"
                )
                self._pool = None
        return sample_sides(self._samplers, sides, rows, epoch)

    def _submit(
        self, pool: WorkerPool[SubwordSamplers], side: int, sentences: Sentences, rows: Rows, epoch: int
    ) -> list[Future[Joined]]:
        size = max(MIN_CHUNK, -(-len(rows) // self._n_workers))
        chunks = [slice(start, start + size) for start in range(0, len(rows), size)]
        return [pool.submit(_sample_chunk, (side, _join(sentences[at]), rows[at], epoch)) for at in chunks]


def _join(sentences: Sentences) -> Joined:
    """Join sentences to one array, because a message with many small arrays is slow."""
    return np.concatenate([np.asarray(ids, np.int32) for ids in sentences]), [*map(len, sentences)]


def _split(joined: Joined) -> list[NDArray[np.int32]]:
    ids, lengths = joined
    return np.split(ids, np.cumsum(lengths)[:-1])


# --- in a worker process ----------------------------------------------------------------------------------------------


def _get_samplers(samplers: SubwordSamplers) -> SubwordSamplers:
    """Return the state of a worker: the samplers, which were sent without their caches."""
    return samplers


def _sample_chunk(samplers: SubwordSamplers, item: tuple[int, Joined, Rows, int]) -> Joined:
    side, joined, rows, epoch = item
    return _join(samplers[side].sample_rows(_split(joined), epoch, side, rows))
