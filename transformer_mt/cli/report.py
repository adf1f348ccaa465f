"""`tmt report`: one HTML page about a run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.cli.command import Command, group, option
from transformer_mt.cli.options import LoadingOptions, run_argument, tag_option
from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import check_files, check_output
from transformer_mt.system.files import write_text

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator


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
    src: Path | None = option("source sentences (default: test sets of the run)", metavar="F")
    ref: Path | None = option("reference translations, line by line", metavar="G")
    loading: LoadingOptions = group(LoadingOptions)
    tag: str | None = tag_option()

    def execute(self) -> None:
        """Write the page, and print its path."""
        if bool(self.src) != bool(self.ref):
            raise UserError("report: --src and --ref go together")
        check_files(self.src, self.ref)
        from transformer_mt.flows.report import make_report
        from transformer_mt.runs.folder import RunFolder

        run = RunFolder.open(self.run)
        output = self.output or self.run / "report.html"
        if output.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"{output}: the page is HTML; pass a name that ends in .html")
        check_output(output, self.src, self.ref)
        files = (self.src, self.ref) if self.src and self.ref else None
        page, notes = make_report(run, self.loading.checkpoint or "best", self._load_translator(), files)
        for note in notes:
            warnings.warn(note, stacklevel=1)
        write_text(output, page)
        print(output)

    def _load_translator(self) -> Translator:
        tag = {} if self.tag is None else {"tag": self.tag}
        from transformer_mt.flows.translation import load_translator

        return load_translator(self.run, self.loading.make_load_options(), n_best=1, **tag)
