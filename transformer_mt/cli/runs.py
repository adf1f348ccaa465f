"""`tmt runs`: list the runs below a folder, with their status and best score."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from transformer_mt import __version__
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.system.files import format_bytes

if TYPE_CHECKING:
    from transformer_mt.flows.run_overview import RunSummary

HEADER = ("run", "status", "steps", "best", "hours", "parameters", "size", "languages", "changed")


def run(args: argparse.Namespace) -> None:
    """Run `tmt runs`."""
    from transformer_mt.flows.run_overview import list_runs

    runs = sort_runs(list_runs(args.folder), args.sort)
    if args.json:
        listed = {"tmt": __version__, "folder": str(args.folder), "runs": [*map(_to_json, runs)]}
        print(json.dumps(listed, indent=1, allow_nan=False))
    elif runs:
        print_table(HEADER, [*map(_to_row, runs)], numbers=(2, 4, 5, 6))
        for run in runs:
            if run.problem:
                line = run.problem.splitlines()[0]
                print_text(line if run.name in line else f"{run.name}: {line}")
    else:
        print_text(f"{args.folder}: has no runs")


def sort_runs(runs: list[RunSummary], by: str) -> list[RunSummary]:
    """Sort the runs by a column. Scores start with the best, and other numbers with the largest. No value comes last.

    Scores of different metrics are not compared: the metrics are in alphabetical order.
    """
    keys: dict[str, Callable[[RunSummary], Any]] = {
        "name": lambda run: run.name,
        "status": lambda run: run.status,
        "languages": lambda run: run.directions or None,
        "score": _score_key,
        "steps": lambda run: _descending(run.step),
        "hours": lambda run: _descending(run.hours),
        "parameters": lambda run: _descending(run.parameters),
        "size": lambda run: _descending(run.n_bytes),
        "changed": lambda run: _descending(run.changed),
    }
    key = keys[by]
    with_value = [run for run in runs if key(run) is not None]
    return [*sorted(with_value, key=key), *(run for run in runs if key(run) is None)]


def _score_key(run: RunSummary) -> tuple[str, float] | None:
    if run.score is None or math.isnan(run.score):
        return None
    return str(run.metric), run.score if run.metric == "loss" else -run.score


def _descending(value: float | None) -> float | None:
    return None if value is None else -value


def _to_json(run: RunSummary) -> dict[str, Any]:
    score = None if run.score is None or not math.isfinite(run.score) else run.score  # JSON has no NaN
    return {**asdict(run), "score": score, "changed": _to_datetime(run).isoformat(timespec="seconds")}


def _to_row(run: RunSummary) -> list[str]:
    from transformer_mt.runs.records import format_score

    steps = "" if run.step is None else f"{run.step:,}"
    if run.max_steps is not None:
        steps = f"{steps or 0} of {run.max_steps:,}"
    best = "" if run.score is None else f"{format_score(str(run.metric), run.score)} {run.metric}"
    return [
        run.name,
        run.status,
        steps,
        best,
        "" if run.hours is None else f"{run.hours:.2f}",
        "" if run.parameters is None else f"{run.parameters:,}",
        format_bytes(run.n_bytes),
        ", ".join(run.directions),
        f"{_to_datetime(run):%Y-%m-%d %H:%M}",
    ]


def _to_datetime(run: RunSummary) -> datetime:
    return datetime.fromtimestamp(run.changed).astimezone()
