"""The batching worker, with translators of plain Python that the tests control."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from transformer_mt.data.data_config import Direction
from transformer_mt.errors import UserError
from transformer_mt.tools.serving import batching
from transformer_mt.tools.serving.batching import BatchingWorker, BatchLine, BatchOptions

EN_DE, EN_FR = (BatchOptions(Direction("en", target)) for target in ("de", "fr"))
WAIT = 10
Job = tuple[BatchOptions, Sequence[str]]


class Recorder:
    """Upper-cases lines, and records the batches. A batch waits until `gate` is open."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.gate, self.has_started = threading.Event(), threading.Event()

    def __call__(self, options: BatchOptions, lines: Sequence[BatchLine]) -> list[Any]:
        texts = [str(line.text) for line in lines]
        self.batches.append((options.direction.tgt_lang, texts))
        self.has_started.set()
        assert self.gate.wait(WAIT)
        if "wrong" in texts:
            raise UserError("a wrong line")
        return [f"{text.upper()} {line.position + 1}" for text, line in zip(texts, lines, strict=True)]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def run(worker: BatchingWorker, options: BatchOptions, lines: Sequence[str]) -> Coroutine[Any, Any, Any]:
    return worker.run(options, lines, [len(line) for line in lines])


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "WINDOW_SECONDS", 0)


def translate_together(recorder: Recorder, *jobs: Job) -> list[Any]:
    """Return the results of jobs that meet in the queue, because a first job occupies the thread."""

    async def translate() -> list[Any]:
        worker = BatchingWorker(recorder)
        first = asyncio.create_task(run(worker, EN_DE, ["first"]))
        await asyncio.to_thread(recorder.has_started.wait, WAIT)
        tasks = [asyncio.create_task(run(worker, *job)) for job in jobs]
        await asyncio.sleep(0)
        recorder.gate.set()
        await first
        results = await asyncio.gather(*tasks, return_exceptions=True)
        worker.close()
        return results

    return asyncio.run(translate())


def test_texts_that_wait_are_translated_together_and_each_gets_its_own_lines(recorder: Recorder) -> None:
    results = translate_together(recorder, (EN_DE, ["a", "b"]), (EN_DE, ["c"]), (EN_DE, []))
    assert recorder.batches[1:] == [("de", ["a", "c", "b"])]
    assert results == [["A 1", "B 2"], ["C 1"], []]


def test_a_full_batch_does_not_wait_for_the_end_of_the_window(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.gate.set()
    monkeypatch.setattr(batching, "WINDOW_SECONDS", 3 * WAIT)
    monkeypatch.setattr(batching, "MAX_BATCH_LINES", 3)

    async def translate() -> list[Any]:
        worker = BatchingWorker(recorder)
        async with asyncio.timeout(WAIT):
            return await asyncio.gather(*(run(worker, EN_DE, [letter]) for letter in "abc"))

    assert asyncio.run(translate()) == [["A 1"], ["B 1"], ["C 1"]]
    assert len(recorder.batches) == 1


def test_a_long_text_does_not_hold_up_a_short_one_or_other_options(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = (EN_DE, [*"abcdefghij"]), (EN_DE, ["x"]), (EN_FR, ["y"])
    monkeypatch.setattr(batching, "MAX_BATCH_LINES", 4)
    translate_together(recorder, *jobs)
    assert recorder.batches[1][1] == ["a", "x", "b", "c"]
    assert recorder.batches[2] == ("fr", ["y"])


def test_a_batch_has_a_limit_of_characters(recorder: Recorder) -> None:
    translate_together(recorder, (EN_DE, ["a" * 7000, "b" * 7000, "c" * 20_000, "d"]))
    assert [[line[0] for line in lines] for _, lines in recorder.batches[1:]] == [["a"], ["b"], ["c"], ["d"]]


def test_a_line_that_fails_does_not_harm_the_other_texts_of_its_batch(recorder: Recorder) -> None:
    bad, good = translate_together(recorder, (EN_DE, ["wrong"]), (EN_DE, ["a"]))
    assert isinstance(bad, UserError)
    assert good == ["A 1"]


def test_a_cancelled_text_is_not_translated(recorder: Recorder) -> None:
    async def translate() -> None:
        worker = BatchingWorker(recorder)
        first = asyncio.create_task(run(worker, EN_DE, ["first"]))
        await asyncio.to_thread(recorder.has_started.wait, WAIT)
        never, last = (asyncio.create_task(run(worker, EN_DE, [text])) for text in ("never", "a"))
        await asyncio.sleep(0)
        never.cancel()
        recorder.gate.set()
        assert [await first, await last] == [["FIRST 1"], ["A 1"]]
        worker.close()

    asyncio.run(translate())
    assert recorder.batches[1:] == [("de", ["a"])]
