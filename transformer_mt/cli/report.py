"""`tmt report`: one HTML page about a run, or about several."""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from pathlib import Path

from transformer_mt.cli.line_input import check_files
from transformer_mt.cli.line_output import check_output
from transformer_mt.cli.options import load_translator
from transformer_mt.errors import UserError
from transformer_mt.system.files import write_text


def run(args: argparse.Namespace) -> None:
    """Run `tmt report`, and print the path of the page."""
    if bool(args.src) != bool(args.ref):
        raise UserError("report: --src and --ref go together")
    check_files(args.src, args.ref)
    from transformer_mt.tools.analysis.report import make_report, open_runs

    runs = open_runs(args.systems, args.checkpoint or "best")
    output: Path = args.output or (args.systems[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{output}: the page is HTML; pass a name that ends in .html")
    check_output(output, args.src, args.ref)
    report = make_report(runs, partial(load_translator, args), (args.src, args.ref) if args.src else None)
    for note in report.notes:
        warnings.warn(note, stacklevel=1)
    write_text(output, report.page)
    print(output)
