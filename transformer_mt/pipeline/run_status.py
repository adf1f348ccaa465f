"""Status of a run, for `tmt runs`, reports and the README of a run. It is read from small files only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import Field, ValidationError

from transformer_mt.runs.checkpoint_info import CheckpointInfo
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.schemas import Count, Hours, Record

TAIL_BYTES = 1 << 16  # of metrics.jsonl; it has the last log entry


class LogEntry(Record, extra="ignore"):
    """The keys of a line of `metrics.jsonl` that the status needs."""

    step: Count | None = None
    hours: Hours | None = Field(default=None, alias="train/hours")


def find_status(record: Mapping[str, Any], step: int | None, *, is_running: bool) -> str:
    """Return finished, stopped, running, failed or weights only. `step` is the last one of the run."""
    if is_running:
        return "running"
    if "exported" in record:
        return "weights only"
    if "failed" in record:
        return "failed"
    is_resumed = (step or 0) > record.get("last_step", step or 0)  # with a higher limit
    return "finished" if "ended" in record and not is_resumed else "stopped"


def describe_status(run: RunFolder, record: Mapping[str, Any], max_steps: int | None, *, is_running: bool) -> str:
    """Return the status with the last step, and why the training ended or failed."""
    step = find_last_step(record, read_last_log_entry(run), run.list_readable_checkpoints())
    status = find_status(record, step, is_running=is_running)
    if status == "weights only":
        return f"{status} of a training that ended: {record['ended']}" if "ended" in record else status
    limit = "" if max_steps is None else f" of {max_steps:,}"
    place = "" if step is None else f" at step {step:,}{limit}"
    reason = {"finished": record.get("ended"), "failed": record.get("failed")}.get(status)
    return f"{status}{place}" + (f": {' '.join(reason.split())}" if reason else "")


def find_last_step(record: Mapping[str, Any], logged: LogEntry, checkpoints: Sequence[CheckpointInfo]) -> int | None:
    """Return the last step that was recorded, logged or saved."""
    steps = [record.get("last_step"), logged.step, *(info.step for info in checkpoints)]
    return max((step for step in steps if step is not None), default=None)


def read_last_log_entry(run: RunFolder) -> LogEntry:
    """Return the last step and hours near the end of `metrics.jsonl`."""
    last = LogEntry()
    try:
        with run.metrics.open("rb") as file:
            file.seek(max(0, run.metrics.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:  # no step was logged yet
        return last
    for line in lines:
        with suppress(ValidationError):  # cut at the start of the tail, not written completely yet, or damaged
            entry = LogEntry.model_validate_json(line)
            last = last.model_copy(update=entry.model_dump(exclude_none=True))
    return last
