"""The options of the commands that export, average and show models, and of those about the program."""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_mt.cli.arguments import add_config_file, add_device, add_json, add_overrides, add_run


def add_export(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt export`."""
    parser.description = (
        "ctranslate2: write a folder for CTranslate2 (pip install ctranslate2), with a script translate.py that needs "
        "only the packages ctranslate2 and tokenizers. Both engines translate up to 100 validation sentences; "
        "export.json contains the comparison. weights: write a folder that replaces a run, without the training state."
    )
    add = parser.add_argument
    add_run(parser)
    add("--to", required=True, choices=("ctranslate2", "weights"), help="target format")
    add("--output", required=True, type=Path, metavar="DIR", help="a new folder")
    add("--checkpoint", default="best", metavar="best|last|STEP", help="checkpoint to export (default: best)")
    help = "ctranslate2: float32 (default), int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16"
    add("--quantization", metavar="Q", help=help)
    help = "ctranslate2: compare the engines on the lines of this file (default: validation sentences)"
    add("--src", type=Path, metavar="F", help=help)


def add_average(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt average`."""
    parser.description = (
        "Write the mean of several checkpoints to a new folder, which other commands read like a run. RUN itself does "
        "not change, and its training can continue. The mean is validated like the checkpoints of a training."
    )
    add = parser.add_argument
    add_run(parser)
    add("steps", nargs="*", default=[], metavar="STEP", help="steps of at least two checkpoints")
    add("--last", type=int, metavar="N", help="instead of steps: the N newest checkpoints (keep.last limits N)")
    add("--best", type=int, metavar="N", help="instead of steps: the N best checkpoints (keep.best limits N)")
    help = "a new folder (default: for example RUN-average-last-N, in the folder of RUN)"
    add("--output", type=Path, metavar="DIR", help=help)
    add_device(parser, default="auto")


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt plot`."""
    help = (
        "positions: the position table; schedule: the learning rate per step; attention: weights by layer and head for "
        "one sentence; lengths: training sentences by tokens"
    )
    add = parser.add_argument
    add("what", metavar="WHAT", choices=("positions", "schedule", "attention", "lengths"), help=help)
    add("run_or_config", type=Path, metavar="RUN-or-X.yaml", help="a run folder, or a configuration")
    add_overrides(parser)
    help = ".png, .svg or .pdf (default: plots/WHAT.png in the run, or NAME-WHAT.png in the current folder)"
    add("--output", type=Path, metavar="F", help=help)
    add("--text", help="attention: a sentence to translate (default: the first validation sentence)")
    add("--tag", metavar="TAG", help="attention: tag before the sentence, for a model that was trained with tags")
    help = "attention: cross (default), or the self-attention of the encoder or the decoder"
    add("--kind", choices=("cross", "encoder", "decoder"), default="cross", help=help)
    add("--layer", type=int, metavar="N", help="attention: only this layer, counted from 1")
    add("--head", type=int, metavar="N", help="attention: only this head, counted from 1")
    help = "checkpoint that is drawn, for attention and learned positions of a run (default: best)"
    add("--checkpoint", metavar="best|last|STEP", help=help)


def add_tokenize(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt tokenize`."""
    add = parser.add_argument
    help = "a run folder; or a configuration, whose tokenizers are trained first"
    add("run_or_config", type=Path, metavar="RUN-or-X.yaml", help=help)
    help = "default: --input; else standard input for a run, and statistics of the validation pairs for a configuration"
    add("texts", nargs="*", default=[], metavar="text or section.key=value", help=help)
    add("--input", type=Path, metavar="F", help="print statistics of the lines of a file (plain or .gz)")
    add("--side", choices=("src", "tgt"), help="language (default: src; for validation pairs, both)")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt config`."""
    add_config_file(parser)
    parser.add_argument("--schema", action="store_true", help="print the JSON schema, for editors")


def add_board(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt board`."""
    add = parser.add_argument
    add("runs", type=Path, nargs="*", metavar="RUN", help="run folders to show (default: all in --runs-dir)")
    add("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="folder that holds the runs (default: runs)")
    add("--port", type=int, default=6006, metavar="N", help="port on this machine (default: 6006; 0: any free one)")


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt completion`."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that you use")


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt doctor`."""
    parser.description = (
        "Check package versions, devices, torch features and the disk, and train a tiny model. This takes up to a "
        "minute. Exit status: 0: no problems; 1: warnings, training works; 2: errors, training cannot work."
    )
    add_json(parser)
