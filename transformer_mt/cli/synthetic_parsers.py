"""Arguments of the commands that make training pairs from monolingual text."""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_mt.cli.arguments import add_ensemble, add_errors, add_loading, add_sampling, add_search

MIN_CHRF = 30.0


def add_backtranslate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tmt backtranslate`."""
    parser.description = (
        "Translate monolingual text in the language that a new model shall translate into. Each line becomes the "
        "target of a new pair, and its translation the source. RUN translates in the other direction than the new "
        "model. Bad translations are dropped."
    )
    _add_common(parser, "a run of the other direction than the new model")


def add_distill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tmt distill`."""
    parser.description = (
        "Translate text in the source language, such as the sources of the training pairs. Each line becomes the "
        "source of a new pair, and its translation the target, so that a new model imitates RUN. Bad translations are "
        "dropped."
    )
    _add_common(parser, "a run of the same direction as the new model")


def _add_common(parser: argparse.ArgumentParser, run_help: str) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help=run_help)
    add_loading(parser)
    add_ensemble(parser)

    add = parser.add_argument_group("input and output").add_argument
    help = "sentences in the source language of RUN, one per line (plain or .gz); repeat the option for more files"
    add("--mono", type=Path, action="append", required=True, metavar="F", help=help)
    help = (
        "new folder: train.SRC and train.TGT, report.json, and candidates.jsonl with every line and why it was dropped"
    )
    add("--output", type=Path, required=True, metavar="DIR", help=help)
    add("--resume", action="store_true", help="continue an interrupted command")
    add("--any-language", action="store_true", help="accept text that does not look like the source language of RUN")
    add_errors(add)
    add("--json", action="store_true", help="print the report as one JSON object")

    add = parser.add_argument_group("round trip").add_argument
    help = "translate the translations back with this run (greedy, best checkpoint), and compare with the line"
    add("--round-trip", type=Path, metavar="RUN2", help=help)
    help = f"drop pairs whose translation back has a lower chrF ({MIN_CHRF:g}); 0: only record it"
    add("--min-chrf", type=float, metavar="X", help=help)
    add("--round-trip-tag", metavar="TAG", help="tag for RUN2, if it was trained with tags")

    add_search(parser)
    add_sampling(parser, "draw each translation at random")
