"""Curves of runs for `tmt report`, from metrics.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from transformer_mt.pages.charts import Chart, draw_lines
from transformer_mt.pipeline.report_facts import ReportedRun, list_values

T = TypeVar("T")

MAX_POINTS = 200  # of a line, and rows of a table
LOSSES = {"train/loss": "training", "valid/loss": "validation"}
CURVES = {
    "train/loss": "Training loss by step",
    "valid/loss": "Validation loss by step",
    "valid/bleu": "BLEU of the validation set by step (greedy)",
    "train/learning_rate": "Learning rate by step",
    "train/tokens_per_second": "Target tokens per second by step",
}
VALIDATION = {"loss": "loss", "ppl": "perplexity", "bleu": "BLEU", "chrf": "chrF"}


class ValidationRow(NamedTuple):
    """The scores of one validation."""

    step: int
    scores: list[str]


def draw_curves(runs: Sequence[ReportedRun]) -> list[Chart]:
    """Draw each curve that a run has. One run has both losses in one chart; several runs share the charts."""
    charts: list[Chart] = []
    curves = dict(CURVES)
    if len(runs) == 1:
        losses = {title: _thin(list_values(runs[0].metrics, name)) for name, title in LOSSES.items()}
        if any(losses.values()):
            charts.append(draw_lines("Loss by step", losses))
        curves = {name: title for name, title in CURVES.items() if name not in LOSSES}
    for name, title in curves.items():
        series = {run.name: _thin(list_values(run.metrics, name)) for run in runs}
        if any(series.values()):
            charts.append(draw_lines(title, series))
    return charts


def list_validations(run: ReportedRun) -> list[ValidationRow]:
    """Return the scores of each validation, or of some of many. They are in the order of `VALIDATION`."""
    values = {name: dict(list_values(run.metrics, f"valid/{name}")) for name in VALIDATION}
    steps = _thin(sorted({step for by_step in values.values() for step in by_step}))
    rows = [[f"{by_step[step]:.4g}" if step in by_step else "" for by_step in values.values()] for step in steps]
    return [ValidationRow(*row) for row in zip(steps, rows, strict=True)]


def _thin(items: list[T]) -> list[T]:
    """Return at most `MAX_POINTS` items, spread evenly, with the first and the last one."""
    if len(items) <= MAX_POINTS:
        return items
    return [items[i * (len(items) - 1) // (MAX_POINTS - 1)] for i in range(MAX_POINTS)]
