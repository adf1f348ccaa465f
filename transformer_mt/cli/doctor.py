"""`tmt doctor`: check the environment, and train the quickstart for some steps, for a bug report."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import groupby
from textwrap import indent
from typing import ClassVar

from transformer_mt import __version__
from transformer_mt.cli.command import Command
from transformer_mt.cli.options import json_flag
from transformer_mt.cli.table import print_json, print_text


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Check package versions, devices and the disk, train a small model, and describe the environment.

    This takes about half a minute. Exit status: 0: no problems; 1: warnings, training works; 2: errors, training
    cannot work.
    """

    EXAMPLE: ClassVar[str] = "tmt doctor > report.txt"

    json: bool = json_flag()

    def execute(self) -> None:
        """Run `tmt doctor`. The exit status is the highest severity."""
        from transformer_mt.flows import doctor

        results: list[doctor.Diagnosis] = []
        if not self.json:
            print(f"tmt {__version__}")
        for group, diagnoses in groupby(doctor.run_diagnostics(), key=lambda diagnosis: diagnosis.group):
            if not self.json:
                print(group)
            for diagnosis in diagnoses:
                results.append(diagnosis)
                if not self.json:
                    print(f"  {diagnosis.severity.name.lower():<8} {diagnosis.name:<13} {diagnosis.value}", flush=True)
        severity = max(result.severity for result in results)
        environment = doctor.describe_environment()
        if self.json:
            checks = [{**result._asdict(), "severity": result.severity.name.lower()} for result in results]
            report = {"tmt": __version__, "severity": severity.name.lower(), "checks": checks}
            print_json({**report, "environment": environment})
        else:
            names = ", ".join(result.name for result in results if result.severity == severity)
            meanings = (
                "no problems found",
                f"works, with warnings; see: {names}",
                f"training cannot work; see: {names}",
            )
            print_text(f"environment\n{indent(environment, '  ')}", meanings[severity])
        sys.exit(severity)
