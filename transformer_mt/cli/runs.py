"""`tmt runs`: list the runs below a folder, with their status and best score."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_mt import __version__
from transformer_mt.cli.command import Command, positional
from transformer_mt.cli.options import json_flag
from transformer_mt.cli.table import print_json, print_table, print_text
from transformer_mt.system.files import format_bytes

if TYPE_CHECKING:
    from transformer_mt.flows.run_overview import RunSummary

HEADER = ("run", "status", "steps", "best", "hours", "parameters", "size", "languages", "changed")


@dataclass(frozen=True, kw_only=True)
class Runs(Command):
    """List the runs at and below a folder.

    Columns are status, steps, best validation score, hours, parameters, size, languages and last change. Only small
    files are read; checkpoints are not verified. Lines below the table say why a run failed, or what is damaged.
    """

    EXAMPLE: ClassVar[str] = "tmt runs runs/sweep"

    folder: Path = positional("default: runs", metavar="FOLDER", default=Path("runs"))
    json: bool = json_flag()

    def execute(self) -> None:
        """Run `tmt runs`."""
        from transformer_mt.flows.run_overview import list_runs

        runs = list_runs(self.folder)
        if self.json:
            print_json({"tmt": __version__, "folder": str(self.folder), "runs": [*map(_to_json, runs)]})
        elif runs:
            print_table(HEADER, [*map(_to_row, runs)], numbers=(2, 4, 5, 6))
            for run in runs:
                if run.problem:
                    line = run.problem.splitlines()[0].rstrip(";")  # the remedy follows on the next line
                    print_text(line if run.name in line else f"{run.name}: {line}")
        else:
            print_text(f"{self.folder}: has no runs")


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
