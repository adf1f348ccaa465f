"""The argument parser: every command and its options, with the help that `tmt COMMAND --help` prints."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_mt import __version__
from transformer_mt.cli.serving_parsers import add_serve
from transformer_mt.cli.suggesting_parser import SuggestingParser
from transformer_mt.cli.synthetic_parsers import add_backtranslate, add_distill
from transformer_mt.cli.tool_parsers import (
    add_average,
    add_board,
    add_completion,
    add_config,
    add_doctor,
    add_export,
    add_plot,
    add_tokenize,
)
from transformer_mt.cli.training_parsers import (
    add_bisect,
    add_check,
    add_correct,
    add_init,
    add_plan,
    add_prepare,
    add_runs,
    add_train,
)
from transformer_mt.cli.translation_parsers import (
    add_calibrate,
    add_compare,
    add_evaluate,
    add_explain,
    add_report,
    add_score,
    add_translate,
)

FORMER_COMMANDS = {"repair": "tmt check X.yaml --write FOLDER"}
"""Commands of earlier versions, and what replaces them."""
EXTRA_ARGUMENTS = {"overrides": r"(?!-).*=.*", "steps": r"\d+", "texts": r"(?!--?[A-Za-z]).*", "systems": r"(?!-).*"}
"""Positional arguments that may also follow options, and the pattern that each value must match."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. Positional arguments may follow options, which argparse alone does not support."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may follow
        from transformer_mt.cli.completion import complete

        complete(parser)
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(2, "\ntmt: error: the following arguments are required: COMMAND\n")
    if arguments[0] in FORMER_COMMANDS:
        parser.exit(2, f"tmt: error: tmt {arguments[0]} is now `{FORMER_COMMANDS[arguments[0]]}`\n")
    parser.check_first(arguments[0], [command.name for command in COMMANDS])
    args, rest = parser.parse_known_args(arguments)
    end = rest.index("--") if "--" in rest else len(rest)
    rest, literal = rest[:end], rest[end + 1 :]  # an argument after "--" is never an option
    for name, pattern in EXTRA_ARGUMENTS.items():
        if hasattr(args, name) and all(re.fullmatch(pattern, argument, re.DOTALL) for argument in rest):
            extra = [*rest, *literal]
            setattr(args, name, [*getattr(args, name), *(map(Path, extra) if name == "systems" else extra)])
            return args
    if rest or literal:
        args.refuse_arguments([*rest, *literal], arguments, has_overrides=hasattr(args, "overrides"))
    return args


def make_parser() -> SuggestingParser:
    """Make the parser. It stores the command's name as `command`, and how to refuse arguments as `refuse_arguments`."""
    parser = SuggestingParser(
        prog="tmt",
        description="Train a Transformer for machine translation from scratch, from one YAML file.",
        epilog="tmt board shows training curves. tmt config prints every key.",
    )
    parser.add_argument("--version", action="version", version=f"tmt {__version__}")
    help = "show the traceback of every error; also after the command"
    parser.add_argument("--debug", action="store_true", help=help)  # for the help; `main` has removed it
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    for name, add_options, summary, example in COMMANDS:
        description = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, help=summary, description=description, epilog=f"Example: {example}")
        command.set_defaults(refuse_arguments=command.refuse_arguments)
        add_options(command)
    return parser


class Command(NamedTuple):
    """A command with its options, a line for `tmt --help`, and an example."""

    name: str
    add_options: Callable[[argparse.ArgumentParser], None]
    summary: str
    example: str


