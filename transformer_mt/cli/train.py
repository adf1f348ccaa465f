"""`tmt train`: train a model, or resume its training."""

from __future__ import annotations

import argparse

from transformer_mt.cli.options import load_training_config, split_config_arguments
from transformer_mt.errors import Interrupted
from transformer_mt.system.log import log, log_rank0


def run(args: argparse.Namespace) -> None:
    """Run `tmt train`."""
    config = load_training_config(args)
    if split_config_arguments(args)[0] is None:
        log_rank0(
            "no configuration given: this trains the built-in quickstart corpus; to train on your own files, write a "
            "configuration with `tmt init SRC TGT`, then `tmt train --config mine.yaml`"
        )
    from transformer_mt.flows import train

    try:
        train.train(config, checkpoint=args.checkpoint, restart=args.restart)
    except Interrupted:
        if args.restart or args.checkpoint != "last":
            log("tmt: leave out --restart and --checkpoint to resume; they would discard the saved checkpoint")
        raise
