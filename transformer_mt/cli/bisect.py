"""`tmt bisect`: find the difference between two configurations that costs the score."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_mt import __version__
from transformer_mt.cli.command import Command, option, positional
from transformer_mt.cli.options import json_flag, load_run_or_config, number, overrides_argument
from transformer_mt.cli.table import print_json, print_table, print_text

if TYPE_CHECKING:
    from transformer_mt.config.rendering import Difference
    from transformer_mt.evaluation.metrics import SystemScore
    from transformer_mt.tools.analysis.bisection import Bisection

HEADER = ("trial", "changes", "score", "to GOOD", "p", "to BAD", "p", "nearer to")


@dataclass(frozen=True, kw_only=True)
class Bisect(Command):
    """Find the difference between two configurations that costs the score.

    Short trainings with half of the differences of BAD applied to GOOD, scored on the validation set of GOOD, narrow
    them down to one culprit. A training with the culprit alone verifies it. The same command resumes. Exit status 1: it
    verified no culprit.
    """

    EXAMPLE: ClassVar[str] = "tmt bisect runs/old new.yaml --steps 1000"

    good: Path = positional("a run folder or a configuration", metavar="GOOD")
    bad: Path = positional("a run folder or a configuration", metavar="BAD")
    overrides: tuple[str, ...] = overrides_argument()
    n_steps: int | None = option(
        "steps of each training (default: a quarter of the shorter one, or twice the longer warm-up if that is more)",
        metavar="N",
        flag="--steps",
        parse=number(1),
    )
    work: Path | None = option("folder for the trainings (default: runs/bisect-GOOD-BAD)", metavar="DIR")
    json: bool = json_flag()

    def execute(self) -> None:
        """Run `tmt bisect`. The exit status is 1 if no culprit is verified."""
        from transformer_mt.flows.bisect import bisect

        good, bad = (load_run_or_config(path, self.overrides, trains_again=True)[0] for path in (self.good, self.bad))
        result = bisect(good, bad, self.work or Path("runs") / f"bisect-{good.name}-{bad.name}", self.n_steps)
        if self.json:
            print_json(_to_json(result))
        else:
            _show(result)
        if not result.is_verified:
            sys.exit(1)


def _show(result: Bisection) -> None:
    n = len(result.differences)
    differences = f"{n} difference{'' if n == 1 else 's'}"
    print(f"{differences}, {result.steps:,} steps; {result.metric} of {result.n_pairs:,} pairs")
    rows = [
        [
            Path(trial.run).name,
            str(len(trial.keys)),
            "diverged" if trial.score is None else f"{trial.score:.2f}",
            *_format_distance(trial.to_good),
            *_format_distance(trial.to_bad),
            "BAD" if trial.is_bad else "GOOD",
        ]
        for trial in result.trials
    ]
    print_table(HEADER, rows, numbers=range(1, len(HEADER) - 1))
    if result.not_searched:
        print_text(f"not searched, because they do not change these trainings: {', '.join(result.not_searched)}")
    print_text(*_conclude(result))


def _format_distance(distance: SystemScore | None) -> tuple[str, str]:
    if distance is None:
        return "", ""
    p_value = distance.p_randomisation
    return f"{distance.difference:+.2f}", "" if p_value is None else f"{p_value:.4f}"


def _conclude(result: Bisection) -> list[str]:
    if not result.is_significant:
        return [
            f"GOOD and BAD do not differ significantly in {result.metric} after {result.steps:,} steps, and there is "
            f"nothing to search; pass more steps, for example --steps {2 * result.steps}"
        ]
    culprit = [_describe(difference) for difference in result.culprit]
    if not result.is_verified:
        return [
            "no culprit was verified: several differences may act together, or the effect is too small; pass more "
            "--steps. Last candidate:",
            *culprit,
        ]
    title = "culprit" if len(culprit) == 1 else "culprit: these cannot be applied one by one"
    return [f"{title}:", *culprit]


def _describe(difference: Difference) -> str:
    from transformer_mt.config.rendering import format_value

    return f"  {difference.key}: {format_value(difference.reference)} -> {format_value(difference.other)}"


def _to_json(result: Bisection) -> dict[str, Any]:
    lists = {
        name: [{"key": each.key, "good": each.reference, "bad": each.other} for each in getattr(result, name)]
        for name in ("differences", "culprit")
    }
    return {"tmt": __version__, **asdict(result), **lists}