COMMANDS = (
    Command(
        "init",
        add_init,
        "write a commented configuration for your own sentence pairs",
        "tmt init train.en train.de --out mine.yaml",
    ),
    Command(
        "check",
        add_check,
        "find problems in a corpus: misaligned lines, other languages, duplicates, overlap with the test sets",
        "tmt check mine.yaml --html report.html",
    ),
    Command(
        "prepare",
        add_prepare,
        "read, filter and encode the data of a training before it starts, on several processes",
        "tmt prepare mine.yaml --workers 8",
    ),
    Command(
        "plan",
        add_plan,
        "measure a few steps, and predict the time, memory and disk of a training",
        "tmt plan mine.yaml batches.tokens=2048",
    ),
    Command(
        "train",
        add_train,
        "train a model; the same command resumes an interrupted training",
        "tmt train --config mine.yaml model.d_model=512. "
        "Several processes: torchrun --nproc-per-node N -m transformer_mt train ... batches.accumulate=N",
    ),
    Command(
        "correct",
        add_correct,
        "fine-tune a run on corrected translations, and keep its quality on other text",
        "tmt correct runs/mine --pairs post_edits.tsv",
    ),
    Command(
        "translate",
        add_translate,
        "translate text from arguments, a file, standard input or a prompt",
        "tmt translate runs/mine --markup auto --glossary terms.tsv --input page.html --output page.de.html",
    ),
    Command(
        "explain",
        add_explain,
        "show how a sentence is translated: alternatives, attention, search, effect of each source word",
        'tmt explain runs/mine "A dog is running." --html dog.html',
    ),
    Command(
        "calibrate",
        add_calibrate,
        "fit the confidences of translate --confidence to validation pairs",
        "tmt calibrate runs/mine",
    ),
    Command(
        "serve",
        add_serve,
        "translate over HTTP: a web page, and an API like that of LibreTranslate",
        "tmt serve runs/mine --port 8080",
    ),
    Command(
        "backtranslate",
        add_backtranslate,
        "make training pairs whose sources are translations of monolingual text (back-translation)",
        "tmt backtranslate runs/de-en --mono news.de --output back --sample --top-k 10",
    ),
    Command(
        "distill",
        add_distill,
        "make training pairs whose targets are translations by a model or an ensemble (distillation)",
        "tmt distill runs/seed1 --ensemble runs/seed2 --mono train.en --output taught",
    ),
    Command(
        "score",
        add_score,
        "compute the log-probability of given translations",
        "tmt score runs/mine --src pairs.en --tgt pairs.de > scores",
    ),
    Command(
        "evaluate",
        add_evaluate,
        "compute BLEU, chrF, chrF++ and TER of a run or of a file of translations",
        "tmt evaluate runs/mine --src test.en --ref test.de",
    ),
    Command(
        "compare",
        add_compare,
        "compare runs or files of translations, with significance tests",
        "tmt compare runs/a runs/b --src test.en --ref test.de",
    ),
    Command(
        "bisect",
        add_bisect,
        "find the change between two configurations that costs the score, by short trainings",
        "tmt bisect runs/old new.yaml --steps 1000",
    ),
    Command(
        "report",
        add_report,
        "write one HTML page about a run, or compare several on one page",
        "tmt report runs/mine",
    ),
    Command(
        "export",
        add_export,
        "export the model of a run to CTranslate2, or its weights alone",
        "tmt export runs/mine --to ctranslate2 --output engine",
    ),
    Command(
        "average",
        add_average,
        "average the weights of several checkpoints, and validate the mean",
        "tmt average runs/mine --last 5",
    ),
    Command(
        "plot",
        add_plot,
        "draw positions, schedule, attention or lengths as PNG, SVG or PDF",
        "tmt plot attention runs/mine --text 'The dog sleeps.' --output attention.png",
    ),
    Command(
        "tokenize",
        add_tokenize,
        "show the tokens and ids of texts, or statistics of a vocabulary",
        "tmt tokenize runs/mine 'The dog sleeps.'",
    ),
    Command(
        "runs",
        add_runs,
        "list the runs below a folder, with status, best score and size",
        "tmt runs --sort score",
    ),
    Command(
        "board",
        add_board,
        "serve TensorBoard for some runs or all",
        "tmt board runs/a runs/b",
    ),
    Command(
        "doctor",
        add_doctor,
        "check the environment and train a tiny model, for a bug report",
        "tmt doctor > report.txt",
    ),
    Command(
        "config",
        add_config,
        "print the resolved configuration with all defaults",
        "tmt config mine.yaml",
    ),
    Command(
        "completion",
        add_completion,
        "print the shell code that completes commands, options, keys and files at a Tab",
        """eval "$(tmt completion bash)" in ~/.bashrc""",
    ),
)
