"""Dynamic batching: lines of several requests are translated together, in one worker thread per model."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from transformer_mt.data.languages import primary_language
from transformer_mt.decoding.segments import Translation
from transformer_mt.system.log import log
from transformer_mt.tools.markup.elements import MarkedText


class LanguagePair(NamedTuple):
    """A source and a target language, with the tag that selects them in a model of several languages."""

    source: str
    target: str
    tag: str | None = None

    def __str__(self) -> str:
        codes = f"{self.source}-{self.target}"
        return codes if self.tag is None else f"{codes} ({self.tag})"


def is_same_language(code: str, other: str) -> bool:
    """Return whether two codes name one language: `en` and `eng_Latn`, but not `zh-Hans` and `zh-Hant`."""
    subtags = {_subtags(code), _subtags(other)} - {""}
    return primary_language(code) == primary_language(other) and len(subtags) < 2


def find_language_pair(
    pairs: Iterable[LanguagePair], source: str, target: str, tag: str | None = None
) -> LanguagePair | None:
    """Return the first pair that fits, or None. An exact code comes before another code of the language."""
    tagged = [pair for pair in pairs if tag in (None, pair.tag)]
    fitting = [
        pair for pair in tagged if is_same_language(source, pair.source) and is_same_language(target, pair.target)
    ]
    return min(fitting, key=lambda pair: (pair.source != source) + (pair.target != target), default=None)


def _subtags(code: str) -> str:
    """Return the script and region of a code: hant-hk for zh_Hant_HK."""
    return code.lower().replace("_", "-").partition("-")[2]


NBest = Sequence[Translation]
"""The translations of a line, the best first."""
MAX_BATCH_CHARACTERS = 8000  # source characters of a batch; a longer line is a separate batch


class BatchOptions(NamedTuple):
    """Options that all lines of a batch share."""

    language_pair: LanguagePair
    n_best: int = 1
    alignments: bool = False
    scores: bool = False
    is_document: bool = False
    """Whether the lines are segments of a document, whose elements are kept."""


@dataclass(eq=False)
class TranslationJob:
    """The lines of one text of a request, and their translations."""

    options: BatchOptions
    lines: Sequence[str | MarkedText]
    prefix: str = ""  # of the translation of the first line
    future: Future[list[NBest]] = field(default_factory=Future[list[NBest]])
    created: float = field(default_factory=time.monotonic)
    is_cancelled: bool = False  # its search stops, and its future may never have a result
    n_taken: int = 0  # lines that were put into a batch
    translated: dict[int, NBest] = field(default_factory=dict[int, NBest])

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # from now on, only the worker ends it

    @property
    def has_lines(self) -> bool:
        """Return whether lines wait for a batch."""
        return self.n_taken < len(self.lines) and not self.is_cancelled


class BatchLine(NamedTuple):
    """One line of a batch."""

    job: TranslationJob
    position: int  # in the job, from 0
    text: str | MarkedText
    prefix: str  # of its translation


def count_characters(line: str | MarkedText) -> int:
    """Return the length of a line with its elements."""
    return len(line if isinstance(line, str) else line.surface)


TranslateBatch = Callable[[BatchOptions, Sequence[BatchLine]], Sequence[NBest]]
"""Translates the lines of a batch. A line is not needed any more once its job is cancelled."""


class BatchingWorker:
    """A thread that translates jobs with one model, several at a time.

    A batch takes one line of each waiting job in turn, so a long text does not hold up a short one.
    """

    def __init__(
        self,
        translate: TranslateBatch,
        *,
        window: float = 0.003,
        max_lines: int = 64,
        observe: Callable[[int, int, float], None] = lambda n_lines, n_jobs, seconds: None,
    ) -> None:
        """Start the thread. A job waits up to `window` seconds for others. `observe` is called after each batch."""
        self._translate, self._window, self._max_lines, self._observe = translate, window, max_lines, observe
        self._waiting: list[TranslationJob] = []
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="tmt-batching", daemon=True)
        self._thread.start()

    def submit(self, job: TranslationJob) -> None:
        """Add a job to the queue. A job without lines is finished. Raises `RuntimeError` if the worker has stopped."""
        if not job.lines:
            job.future.set_result([])
            return
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
            self._observe(len(batch), len(_jobs_of(batch)), time.monotonic() - start)

    def _next_batch(self) -> list[BatchLine]:
        """Wait for lines, and return the next batch; empty after the last one."""
        with self._changed:
            while True:
                self._waiting = [job for job in self._waiting if job.has_lines]
                remaining = None
                if self._waiting:
                    remaining = self._waiting[0].created + self._window - time.monotonic()
                    n_lines = sum(len(job.lines) for job in self._waiting)
                    if remaining <= 0 or n_lines >= self._max_lines or self._is_stopped:
                        return self._take()
                elif self._is_stopped:
                    return []
                self._changed.wait(remaining)

    def _take(self) -> list[BatchLine]:
        """Take lines of the jobs that have the options of the first job, one of each job in turn."""
        jobs = [job for job in self._waiting if job.options == self._waiting[0].options]
        batch: list[BatchLine] = []
        room = MAX_BATCH_CHARACTERS
        while jobs:
            for job in jobs:
                length = count_characters(job.lines[job.n_taken])
                if batch and (length > room or len(batch) == self._max_lines):
                    room = -math.inf  # the batch is full
                    break
                prefix = "" if job.n_taken else job.prefix
                batch.append(BatchLine(job, job.n_taken, job.lines[job.n_taken], prefix))
                job.n_taken += 1
                room -= length
            jobs = [job for job in jobs if job.has_lines] if room > 0 else []
        taken = dict.fromkeys(_jobs_of(batch))
        self._waiting = [*(job for job in self._waiting if job not in taken), *taken]
        return batch

    def _process(self, batch: list[BatchLine]) -> None:
        """Translate a batch. If it fails, translate each job alone, so that one cannot make others fail."""
        jobs = _jobs_of(batch)
        try:
            translated_lines = self._translate(batch[0].job.options, batch)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].is_cancelled = True
                jobs[0].future.set_exception(error)
                return
            log(f"tmt: a batch failed ({type(error).__name__}); its {len(jobs)} requests are translated one by one")
            for job in jobs:
                self._process([line for line in batch if line.job is job])
            return
        for line, translated in zip(batch, translated_lines, strict=True):
            line.job.translated[line.position] = translated
        for job in jobs:
            if len(job.translated) == len(job.lines) and not job.is_cancelled:
                job.future.set_result([job.translated[i] for i in range(len(job.lines))])


def _jobs_of(batch: Sequence[BatchLine]) -> list[TranslationJob]:
    return list(dict.fromkeys(line.job for line in batch))
