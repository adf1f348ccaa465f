"""`tmt check`: find problems in the training, validation and test pairs, or pair shifted lines again."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_mt.cli.command import Command, option, positional
from transformer_mt.cli.options import json_flag, number, overrides_argument
from transformer_mt.cli.table import print_json, print_table, print_text
from transformer_mt.system.log import Severity

if TYPE_CHECKING:
    from transformer_mt.flows.configuration import Config
    from transformer_mt.tools.quality.checks import CorpusReport, Finding

MAX_TEXT = 100  # characters of a sentence that an example shows
CAUTIONS = {
    "unrelated": "drops free translations too; tmt check --json lists up to 100 examples",
    "html": "drops placeholders such as <name> too",
}
"""A caution about the filter of a finding, by the name of the finding."""


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """Check the unfiltered training pairs, their overlap with the validation set and the test sets, and all alignments.

    The command prints each problem with its count, up to three examples with file and line, and the filter of
    data.filters that removes it, or advice. Exit status: 0, or 1 with warnings, 2 with errors.
    """

    EXAMPLE: ClassVar[str] = "tmt check mine.yaml --workers 4"

    run_or_config: Path = positional("a configuration, or the run that was trained with it", metavar="X.yaml|RUN")
    overrides: tuple[str, ...] = overrides_argument()
    json: bool = json_flag()
    write: Path | None = option(
        "instead of a check, pair shifted lines again; the new folder gets the text, a list of changes, and a "
        "configuration with filters for bad pairs",
        metavar="FOLDER",
        is_exclusive=True,
    )
    workers: int = option("processes (default: 1)", metavar="N", default=1, parse=number(1), is_exclusive=True)

    def execute(self) -> None:
        """Check or write a copy. The exit status is the highest severity, or 0 without a check."""
        from transformer_mt.flows.configuration import load_run_or_file

        config, _ = load_run_or_file(self.run_or_config, self.overrides)
        if self.write is not None:
            write_repaired(self, self.write, config)
            return
        from transformer_mt.data.stages import LocalRunner
        from transformer_mt.flows.check import check_corpus

        report = check_corpus(config, LocalRunner(self.workers))
        if self.json:
            print_json(_to_json(report))
        else:
            show(report)
            _show_verdict(config, report, self)
        sys.exit(report.severity)


def write_repaired(args: Check, folder: Path, config: Config) -> None:
    """Pair shifted lines of the training corpus again, and print the counts and the next command."""
    from transformer_mt.flows.check import repair_corpus

    config_path, sources = repair_corpus(config, folder)
    if args.json:
        print_json({"config_path": str(config_path), "sources": {name: asdict(each) for name, each in sources.items()}})
        return
    rows = [(name, *(f"{count:,}" for count in asdict(each).values())) for name, each in sources.items()]
    head = ("source", "source lines", "target lines", "pairs", "cut lines", "shifted pairs")
    print_table(head, rows, numbers=range(1, len(head)))
    print_text(f"\nlook at {folder}/changes.tsv; next: tmt train --config {quote(str(config_path))}")


def show(report: CorpusReport) -> None:
    """Print the findings, then the remedy and examples of each."""
    from transformer_mt.tools.quality.checks import LABELS

    sizes = ", ".join(f"{count:,} in {name}" for name, count in report.sizes.items())
    print_text(f"{report.name}: sentence pairs: {sizes}" if sizes else report.name)
    if not report.findings:
        print_text("no findings")
        return
    rows = [
        (
            LABELS[finding.severity],
            f"{finding.group}: {finding.name}",
            f"{finding.count:,}",
            f"{finding.share:.2%}",
            finding.message,
        )
        for finding in report.findings
    ]
    print_table(("severity", "finding", "count", "share", "description"), rows, numbers=(2, 3))
    for finding in report.findings:
        _show_details(finding)


def _show_verdict(config: Config, report: CorpusReport, args: Check) -> None:
    """Print what the findings mean, and the commands that continue."""
    from transformer_mt.flows.check import is_repairable

    given = " ".join(map(quote, (str(args.run_or_config), *args.overrides)))
    commands: list[tuple[str, str]] = []
    if is_repairable(config, report):
        commands.append((f"  tmt check {given} --write FOLDER", "# pair lines again, and add filters"))
    if report.severity < Severity.ERROR and not args.run_or_config.is_dir():
        commands.append((f"  tmt plan {given}", "# hours and memory"))
    print_text(f"\nverdict: {report.verdict}{'; next:' if commands else ''}")
    if commands:
        print_table((), commands)


def _show_details(finding: Finding) -> None:
    from transformer_mt.data.corpus import choose_evenly

    remedy = "; ".join(filter(None, (finding.remedy, CAUTIONS.get(finding.name))))
    if remedy or finding.examples:
        print_text(f"\n{finding.group}: {finding.name}", *([f"  remedy: {remedy}"] if remedy else []))
    for example in choose_evenly(finding.examples):
        print_text(f"  {example.location}  {example.reason}".rstrip())
        for text in (example.src, example.tgt):
            print_text(f"    {_quote(text)}")


def _quote(text: str) -> str:
    """Return a text in quotation marks, cut after a word if it is long."""
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT].rpartition(' ')[0] or text[:MAX_TEXT]}…"
    return json.dumps(text, ensure_ascii=False)


def _to_json(report: CorpusReport) -> dict[str, Any]:
    from transformer_mt.tools.quality.checks import LABELS

    findings: list[dict[str, Any]] = []
    for finding in report.findings:
        examples = [example._asdict() for example in finding.examples]
        labels = {"severity": LABELS[finding.severity], "share": finding.share, "examples": examples}
        findings.append({**asdict(finding), **labels})
    return {**asdict(report), "severity": LABELS[report.severity], "findings": findings}
