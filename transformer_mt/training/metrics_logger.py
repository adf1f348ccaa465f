"""Logs the metrics of a training to the terminal, to metrics.jsonl and to TensorBoard."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from tensorboard.plugins.text import summary_v2 as text_summary
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import split_by_source
from transformer_mt.system.files import append_text, read_bytes, write_text
from transformer_mt.system.log import log_rank0

CHARTS = {
    "headline": ("bleu", "learning_rate", "loss", "tokens_per_second"),
    "input": ("data_wait", "padding"),
    "optimization": ("gradient_norm", "loss_scale", "skipped_steps", "split_batches"),
    "progress": ("epoch", "hours"),
    "quality": ("chrf", "chrf++", "degenerate", "nll", "ppl"),
}
"""Quantities by section of TensorBoard, which shows sections and charts in alphabetical order."""

TEXTS = "translations/"  # prefix of the tags of texts; they sort after the headline

_SECTIONS = {quantity: section for section, quantities in CHARTS.items() for quantity in quantities}
CURVES = ("train", "valid")
"""Sub-folders whose curves share the charts. Test scores have a sub-folder of their own, because a resumed run records
those of its step again. The folder itself has texts."""


def locate_chart(name: str) -> tuple[str, str]:
    """Return the sub-folder and the tag of a metric: `valid/bleu` -> `valid`, `headline/bleu`."""
    part, _, quantity = name.partition("/")
    return (part, f"{_SECTIONS.get(quantity, 'other')}/{quantity}") if part in CURVES else (part, name)


class ValidationResult(NamedTuple):
    """Scores of one validation, with text for the log."""

    scores: dict[str, float]  # loss, nll, ppl, translation metrics, degenerate output; `NAME/SOURCE` of a mixture
    samples: list[str]  # blocks of lines for the log
    markdown: dict[str, str]  # name -> text for TensorBoard
    warning: str | None  # about degenerate output


MAX_METRICS_BYTES = 1 << 30
RECENT_SECONDS = 300  # whose speed predicts the remaining time


class MetricsLogger:
    """Writes metrics to files, and shows a progress bar on a terminal, otherwise a line per log entry.

    The first entry opens the event file, so `truncate` can be called before it. `start` comes before the first step.
    """

    def __init__(self, run: RunFolder, last_step: int | None) -> None:
        self.run, self.last_step = run, last_step
        self._writers: dict[str, Any] = {}  # by sub-folder of the events
        self._purge_steps: dict[str, int] = {}
        self._bar: Any = None
        self._first_step = 0
        self._recent = deque[tuple[int, float]]()  # steps and their times, for the remaining time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the bar and the event files. The next entry opens new ones."""
        for output in (self._bar, *self._writers.values()):
            if output is not None:
                output.close()
        self._bar, self._writers = None, {}

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
            self._recent.append((step, time.perf_counter()))
        self._bar.update()

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
        self.log_scalars(step, scalars)
        for title, scores in split_by_source(result.scores).items():
            summary = "  ".join(f"{name} {value:.3f}" for name, value in scores.items())
            best = "  (best so far)" if is_best and title == "validation" else ""
            log_rank0(f"step {step:,}  {title}  {summary}{best}")
        for sample in result.samples:
            log_rank0(f"{sample}\n")
        for name, markdown in result.markdown.items():
            self.log_markdown(step, name, markdown)
        self.flush()

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars by name to metrics.jsonl and to TensorBoard."""
        for name, value in scalars.items():
            part, tag = locate_chart(name)
            self._writer(part).add_scalar(tag, value, step)
        values = {name: value if math.isfinite(value) else str(value) for name, value in scalars.items()}
        append_text(self.run.metrics, json.dumps({"step": step, **values}) + "\n")

    def log_markdown(self, step: int, name: str, markdown: str) -> None:
        """Write Markdown text to TensorBoard."""
        plugin: Any = text_summary  # `add_text` would append to the tag
        self._writer().file_writer.add_summary(plugin.text_pb(TEXTS + name, markdown), step)

    def flush(self) -> None:
        """Write buffered events to the files."""
        for writer in self._writers.values():
            writer.flush()

    def truncate(self, step: int, *, is_scored: bool) -> None:
        """Remove all entries after a checkpoint, because a resumed run records them again.

        `is_scored` is True for a checkpoint that was saved after the validation of its step. Event files are not
        changed: the new ones hide the removed entries.
        """
        self.close()
        _truncate_metrics(self.run.metrics, step, is_scored)
        self._purge_steps = {"train": step + 1, "valid": step + is_scored, "test": step, "": step + is_scored}

    def _writer(self, part: str = "") -> Any:
        """Return the writer of a sub-folder: training and validation curves have one each.

        TensorBoard hides older events of the steps from `purge_step` on, but ignores the first `purge_step` of a
        folder. So the first file has one, too: 0, which hides the events of a training that ended before a checkpoint.
        """
        if part not in self._writers:
            self.run.tensorboard.mkdir(exist_ok=True)  # fails if the run was moved, instead of making its folder again
            folder = str(self.run.tensorboard / part)
            self._writers[part] = SummaryWriter(folder, purge_step=self._purge_steps.get(part, 0))
        return self._writers[part]

    def _time_left(self, step: int) -> str:
        """Return the remaining time at the speed of the last minutes, because other programs may have changed it."""
        now = time.perf_counter()
        while len(self._recent) > 1 and self._recent[1][1] < now - RECENT_SECONDS:
            self._recent.popleft()
        first_step, first_time = self._recent[0]
        self._recent.append((step, now))
        if self.last_step is None or step <= first_step:
            return ""
        seconds = (now - first_time) / (step - first_step) * (self.last_step - step)
        return f"  {tqdm.format_interval(seconds)} left"


class SilentMetricsLogger(MetricsLogger):
    """A logger that writes no files, for ranks other than 0 and for `tmt plan`."""

    def _ignore(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing."""

    start = advance = log_training = log_scalars = log_markdown = truncate = _ignore


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of metrics.jsonl, except lines that are incomplete after a kill, damaged or of no step."""
    lines = read_bytes(path, MAX_METRICS_BYTES).split(b"\n") if path.exists() else ()
    for line in lines:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            entry: dict[str, Any] = json.loads(line.decode(errors="replace"))
            if isinstance(entry["step"], int) and 0 <= entry["step"] < 2**63:
                yield entry


def _truncate_metrics(path: Path, step: int, is_scored: bool) -> None:
    """Keep entries up to a step. Of those at the step, keep no test scores, and validations only if `is_scored`."""
    later = ("test/",) if is_scored else ("test/", "valid/")
    kept = [
        entry
        for entry in read_metrics(path)
        if entry["step"] < step or (entry["step"] == step and not any(name.startswith(later) for name in entry))
    ]
    if path.exists():
        write_text(path, "".join(json.dumps(entry) + "\n" for entry in kept))
