"""`tmt report`: one HTML page about a run, or about several."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.cli.command import Command, group, option, positional
from transformer_mt.cli.options import LoadingOptions, tag_option
from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import check_files, check_output
from transformer_mt.system.files import write_text

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Write one HTML page about a run, or compare several on one page.

    The page has scores with 95 % intervals, example translations, scores by sentence length, attention, curves, data,
    settings, cost, and how to reproduce the run. It needs no network and no other file. The test sets are translated
    for it, or the validation set if there are none. Several runs are compared with significance tests.
    """

    EXAMPLE: ClassVar[str] = "tmt report runs/mine"

    systems: tuple[Path, ...] = positional("run folders, of the same languages", metavar="RUN")
    output: Path | None = option(
        "the page (default: report.html in the run folder, or in the current folder for several runs)", metavar="F.html"
    )
    src: Path | None = option("source sentences (default: test sets of the runs)", metavar="F")
    ref: Path | None = option("reference translations, line by line", metavar="G")
    loading: LoadingOptions = group(LoadingOptions)
    tag: str | None = tag_option()

    def execute(self) -> None:
        """Write the page, and print its path."""
        if bool(self.src) != bool(self.ref):
            raise UserError("report: --src and --ref go together")
        check_files(self.src, self.ref)
        from transformer_mt.flows.report import make_report, open_runs

        runs = open_runs(self.systems, self.loading.checkpoint or "best")
        output = self.output or (self.systems[0] / "report.html" if len(runs) == 1 else Path("report.html"))
        if output.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"{output}: the page is HTML; pass a name that ends in .html")
        check_output(output, self.src, self.ref)
        page, notes = make_report(runs, self._load_translator, (self.src, self.ref) if self.src and self.ref else None)
        for note in notes:
            warnings.warn(note, stacklevel=1)
        write_text(output, page)
        print(output)

    def _load_translator(self, run: Path) -> Translator:
        tag = {} if self.tag is None else {"tag": self.tag}
        from transformer_mt.decoding.decoding_config import FORCE_TORCH
        from transformer_mt.flows.translation import load_translator

        return load_translator(run, self.loading.make_load_options(), n_best=1, **FORCE_TORCH, **tag)
