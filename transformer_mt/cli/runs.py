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
    from transformer_mt.pipeline.run_list import RunSummary

HEADER = ("run", "status", "steps", "best", "hours", "parameters", "size", "languages", "changed")


def run(args: argparse.Namespace) -> None:
    """Run `tmt runs`."""
    from transformer_mt.pipeline.run_list import list_runs

    found = sort_runs(list_runs(args.folder), args.sort)
    if args.json:
        runs = [{**asdict(one), "changed": _time(one).isoformat(timespec="seconds")} for one in found]
        print(json.dumps({"tmt": __version__, "folder": str(args.folder), "runs": runs}, indent=1))
    elif found:
        print_table(HEADER, [_row(one) for one in found], numbers=(2, 4, 5, 6))
        for one in found:
            if one.problem:
                line = one.problem.splitlines()[0]
                print_text(line if one.name in line else f"{one.name}: {line}")
    else:
        print_text(f"{args.folder}: has no runs")


def sort_runs(runs: list[RunSummary], by: str) -> list[RunSummary]:
    """Sort the runs by a column. Scores start with the best, and other numbers with the largest. No value comes last.

    Scores of different metrics are not compared: the metrics are in alphabetical order.
    """
    keys: dict[str, Callable[[RunSummary], Any]] = {
        "name": lambda one: one.name,
        "status": lambda one: one.status,
        "languages": lambda one: one.directions or None,
        "score": _score_key,
        "steps": lambda one: _descending(one.step),
        "hours": lambda one: _descending(one.hours),
        "parameters": lambda one: _descending(one.parameters),
        "size": lambda one: _descending(one.n_bytes),
        "changed": lambda one: _descending(one.changed),
    }
    key = keys[by]
    with_value = [one for one in runs if key(one) is not None]
    return [*sorted(with_value, key=key), *(one for one in runs if key(one) is None)]


def _score_key(one: RunSummary) -> tuple[str, float] | None:
    if one.score is None or math.isnan(one.score):
        return None
    return str(one.metric), one.score if one.metric == "loss" else -one.score


def _descending(value: float | None) -> float | None:
    return None if value is None else -value


def _row(one: RunSummary) -> list[str]:
    steps = "" if one.step is None else f"{one.step:,}"
    if one.max_steps is not None:
        steps = f"{steps or 0} of {one.max_steps:,}"
    best = "" if one.score is None else f"{one.score:.{2 if one.metric in ('bleu', 'chrf') else 4}f} {one.metric}"
    return [
        one.name,
        one.status,
        steps,
        best,
        "" if one.hours is None else f"{one.hours:.2f}",
        "" if one.parameters is None else f"{one.parameters:,}",
        format_bytes(one.n_bytes),
        ", ".join(one.directions),
        f"{_time(one):%Y-%m-%d %H:%M}",
    ]


def _time(one: RunSummary) -> datetime:
    return datetime.fromtimestamp(one.changed).astimezone()
