"""`tmt backtranslate`: make training pairs whose sources are translations of monolingual text."""

from __future__ import annotations

import argparse

from transformer_mt.cli.synthetic_pairs import make_pairs


def run(args: argparse.Namespace) -> None:
    """Run `tmt backtranslate`."""
    make_pairs(args, "backtranslate")
