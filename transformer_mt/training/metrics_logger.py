"""Logs the metrics of a training to the terminal, to metrics.jsonl and to TensorBoard."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import append_text, write_text
from transformer_mt.system.logging import format_duration, log_rank0
from transformer_mt.training import tensorboard
from transformer_mt.training.tensorboard import EventWriter, Scalar
from transformer_mt.training.validation_result import ValidationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST_TIMED, LAST_TIMED = 5, 25  # steps after the start that the estimate of the remaining time rests on
BEST = "best/"  # prefix of the best scores so far


class MetricsLogger:
    """Writes metrics to files, and shows a progress bar on a terminal, otherwise a line per log entry.

    The first entry opens the event file, so `truncate` can be called before it. `start` comes before the first step.
    """

    def __init__(self, run: RunFolder, hparams: Mapping[str, Scalar], last_step: int | None) -> None:
        self.run, self.hparams, self.last_step = run, hparams, last_step
        self._events: EventWriter | None = None
        self._bar: Any = None
        self._first_step = 0
        self._first_time = self._timed_from = time.perf_counter()

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the bar and the event file. The next entry opens new ones."""
        for output in (self._bar, self._events):
            if output is not None:
                output.close()
        self._bar = self._events = None

    def start(self, step: int, log_every: int) -> None:
        """Show the progress bar after a completed step, unless it is shown. Without a terminal, say when lines come."""
        if self._bar is not None:
            return
        self._first_step = step + 1
        self._bar = tqdm(
            total=self.last_step, initial=step, unit="step", disable=not sys.stderr.isatty(), dynamic_ncols=True
        )
        if self._bar.disable:
            log_rank0(f"step {self._first_step:,} begins; a line every {log_every:,} steps (train.log_every)")

    def advance(self, step: int) -> None:
        """Advance the progress bar to a completed step."""
        if step == self._first_step:  # it takes longer than the others
            self._first_time = time.perf_counter()
        self._bar.update()
        if self._bar.disable:
            self._estimate_time(step)

    def log_training(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log training metrics, named `train/...`."""
        self.log_scalars(step, scalars)
        summary = (
            f"loss {scalars['train/loss']:.3f}  ppl {scalars['train/ppl']:.2f}  "
            f"{scalars['train/tokens_per_second']:,.0f} tokens/s"
        )
        if self._bar is not None and not self._bar.disable:
            self._bar.set_postfix_str(summary)
        else:
            of_total = f" of {self.last_step:,}" if self.last_step else ""
            log_rank0(f"step {step:,}{of_total}  {summary}{self._time_left(step)}")

    def log_validation(self, step: int, result: ValidationResult, *, is_best: bool) -> None:
        """Log scores and example translations of a validation."""
        scalars = {f"valid/{name}": value for name, value in result.scores.items()}
        if is_best:
            scalars |= {f"{BEST}{name}": value for name, value in result.scores.items()}
        self.log_scalars(step, scalars)
        for title, scores in split_by_source(result.scores).items():
            summary = "  ".join(f"{name} {value:.3f}" for name, value in scores.items())
            best = "  (best so far)" if is_best and title == "validation" else ""
            log_rank0(f"step {step:,}  {title}  {summary}{best}")
        if failed := result.describe_failed_tests():
            log_rank0(f"step {step:,}  {failed}")
        for sample in result.samples:
            log_rank0(f"{sample}\n")
        for name, markdown in result.markdown.items():
            self.log_markdown(step, name, markdown)
        self.flush()

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars by name to metrics.jsonl and TensorBoard, which shows the best scores as hyper-parameters."""
        events = self._open_events()
        for name, value in scalars.items():
            if not name.startswith(BEST):
                events.write_scalar(name, value, step)
        values = {name: value if math.isfinite(value) else str(value) for name, value in scalars.items()}
        append_text(self.run.metrics, json.dumps({"step": step, **values}) + "\n")
        if any(name.startswith(BEST) for name in scalars):
            self._write_hparams(events)

    def log_markdown(self, step: int, name: str, markdown: str) -> None:
        """Write Markdown text to TensorBoard."""
        self._open_events().write_text(name, markdown, step)

    def log_figures(self, step: int, draw: Callable[[], Mapping[str, Figure]]) -> None:
        """Draw figures and write them by name to TensorBoard."""
        for name, figure in draw().items():
            self._open_events().write_figure(name, figure, step)
        self.flush()

    def flush(self) -> None:
        """Write buffered events to the file."""
        if self._events is not None:
            self._events.flush()

    def truncate(self, step: int, *, is_scored: bool) -> None:
        """Delete all entries after a checkpoint, because a resumed run records them again.

        `is_scored` is True for a checkpoint that was saved after the validation of its step.
        """
        self.close()
        _truncate_metrics(self.run.metrics, step, is_scored)
        tensorboard.truncate(self.run.tensorboard, step, is_scored)

    def _open_events(self) -> EventWriter:
        if self._events is None:
            self._events = EventWriter(self.run.tensorboard)
            self._write_hparams(self._events)
        return self._events

    def _write_hparams(self, events: EventWriter) -> None:
        best: dict[str, Scalar] = {}
        for entry in read_metrics(self.run.metrics):
            best |= {name: value for name, value in entry.items() if name.startswith(BEST)}
        events.write_hparams({**self.hparams, **best})

    def _estimate_time(self, step: int) -> None:
        """Log once, after the first steps, how long the remaining ones will take."""
        n_steps = step - self._first_step + 1
        if n_steps == FIRST_TIMED:
            self._timed_from = time.perf_counter()
        if n_steps == LAST_TIMED and self.last_step is not None and step < self.last_step:
            seconds = (time.perf_counter() - self._timed_from) / (LAST_TIMED - FIRST_TIMED) * (self.last_step - step)
            log_rank0(f"about {format_duration(seconds)} to step {self.last_step:,}, validations not counted")

    def _time_left(self, step: int) -> str:
        if self.last_step is None or step <= self._first_step:
            return ""
        seconds = (time.perf_counter() - self._first_time) / (step - self._first_step) * (self.last_step - step)
        return f"  {tqdm.format_interval(seconds)} left"


class SilentMetricsLogger(MetricsLogger):
    """Logger of the other ranks, which writes nothing."""

    def start(self, step: int, log_every: int) -> None:
        """Do nothing."""

    def advance(self, step: int) -> None:
        """Do nothing."""

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Do nothing."""

    def log_markdown(self, step: int, name: str, markdown: str) -> None:
        """Do nothing."""

    def log_figures(self, step: int, draw: Callable[[], Mapping[str, Figure]]) -> None:
        """Do nothing."""

    def truncate(self, step: int, *, is_scored: bool) -> None:
        """Do nothing."""


def split_by_source(scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the scores of all validation pairs, and then those of each source (`bleu/NAME`), by title."""
    groups: dict[str, dict[str, float]] = {"validation": {}}
    for key, value in scores.items():
        name, _, source = key.partition("/")
        groups.setdefault(f"validation of {source}" if source else "validation", {})[name] = value
    return groups


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of metrics.jsonl, except lines that are incomplete after a kill, or damaged."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            entry: dict[str, Any] = json.loads(line)
            if isinstance(entry["step"], int):
                yield entry


def _truncate_metrics(path: Path, step: int, is_scored: bool) -> None:
    kept = [
        entry for entry in read_metrics(path) if tensorboard.precedes_checkpoint(entry["step"], entry, step, is_scored)
    ]
    if path.exists():
        write_text(path, "".join(json.dumps(entry) + "\n" for entry in kept))
