"""`tmt report`: one HTML page about a run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from transformer_mt.cli.command import Command, group, option
from transformer_mt.cli.options import LoadingOptions, run_argument
from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import check_output
from transformer_mt.system.files import write_text


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Write one HTML page about a run.

    The page has scores with 95 % intervals, example translations, curves, data, settings, cost, and how to reproduce
    the run. It needs no network and no other file. The test sets are translated for it, or the validation set if there
    are none.
    """

    EXAMPLE: ClassVar[str] = "tmt report runs/mine"

    run: Path = run_argument()
    output: Path | None = option("the page (default: report.html in the run folder)", metavar="F.html")
    loading: LoadingOptions = group(LoadingOptions)

    def execute(self) -> None:
        """Write the page, and print its path."""
        from transformer_mt.flows.report import make_report
        from transformer_mt.flows.translation import load_translator
        from transformer_mt.runs.folder import RunFolder

        run = RunFolder.open(self.run)
        output = self.output or self.run / "report.html"
        if output.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"{output}: the page is HTML; pass a name that ends in .html")
        check_output(output)
        translator = load_translator(self.run, self.loading.make_load_options(), n_best=1)
        page, notes = make_report(run, self.loading.checkpoint, translator)
        for note in notes:
            warnings.warn(note, stacklevel=1)
        write_text(output, page)
        print(output)
