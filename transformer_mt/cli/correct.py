"""`tmt correct`: fine-tune a run on corrected translations, and keep its quality on other text."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from transformer_mt.cli.command import Command, option
from transformer_mt.cli.options import json_flag, number, run_argument, tag_option
from transformer_mt.cli.table import print_json, print_text
from transformer_mt.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Correct(Command):
    """Fine-tune a run on corrected translations, mixed with its own training pairs.

    A checkpoint that loses too much BLEU on its validation pairs is refused. The result is a new run. The table has a
    column for each language, which its first line names.
    """

    EXAMPLE: ClassVar[str] = "tmt correct runs/mine --pairs post_edits.tsv"

    run: Path = run_argument()
    pairs: Path = option(
        "table of sources and corrected translations (.tsv, .csv, .jsonl or .parquet)", metavar="F", is_required=True
    )
    name: str | None = option("name of the new run (default: RUN-corrected)", metavar="NAME")
    max_steps: int = option("maximum number of steps (200)", default=200, metavar="N", flag="--steps", parse=number(2))
    max_bleu_drop: float = option(
        "BLEU that the validation pairs may lose (1.5)", default=1.5, metavar="X", parse=number(0, kind=float)
    )
    tag: str | None = tag_option()
    json: bool = json_flag()

    def execute(self) -> None:
        """Run `tmt correct`. The exit status is 1 if no checkpoint is accepted."""
        from transformer_mt.config.section import check_folder_name
        from transformer_mt.flows.correct import correct_run
        from transformer_mt.runs.folder import RunFolder

        old = RunFolder.open(self.run)
        name = self.name or f"{old.path.resolve().name}-corrected"
        try:
            check_folder_name(name)
        except ValueError as error:
            raise UserError(f"correct: --name {error}") from None
        report = correct_run(
            old, self.pairs, name, tag=self.tag, max_steps=self.max_steps, max_bleu_drop=self.max_bleu_drop
        )
        if self.json:
            print_json(asdict(report))
        else:
            (before, after), (old_bleu, new_bleu) = report.exact_matches, report.bleu
            print_text(f"corrections translated exactly: {before} of {report.n_corrections} before, {after} after")
            print_text(f"BLEU of validation pairs (greedy): {old_bleu:.2f} before, {new_bleu:.2f} after")
            if report.step:
                print_text(f"the corrected model is {report.run}")
            else:
                limit = f"--max-bleu-drop {self.max_bleu_drop:g}"
                print_text(
                    f"refused: no checkpoint has more exact translations within {limit}; "
                    f"{report.run} has the old weights"
                )
        if not report.step:
            sys.exit(1)
