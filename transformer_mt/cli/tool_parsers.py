"""The options of the commands that export, average and show models, and of those about the program."""

from __future__ import annotations

import argparse

from transformer_mt.cli.arguments import add_json


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt doctor`."""
    parser.description = (
        "Check package versions, devices, torch features and the disk, and train a tiny model. This takes up to a "
        "minute. Exit status: 0: no problems; 1: warnings, training works; 2: errors, training cannot work."
    )
    add_json(parser)
