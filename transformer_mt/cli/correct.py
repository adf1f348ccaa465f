"""`tmt correct`: fine-tune a run on corrected translations, and keep its quality on other text."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from transformer_mt.cli.table import print_text
from transformer_mt.config.section import check_folder_name
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder


def run(args: argparse.Namespace) -> None:
    """Run `tmt correct`. The exit status is 1 if no checkpoint is accepted."""
    from transformer_mt.tools.synthesis.correction import correct_run

    if args.max_steps < 2 or not args.max_bleu_drop >= 0:  # nan too
        raise UserError("correct: --steps must be 2 or more, and --max-bleu-drop 0 or more")
    old = RunFolder.open(args.run)
    name = args.name or f"{old.path.resolve().name}-corrected"
    try:
        check_folder_name(name)
    except ValueError as error:
        raise UserError(f"correct: --name {error}") from None
    report = correct_run(
        old, args.pairs, name, tag=args.tag, max_steps=args.max_steps, max_bleu_drop=args.max_bleu_drop
    )
    if args.json:
        print(json.dumps(asdict(report), indent=1))
    else:
        (before, after), (old_bleu, new_bleu) = report.exact_matches, report.bleu
        print_text(f"corrections translated exactly: {before} of {report.n_corrections} before, {after} after")
        print_text(f"BLEU of validation pairs (greedy): {old_bleu:.2f} before, {new_bleu:.2f} after")
        if report.step:
            print_text(f"the corrected model is {report.run}; next: tmt translate {report.run}")
        else:
            limit = f"--max-bleu-drop {args.max_bleu_drop:g}"
            print_text(
                f"refused: no checkpoint has more exact translations within {limit}; {report.run} has the old weights"
            )
    if not report.step:
        sys.exit(1)
