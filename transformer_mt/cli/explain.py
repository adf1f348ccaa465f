"""`tmt explain`: show how a sentence is translated, as text, JSON or an HTML page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt import __version__
from transformer_mt.cli.command import Command, group, option, positional
from transformer_mt.cli.options import (
    LoadingOptions,
    SearchOptions,
    collect_overrides,
    json_flag,
    run_argument,
)
from transformer_mt.cli.table import print_json, print_table, print_text
from transformer_mt.flows.line_io import check_output, decode_argument
from transformer_mt.system.files import write_text
from transformer_mt.system.log import log

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.analysis.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class Explain(Command):
    """Translate one sentence by beam search, and show how.

    The command prints probabilities, alternatives and entropy of each piece, word alignment, attention, and the effect
    of each source word. The model runs once more for each source word that is left out.
    """

    EXAMPLE: ClassVar[str] = 'tmt explain runs/mine "A dog is running." --html dog.html'

    run: Path = run_argument()
    text: str = positional("one sentence", metavar="TEXT")
    json: bool = json_flag()
    html: Path | None = option("write one HTML page without external files, instead of text", metavar="F")
    loading: LoadingOptions = group(LoadingOptions)
    search: SearchOptions = group(SearchOptions)

    def execute(self) -> None:
        """Run `tmt explain`."""
        text = decode_argument(self.text)
        check_output(self.html, option="--html")
        from transformer_mt.decoding.decoding_config import FORCE_TORCH
        from transformer_mt.flows.translation import load_translator
        from transformer_mt.tools.analysis.explanation import explain
        from transformer_mt.tools.analysis.explanation_page import find_likely_reasons

        overrides = {**collect_overrides(self.search, n_best=1), "sample": False}  # sampling has no beams
        options = self.loading.make_load_options()
        translator = load_translator(self.run, options, **{**overrides, **FORCE_TORCH})
        explanation = explain(translator, text)
        reasons = find_likely_reasons(translator, explanation)
        if self.json:
            header = {"tmt": __version__, **_identity(translator), "decoding": translator.config.output_options()}
            print_json({**header, **asdict(explanation), "likely_reasons": reasons})
        elif self.html is None:
            _print(explanation, reasons)
        sys.stdout.flush()
        if self.html is not None:
            from transformer_mt.tools.analysis.explanation_page import render_html

            subtitle = ", ".join(f"{name} {value}" for name, value in _identity(translator).items())
            write_text(self.html, render_html(explanation, reasons, f"{subtitle}, {translator.config.method}"))
            log(f"{self.html} is written")


def _identity(translator: Translator) -> dict[str, object]:
    (run,) = translator.runs
    return {"run": str(run.folder.path), "step": run.step}


def _print(explanation: Explanation, reasons: Sequence[str]) -> None:
    from transformer_mt.tools.analysis.explanation_page import NO_REASON, list_facts, make_tables

    print_table((), [*list_facts(explanation)])
    print_text("", "likely reasons, if the translation is bad", *(f"- {reason}" for reason in reasons or [NO_REASON]))
    for table in make_tables(explanation):
        print_text("", table.title)
        print_table(table.header, table.rows, numbers=table.numbers)
