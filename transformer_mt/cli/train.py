"""`tmt train`: train a model, or resume its training."""

from __future__ import annotations

import argparse

from transformer_mt.cli.options import load_config
from transformer_mt.errors import Interrupted
from transformer_mt.system.logging import log


def run(args: argparse.Namespace) -> None:
    """Run `tmt train`."""
    config = load_config(args)
    from transformer_mt.pipeline import train

    try:
        train.train(config, checkpoint=args.checkpoint, restart=args.restart)
    except Interrupted:
        if args.restart or args.checkpoint != "last":
            log("tmt: leave out --restart and --checkpoint to resume; they would discard the saved checkpoint")
        raise
