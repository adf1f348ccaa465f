"""`tmt distill`: make training pairs whose targets are translations by a model or an ensemble."""

from __future__ import annotations

import argparse

from transformer_mt.cli.synthetic_pairs import make_pairs


def run(args: argparse.Namespace) -> None:
    """Run `tmt distill`."""
    make_pairs(args, "distill")
