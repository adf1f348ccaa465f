"""`tmt bisect`: find the difference between two configurations that costs the score."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt import __version__
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.config import root as configuration
from transformer_mt.config.differences import Difference, format_value
from transformer_mt.config.root import Config
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformer_mt.evaluation.significance import SystemScore
    from transformer_mt.pipeline.bisection import Bisection

HEADER = ("trial", "changes", "score", "to GOOD", "p", "to BAD", "p", "nearer to")


def run(args: argparse.Namespace) -> None:
    """Run `tmt bisect`. The exit status is 1 if no culprit is found."""
    from transformer_mt.pipeline.bisection import bisect

    if args.n_steps is not None and args.n_steps < 1:
        raise UserError(f"bisect: --steps {args.n_steps}: give a number of steps from 1 on")
    good, bad = (_load(path, args.overrides) for path in (args.good, args.bad))
    found = bisect(good, bad, args.work or Path("runs") / f"bisect-{good.name}-{bad.name}", args.n_steps)
    if args.json:
        print(json.dumps(_to_json(found), ensure_ascii=False, indent=1))
    else:
        _show(found)
    if not found.is_verified:
        sys.exit(1)


def _load(path: Path, overrides: Sequence[str]) -> Config:
    if path.is_dir():
        return configuration.load_run(RunFolder.open(path), overrides)
    return configuration.load(path, overrides)


def _show(found: Bisection) -> None:
    print(f"{len(found.differences)} differences, {found.steps:,} steps; {found.metric} of {found.n_pairs:,} pairs")
    rows = [
        [
            Path(trial.run).name,
            str(len(trial.keys)),
            "diverged" if trial.score is None else f"{trial.score:.2f}",
            *_distance(trial.to_good),
            *_distance(trial.to_bad),
            "BAD" if trial.is_bad else "GOOD",
        ]
        for trial in found.trials
    ]
    print_table(HEADER, rows, numbers=range(1, len(HEADER) - 1))
    if found.not_searched:
        print_text(f"not searched, because they do not change these trainings: {', '.join(found.not_searched)}")
    print_text(*_conclusion(found))


def _distance(distance: SystemScore | None) -> tuple[str, str]:
    if distance is None:
        return "", ""
    p_value = distance.p_randomisation
    return f"{distance.difference:+.2f}", "" if p_value is None else f"{p_value:.4f}"


def _conclusion(found: Bisection) -> list[str]:
    if not found.is_significant:
        return [
            f"GOOD and BAD do not differ significantly in {found.metric} after {found.steps:,} steps, and there is "
            f"nothing to search; pass more steps, for example --steps {2 * found.steps}"
        ]
    culprit = [_describe(difference) for difference in found.culprit]
    if not found.is_verified:
        return [
            "no single difference is the culprit: several act together. With the last one that was left, GOOD is not "
            "like BAD:",
            *culprit,
        ]
    title = "culprit" if len(culprit) == 1 else "culprit: these cannot be applied one by one"
    companions = [_describe(difference) for difference in found.companions]
    return [f"{title}:", *culprit, *(["it cannot be applied without:", *companions] if companions else [])]


def _describe(found: Difference) -> str:
    return f"  {found.key}: {format_value(found.reference)} -> {format_value(found.other)}"


def _to_json(found: Bisection) -> dict[str, Any]:
    def listed(differences: Sequence[Difference]) -> list[dict[str, Any]]:
        return [{"key": one.key, "good": one.reference, "bad": one.other} for one in differences]

    lists = {name: listed(getattr(found, name)) for name in ("differences", "culprit", "companions")}
    return {"tmt": __version__, **asdict(found), **lists}
