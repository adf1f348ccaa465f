"""Dynamic batching: lines of several requests are translated together, in one worker thread per model."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from transformer_mt.decoding.paragraph_translator import TranslatedLine
from transformer_mt.serving.language_pairs import LanguagePair
from transformer_mt.system.logging import log

MAX_BATCH_CHARACTERS = 8000  # source characters of a batch; a longer line is a batch of its own


class DecodingOptions(NamedTuple):
    """Options that all lines of a batch share."""

    language_pair: LanguagePair
    n_best: int = 1
    alignments: bool = False


class TranslateLines(Protocol):
    """Translates a batch of lines with prefixes and line numbers."""

    def __call__(
        self,
        options: DecodingOptions,
        lines: Sequence[str],
        prefixes: Sequence[str],
        numbers: Sequence[int],
        is_cancelled: Callable[[int], bool],
    ) -> list[TranslatedLine]:
        """Return the translations of each line. A line is not needed once `is_cancelled` is true for its index."""
        ...


@dataclass(eq=False)
class TranslationJob:
    """The lines of one request, and their translations."""

    options: DecodingOptions
    lines: Sequence[str]
    prefix: str = ""  # of the translation of the first line
    future: Future[list[TranslatedLine]] = field(default_factory=Future[list[TranslatedLine]])
    created: float = field(default_factory=time.monotonic)
    is_cancelled: bool = False
    n_taken: int = 0  # lines that were put into a batch
    found: dict[int, TranslatedLine] = field(default_factory=dict[int, TranslatedLine])

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # from now on, only the worker ends it

    def cancel(self) -> None:
        """Stop the search of this job. Its future may never have a result."""
        self.is_cancelled = True

    @property
    def has_lines(self) -> bool:
        """Return whether lines wait for a batch."""
        return self.n_taken < len(self.lines) and not self.is_cancelled


@dataclass(frozen=True)
class BatchLine:
    """One line of a batch: line `index` of a job."""

    job: TranslationJob
    index: int

    @property
    def line(self) -> str:
        """The text of the line."""
        return self.job.lines[self.index]

    @property
    def prefix(self) -> str:
        """The start that its translation must have."""
        return self.job.prefix if self.index == 0 else ""


class BatchStatistics(NamedTuple):
    """What a batch contained, and how long it took."""

    n_lines: int
    n_requests: int
    seconds: float


class BatchingWorker:
    """A thread that translates jobs with one model, several at a time.

    A batch takes one line of each waiting job in turn, so a long text does not hold up a short one.
    """

    def __init__(
        self,
        translate: TranslateLines,
        *,
        window: float = 0.003,
        max_lines: int = 64,
        observe: Callable[[BatchStatistics], None] = lambda _: None,
    ) -> None:
        """Start the thread. A job waits up to `window` seconds for others. `observe` is called after each batch."""
        self._translate, self._window, self._max_lines, self._observe = translate, window, max_lines, observe
        self._waiting: deque[TranslationJob] = deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="tmt-batching", daemon=True)
        self._thread.start()

    def submit(self, job: TranslationJob) -> None:
        """Add a job to the queue. Raises `RuntimeError` if the worker has stopped."""
        with self._changed:
            if self._is_stopped:
                raise RuntimeError("the worker has stopped")
            self._waiting.append(job)
            self._changed.notify()

    def stop(self) -> None:
        """Finish the jobs in the queue, then end the thread."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            self._process(batch)
            n_requests = len({id(part.job) for part in batch})
            self._observe(BatchStatistics(len(batch), n_requests, time.monotonic() - start))

    def _next_batch(self) -> list[BatchLine]:
        """Wait for lines, and return the next batch; empty after the last one."""
        with self._changed:
            while True:
                self._waiting = deque(job for job in self._waiting if job.has_lines)
                if not self._waiting and self._is_stopped:
                    return []
                if not self._waiting:
                    self._changed.wait()
                    continue
                remaining = self._waiting[0].created + self._window - time.monotonic()
                n_lines = sum(len(job.lines) for job in self._waiting)
                if remaining <= 0 or n_lines >= self._max_lines or self._is_stopped:
                    return self._take()
                self._changed.wait(remaining)

    def _take(self) -> list[BatchLine]:
        """Take lines of the jobs that have the options of the first job, one of each job in turn."""
        jobs = [job for job in self._waiting if job.options == self._waiting[0].options]
        batch: list[BatchLine] = []
        room = MAX_BATCH_CHARACTERS
        while jobs:
            for job in jobs:
                line = job.lines[job.n_taken]
                if batch and (len(line) > room or len(batch) == self._max_lines):
                    room = -math.inf  # the batch is full
                    break
                batch.append(BatchLine(job, job.n_taken))
                job.n_taken += 1
                room -= len(line)
            jobs = [job for job in jobs if job.has_lines] if room > 0 else []
        taken = {id(part.job) for part in batch}
        others = [job for job in self._waiting if id(job) not in taken]
        self._waiting = deque([*others, *(job for job in self._waiting if id(job) in taken)])
        return batch

    def _process(self, batch: list[BatchLine]) -> None:
        """Translate a batch. If it fails, translate each job alone, so that one cannot make others fail."""
        try:
            found = self._translate(
                batch[0].job.options,
                [part.line for part in batch],
                [part.prefix for part in batch],
                [part.index + 1 for part in batch],
                lambda index: batch[index].job.is_cancelled,
            )
        except Exception as error:
            jobs = list({id(part.job): part.job for part in batch}.values())
            if len(jobs) == 1:
                jobs[0].cancel()
                jobs[0].future.set_exception(error)
                return
            log(f"tmt: a batch failed ({type(error).__name__}); its {len(jobs)} requests are translated one by one")
            for job in jobs:
                self._process([part for part in batch if part.job is job])
            return
        for part, translated in zip(batch, found, strict=True):
            part.job.found[part.index] = translated
        for job in {id(part.job): part.job for part in batch}.values():
            if len(job.found) == len(job.lines) and not job.is_cancelled:
                job.future.set_result([job.found[i] for i in range(len(job.lines))])
