"""The batching worker, with translators of plain Python that the tests control."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from transformer_mt.errors import UserError
from transformer_mt.tools.serving.batching import BatchingWorker, BatchLine, BatchOptions, LanguagePair, TranslationJob

EN_DE, EN_FR = (BatchOptions(LanguagePair("en", target)) for target in ("de", "fr"))
WAIT = 10


class Recorder:
    """Upper-cases lines, and records the batches. A batch waits until `gate` is open."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.gate, self.has_started = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, options: BatchOptions, lines: Sequence[BatchLine]) -> Any:
        texts = [str(line.text) for line in lines]
        self.batches.append((options.language_pair.target, texts))
        self.has_started.set()
        assert self.gate.wait(WAIT)
        if "wrong" in texts:
            raise UserError("a wrong line")
        return [f"{text.upper()} {line.position + 1}" for text, line in zip(texts, lines, strict=True)]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def blocked_worker(recorder: Recorder, **options: Any) -> BatchingWorker:
    """Return a worker that translates a first job until the gate opens, so that later jobs meet in the queue."""
    worker = BatchingWorker(recorder, window=0, **options)
    recorder.gate.clear()
    worker.submit(TranslationJob(EN_DE, ["first"]))
    assert recorder.has_started.wait(WAIT)
    return worker


def finish(worker: BatchingWorker, recorder: Recorder, *jobs: TranslationJob) -> list[Any]:
    for job in jobs:
        worker.submit(job)
    recorder.gate.set()
    worker.stop()
    return [job.future.result(WAIT) for job in jobs if not job.is_cancelled]


def test_jobs_that_wait_are_translated_together_and_each_gets_its_own_lines(recorder: Recorder) -> None:
    worker = blocked_worker(recorder)
    results = finish(worker, recorder, TranslationJob(EN_DE, ["a", "b"]), TranslationJob(EN_DE, ["c"]))
    assert recorder.batches[1:] == [("de", ["a", "c", "b"])]
    assert results == [["A 1", "B 2"], ["C 1"]]


def test_a_full_batch_does_not_wait_for_the_end_of_the_window(recorder: Recorder) -> None:
    worker = BatchingWorker(recorder, window=3 * WAIT, max_lines=3)
    jobs = [TranslationJob(EN_DE, [letter]) for letter in "abc"]
    for job in jobs:
        worker.submit(job)
    assert [job.future.result(WAIT) for job in jobs] == [["A 1"], ["B 1"], ["C 1"]]
    assert len(recorder.batches) == 1
    worker.stop()


def test_only_jobs_with_the_same_options_share_a_batch(recorder: Recorder) -> None:
    worker = blocked_worker(recorder)
    finish(worker, recorder, TranslationJob(EN_DE, ["a"]), TranslationJob(EN_FR, ["b"]), TranslationJob(EN_DE, ["c"]))
    assert recorder.batches[1:] == [("de", ["a", "c"]), ("fr", ["b"])]


def test_a_long_job_does_not_hold_up_a_short_one_or_other_options(recorder: Recorder) -> None:
    worker = blocked_worker(recorder, max_lines=4)
    finish(
        worker,
        recorder,
        TranslationJob(EN_DE, [*"abcdefghij"]),
        TranslationJob(EN_DE, ["x"]),
        TranslationJob(EN_FR, ["y"]),
    )
    assert recorder.batches[1][1] == ["a", "x", "b", "c"]
    assert recorder.batches[2] == ("fr", ["y"])


def test_a_batch_has_a_limit_of_characters(recorder: Recorder) -> None:
    worker = blocked_worker(recorder)
    finish(worker, recorder, TranslationJob(EN_DE, ["a" * 7000, "b" * 7000, "c" * 20_000, "d"]))
    assert [[line[0] for line in lines] for _, lines in recorder.batches[1:]] == [["a"], ["b"], ["c"], ["d"]]


def test_a_job_that_fails_does_not_harm_the_others_of_its_batch(recorder: Recorder) -> None:
    worker = blocked_worker(recorder)
    good, bad = TranslationJob(EN_DE, ["a"]), TranslationJob(EN_DE, ["wrong"])
    worker.submit(bad)
    assert finish(worker, recorder, good) == [["A 1"]]
    with pytest.raises(UserError, match="a wrong line"):
        bad.future.result(WAIT)


def test_cancelled_jobs_are_not_translated(recorder: Recorder) -> None:
    worker = blocked_worker(recorder)
    cancelled = TranslationJob(EN_DE, ["never"])
    worker.submit(cancelled)
    cancelled.is_cancelled = True
    assert finish(worker, recorder, TranslationJob(EN_DE, ["a"])) == [["A 1"]]
    assert recorder.batches[1:] == [("de", ["a"])]


def test_stop_finishes_the_queue_and_refuses_new_jobs(recorder: Recorder) -> None:
    worker = blocked_worker(recorder)
    assert finish(worker, recorder, TranslationJob(EN_DE, ["a"])) == [["A 1"]]
    with pytest.raises(RuntimeError):
        worker.submit(TranslationJob(EN_DE, ["late"]))
