"""`tmt init`: write a configuration for a corpus, with the reasons."""

from __future__ import annotations

import argparse
import sys
from shlex import quote

from transformer_mt.cli.table import print_table, print_text
from transformer_mt.errors import UserError
from transformer_mt.flows.init import render_value, write_initial_config
from transformer_mt.system.log import log


def run(args: argparse.Namespace) -> None:
    """Run `tmt init`."""
    files = [args.src] if args.tgt is None else [args.src, args.tgt]
    if args.columns and args.tgt is not None:
        raise UserError("--columns: belongs to a table, not to two text files; leave it out")
    config = write_initial_config(
        files,
        args.out,
        force=args.force,
        src_lang=args.src_lang,
        tgt_lang=args.tgt_lang,
        columns=args.columns,
        validation=args.validation,
        test=args.test,
    )
    print_text(*config.describe_corpus(), "")
    rows = [
        (f"{setting.section}.{setting.key}", render_value(setting.value), setting.reason) for setting in config.settings
    ]
    print_table(("setting", "value", "why"), rows)
    for line in ("", *config.describe_evidence()):
        print_text(line)
    sys.stdout.flush()
    for warning in config.warnings:
        log(f"tmt: warning: {warning}")
    out = quote(str(args.out))
    print_text(f"{args.out} is written; next:")
    commands = [
        (f"  tmt check {out}", "# misaligned lines, duplicates, damaged text"),
        (f"  tmt plan {out}", "# hours, memory and disk"),
        (f"  tmt train --config {out}", "# train"),
    ]
    print_table((), commands)
