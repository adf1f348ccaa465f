"""What a run says while it trains: the terminal, metrics.jsonl and TensorBoard, with the same figures everywhere."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from transformer_mt.evaluation.samples import Sample, as_markdown
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import append_text, atomic_file
from transformer_mt.system.logging import log_rank0
from transformer_mt.training import tensorboard
from transformer_mt.training.tensorboard import EventWriter, Scalar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class MetricsLogger:
    """Writes figures down, and shows how far the run has come: a bar on a terminal, else a line at each entry.

    Files are opened at the first entry, so that they can be cut back to a checkpoint before.
    """

    def __init__(self, run: RunFolder, hparams: Mapping[str, Scalar], max_steps: int | None) -> None:
        self.run, self.hparams, self.max_steps = run, hparams, max_steps
        self._events: EventWriter | None = None
        self._bar: Any = None
        self._began = time.perf_counter()
        self._first_step: int | None = None

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The bar and the files go; what comes next begins new ones."""
        for part in (self._bar, self._events):
            if part is not None:
                part.close()
        self._bar = self._events = self._first_step = None
        self._began = time.perf_counter()

    def advance(self, step: int) -> None:
        """A step was taken."""
        if self._first_step is None:
            self._first_step = step
            on_terminal = sys.stderr.isatty()
            self._bar = tqdm(
                total=self.max_steps, initial=step - 1, unit="step", disable=not on_terminal, dynamic_ncols=True
            )
        self._bar.update()

    def record_training(self, step: int, figures: Mapping[str, float]) -> None:
        """An entry of the training's log."""
        self.record(step, figures)
        shown = (
            f"loss {figures['train/loss']:.3f}  ppl {figures['train/ppl']:.2f}  "
            f"{figures['train/tokens_per_second']:,.0f} tokens/s"
        )
        if self._bar is not None and not self._bar.disable:
            self._bar.set_postfix_str(shown)
        else:
            log_rank0(f"step {step:,}{self._of_all()}  {shown}{self._time_left(step)}")

    def record_validation(
        self, step: int, scores: Mapping[str, float], samples: list[Sample], *, is_best: bool
    ) -> None:
        """The outcome of a validation."""
        figures = {f"valid/{name}": value for name, value in scores.items()}
        if is_best:
            figures |= {f"best/{name}": value for name, value in scores.items()}
        self.record(step, figures)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in scores.items())
        log_rank0(f"step {step:,}  validation  {shown}{'  (best so far)' if is_best else ''}")
        for sample in samples:
            log_rank0("\n".join(sample.lines()) + "\n")
        if samples:
            self.write("validation", as_markdown(samples), step)
            self.flush()

    def record_degenerate(self, step: int, failures: Sequence[Sample], alarm: Sequence[str]) -> None:
        """Examples of translations that are none, to TensorBoard, and lines that must not be overlooked."""
        if failures:
            self.write("degenerate", as_markdown(failures), step)
            self.flush()
        if alarm:
            log_rank0("\n".join([f"step {step:,}  {alarm[0]}", *alarm[1:]]))

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures by name, to both files."""
        writer = self._open()
        for name, value in figures.items():
            writer.scalar(name, value, step)
        finite = {name: value if math.isfinite(value) else str(value) for name, value in figures.items()}
        append_text(self.run.metrics, json.dumps({"step": step, **finite}) + "\n")

    def write(self, name: str, markdown: str, step: int) -> None:
        """Text, to TensorBoard."""
        self._open().text(name, markdown, step)

    def show(self, step: int, draw: Callable[[], Mapping[str, Figure]]) -> None:
        """Pictures by name, to TensorBoard."""
        for name, figure in draw().items():
            self._open().figure(name, figure, step)
        self.flush()

    def flush(self) -> None:
        """Everything recorded so far is in the files."""
        if self._events is not None:
            self._events.flush()

    def cut_back(self, step: int, *, is_scored: bool) -> None:
        """Take away what was recorded after a checkpoint was saved, so that no curve is drawn twice.

        `is_scored`: whether its step was validated by then.
        """
        self.close()
        _cut_metrics(self.run.metrics, step, is_scored)
        tensorboard.cut_back(self.run.tensorboard, step, is_scored)

    def _open(self) -> EventWriter:
        if self._events is None:
            self._events = EventWriter(self.run.tensorboard, self.hparams)
        return self._events

    def _of_all(self) -> str:
        return f" of {self.max_steps:,}" if self.max_steps else ""

    def _time_left(self, step: int) -> str:
        if self.max_steps is None or self._first_step is None:
            return ""
        seconds = (time.perf_counter() - self._began) / (step - self._first_step + 1) * (self.max_steps - step)
        return f"  {tqdm.format_interval(seconds)} left"


class SilentMetricsLogger(MetricsLogger):
    """Of several processes that train together, all but the first."""

    def advance(self, step: int) -> None:
        pass

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        pass

    def write(self, name: str, markdown: str, step: int) -> None:
        pass

    def show(self, step: int, draw: Callable[[], Mapping[str, Figure]]) -> None:
        pass

    def cut_back(self, step: int, *, is_scored: bool) -> None:
        pass


def _cut_metrics(path: Path, step: int, is_scored: bool) -> None:
    if not path.exists():
        return
    kept: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):  # torn by a kill, or damaged
            if tensorboard.stays(json.loads(line)["step"], json.loads(line), step, is_scored):
                kept.append(line + "\n")
    with atomic_file(path) as beside:
        beside.write_text("".join(kept), encoding="utf-8")
