"""`tmt doctor`: check the environment, and train a tiny model, for a bug report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from transformer_mt import __version__
from transformer_mt.system.diagnostics import (
    Check,
    check_devices,
    check_disk,
    check_packages,
    check_torch_features,
    run_check,
)
from transformer_mt.system.severity import Severity

SELF_TEST_SECONDS = 50.0


def run(args: argparse.Namespace) -> None:
    """Run `tmt doctor`. The exit status is the highest severity."""
    results: list[Check] = []
    if not args.json:
        print(f"tmt {__version__}")
    for group, checks in groupby(run_checks(), key=lambda check: check.group):
        if not args.json:
            print(group)
        for check in checks:
            results.append(check)
            if not args.json:
                print(f"  {check.severity.name.lower():<8} {check.name:<13} {check.value}", flush=True)
    severity = max(check.severity for check in results)
    if args.json:
        checks = [{**check._asdict(), "severity": check.severity.name.lower()} for check in results]
        print(json.dumps({"tmt": __version__, "severity": severity.name.lower(), "checks": checks}, indent=1))
    else:
        print(describe_result(results))
    sys.exit(severity)


def run_checks() -> Iterator[Check]:
    """Run all checks, or only that of the packages if one is missing, because the others need them."""
    severities: list[Severity] = []
    for check in check_packages():
        severities.append(check.severity)
        yield check
    if max(severities) == Severity.ERROR:
        yield Check("training", "self-test", Severity.ERROR, "not run, because packages are missing")
        return
    from transformer_mt.config.root import Config
    from transformer_mt.runs.metadata import read_git_commit
    from transformer_mt.system.device import configure_process, resolve_machine

    if commit := read_git_commit():
        yield Check("program", "commit", Severity.OK, commit)
    machine = resolve_machine("auto", "auto", "auto")
    configure_process(machine)
    yield from check_devices(machine)
    yield from check_disk(Path(Config.model_fields["runs_dir"].default))
    yield from check_torch_features()

    def train() -> str | tuple[Severity, str]:
        from transformer_mt.pipeline.self_test import learn_to_reverse

        result = learn_to_reverse(machine, SELF_TEST_SECONDS)
        value = (
            f"{result.accuracy:.0%} of new digit sequences reversed after {result.steps:,} steps "
            f"(loss {result.loss:.3f}, {result.seconds:.1f} s)"
        )
        if result.is_learnt:
            return f"a tiny model learns: {value}"
        if result.beats_guessing:
            return (
                Severity.WARNING,
                f"a tiny model learns, but needs more than {SELF_TEST_SECONDS:.0f} s: {value}",
            )
        return Severity.ERROR, f"a tiny model does not learn: {value}"

    yield run_check("training", "self-test", train, Severity.ERROR)


def describe_result(results: list[Check]) -> str:
    """Return the last line of the report."""
    names = {level: ", ".join(check.name for check in results if check.severity == level) for level in Severity}
    if names[Severity.ERROR]:
        return f"training cannot work here; see: {names[Severity.ERROR]}"
    return f"works, with warnings; see: {names[Severity.WARNING]}" if names[Severity.WARNING] else "no problems found"
