"""Dynamic batching: lines of several requests are translated together, in one worker thread per model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from transformer_mt.data.data_config import Direction
from transformer_mt.decoding.segments import Segment, Translation

WINDOW_SECONDS = 0.003  # in which a line waits for others
MAX_BATCH_LINES = 64
MAX_BATCH_CHARACTERS = 8000  # source characters of a batch; a longer line is a separate batch
LINES_PER_BATCH = 8  # line i of a text is queued as if it had arrived i / LINES_PER_BATCH batches later

SourceLine = str | Segment
NBest = Sequence[Translation]
"""The translations of a line, the best first."""


class BatchOptions(NamedTuple):
    """Options that all lines of a batch share."""

    direction: Direction
    n_best: int = 1
    is_document: bool = False
    """True if the lines are segments of a document, whose elements are kept."""


@dataclass(eq=False)
class BatchLine:
    """One line of a text, and its translation."""

    options: BatchOptions
    text: SourceLine
    length: int
    """Characters."""
    position: int
    """In the text, from 0."""
    start_tag: float
    """Lines with a lower tag are translated first, as in fair queueing."""
    result: asyncio.Future[NBest]
    """Cancelled if nobody waits for it any more."""
    created: float = field(default_factory=time.monotonic)


class BatchingWorker:
    """Translates lines with one model in a thread, those of several texts together.

    A long text does not hold up a short one, because its later lines have higher tags.
    """

    def __init__(
        self,
        translate: Callable[[BatchOptions, Sequence[BatchLine]], Sequence[NBest]],
        observe: Callable[[int, float], None] = lambda n_lines, seconds: None,
    ) -> None:
        """`translate` translates a batch. A line waits up to `WINDOW_SECONDS` for others.

        `observe` is called after each batch.
        """
        self._translate, self._observe = translate, observe
        self._waiting: list[BatchLine] = []
        self._arrival = asyncio.Event()
        self._n_batches = 0
        self._thread = ThreadPoolExecutor(1, "tmt-batching")
        self._task: asyncio.Task[None] | None = None

    async def run(self, options: BatchOptions, lines: Sequence[SourceLine], lengths: Sequence[int]) -> list[NBest]:
        """Return the translated lines of a text. If the task is cancelled, waiting lines are dropped."""
        loop = asyncio.get_running_loop()
        batch_lines: list[BatchLine] = []
        for i, (line, length) in enumerate(zip(lines, lengths, strict=True)):
            start_tag = self._n_batches + i / LINES_PER_BATCH
            batch_lines.append(BatchLine(options, line, length, i, start_tag, loop.create_future()))
        self._waiting += batch_lines
        self._arrival.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._translate_waiting())
        try:
            return await asyncio.gather(*(line.result for line in batch_lines))
        finally:
            for line in batch_lines:
                line.result.cancel()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    async def _translate_waiting(self) -> None:
        """Translate until no line waits."""
        while True:
            self._waiting = [line for line in self._waiting if not line.result.done()]
            if not self._waiting:
                return
            remaining = min(line.created for line in self._waiting) + WINDOW_SECONDS - time.monotonic()
            if remaining > 0 and len(self._waiting) < MAX_BATCH_LINES:
                self._arrival.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrival.wait(), remaining)
                continue
            batch = self._take_batch()
            self._n_batches += 1
            start = time.monotonic()
            await self._translate_batch(batch)
            self._observe(len(batch), time.monotonic() - start)

    def _take_batch(self) -> list[BatchLine]:
        """Take the lines whose turn it is, and that have the options of the first one."""
        self._waiting.sort(key=lambda line: line.start_tag)
        batch: list[BatchLine] = []
        room = MAX_BATCH_CHARACTERS
        for line in self._waiting:
            if line.options == self._waiting[0].options:
                room -= line.length
                if batch and (room < 0 or len(batch) == MAX_BATCH_LINES):
                    break
                batch.append(line)
        taken = set(batch)
        self._waiting = [line for line in self._waiting if line not in taken]
        return batch

    async def _translate_batch(self, batch: Sequence[BatchLine]) -> None:
        """Translate a batch. If it fails, translate each line alone, so that one cannot make others fail."""
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._thread, self._translate, batch[0].options, batch)
        except Exception as error:
            if len(batch) > 1:
                for line in batch:
                    await self._translate_batch([line])
            elif not batch[0].result.done():
                batch[0].result.set_exception(error)
            return
        for line, result in zip(batch, results, strict=True):
            if not line.result.done():
                line.result.set_result(result)
