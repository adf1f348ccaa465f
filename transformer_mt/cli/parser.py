"""The argument parser: every command and its options, with the help that `tmt COMMAND --help` prints."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_mt import __version__
from transformer_mt.cli.arguments import (
    add_config_file,
    add_device,
    add_ensemble,
    add_json,
    add_kind_of_text,
    add_loading,
    add_output,
    add_overrides,
    add_sampling,
    add_search,
    add_tag,
)
from transformer_mt.cli.synthetic_parsers import add_backtranslate, add_distill
from transformer_mt.cli.training_parsers import (
    add_check,
    add_correct,
    add_init,
    add_plan,
    add_prepare,
    add_repair,
    add_train,
)

EXTRA_ARGUMENTS = {"overrides": r"(?!-).*=.*", "steps": r"\d+", "texts": r"(?!--?[A-Za-z]).*", "systems": r"(?!-).*"}
"""Positional arguments that may also follow options, and the pattern that each value must match."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. Positional arguments may follow options, which argparse alone does not support."""
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may follow
        from transformer_mt.cli.completion import complete

        complete(parser)
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help(sys.stderr)
        parser.exit(2, "\ntmt: error: the following arguments are required: COMMAND\n")
    args, rest = parser.parse_known_args(arguments)
    end = rest.index("--") if "--" in rest else len(rest)
    rest, literal = rest[:end], rest[end + 1 :]  # an argument after "--" is never an option
    for name, pattern in EXTRA_ARGUMENTS.items():
        if hasattr(args, name) and all(re.fullmatch(pattern, argument, re.DOTALL) for argument in rest):
            extra = [*rest, *literal]
            setattr(args, name, [*getattr(args, name), *(map(Path, extra) if name == "systems" else extra)])
            return args
    if rest or literal:
        parser.error(f"unrecognized arguments: {' '.join([*rest, *literal])}")
    return args


def make_parser() -> argparse.ArgumentParser:
    """Make the parser. It stores the name of the command as `command`."""
    parser = argparse.ArgumentParser(
        prog="tmt",
        description="Train a Transformer for machine translation from scratch, from one YAML file.",
        epilog="tmt board shows training curves. tmt config prints every key.",
    )
    parser.add_argument("--version", action="version", version=f"tmt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        description = f"{summary[0].upper()}{summary[1:]}."
        return commands.add_parser(name, help=summary, description=description, epilog=f"Example: {example}")

    summary = "write a commented configuration for your own sentence pairs"
    add_init(command("init", summary, "tmt init train.en train.de --out mine.yaml"))
    summary = "find problems in a corpus: misaligned lines, other languages, duplicates, overlap with the test sets"
    add_check(command("check", summary, "tmt check mine.yaml --html report.html"))
    summary = "write a repaired copy of a training corpus: lines paired again, text cleaned, bad pairs removed"
    add_repair(command("repair", summary, "tmt repair mine.yaml --output repaired"))
    summary = "read, filter and encode the data of a training before it starts, on several processes"
    add_prepare(command("prepare", summary, "tmt prepare mine.yaml --workers 8"))
    summary = "measure a few steps, and predict the time, memory and disk of a training"
    add_plan(command("plan", summary, "tmt plan mine.yaml batches.tokens=2048"))
    summary = "train a model; the same command resumes an interrupted training"
    several = "Several processes: torchrun --nproc-per-node N -m transformer_mt train ... batches.accumulate=N"
    add_train(command("train", summary, f"tmt train --config mine.yaml model.d_model=512. {several}"))
    summary = "teach a run corrected translations, without losing what it knows"
    add_correct(command("correct", summary, "tmt correct runs/mine --pairs post_edits.tsv"))
    summary = "translate text from arguments, a file, standard input or a prompt"
    _add_translate(command("translate", summary, "tmt translate runs/mine --input big.en --output big.de --resume"))
    summary = "make training pairs whose sources are translations of monolingual text (back-translation)"
    example = "tmt backtranslate runs/de-en --mono news.de --output back --sample --top-k 10"
    add_backtranslate(command("backtranslate", summary, example))
    summary = "make training pairs whose targets are translations by a model or an ensemble (distillation)"
    example = "tmt distill runs/seed1 --ensemble runs/seed2 --mono train.en --output taught"
    add_distill(command("distill", summary, example))
    summary = "compute the log-probability of given translations"
    _add_score(command("score", summary, "tmt score runs/mine --src pairs.en --tgt pairs.de > scores"))
    summary = "compute BLEU, chrF, chrF++ and TER of a run or of a file of translations"
    _add_evaluate(command("evaluate", summary, "tmt evaluate runs/mine --src test.en --ref test.de"))
    summary = "compare runs or files of translations, with significance tests"
    _add_compare(command("compare", summary, "tmt compare runs/a runs/b --src test.en --ref test.de"))
    summary = "export the model of a run to CTranslate2, or its weights alone"
    _add_export(command("export", summary, "tmt export runs/mine --to ctranslate2 --output engine"))
    summary = "average the weights of several checkpoints, and validate the mean"
    _add_average(command("average", summary, "tmt average runs/mine --last 5"))
    summary = "draw positions, schedule, attention or lengths as PNG, SVG or PDF"
    example = "tmt plot attention runs/mine --text 'The dog sleeps.' --output attention.png"
    _add_plot(command("plot", summary, example))
    summary = "show the tokens and ids of texts, or statistics of a vocabulary"
    _add_tokenize(command("tokenize", summary, "tmt tokenize runs/mine 'The dog sleeps.'"))
    summary = "serve TensorBoard for some runs or all"
    _add_board(command("board", summary, "tmt board runs/a runs/b"))
    summary = "check the environment and train a tiny model, for a bug report"
    _add_doctor(command("doctor", summary, "tmt doctor > report.txt"))
    _add_config(command("config", "print the resolved configuration with all defaults", "tmt config mine.yaml"))
    summary = "print the shell code that completes commands, options, keys and files at a Tab"
    _add_completion(command("completion", summary, """eval "$(tmt completion bash)" in ~/.bashrc"""))
    return parser


def _add_translate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder, such as runs/quickstart")
    help = "text to translate (default: --input, else standard input, or a prompt on a terminal)"
    add("texts", nargs="*", default=[], metavar="text", help=help)
    help = "tmt (default) or ctranslate2; with ctranslate2, RUN is a folder made by tmt export --to ctranslate2"
    add("--engine", choices=("tmt", "ctranslate2"), default="tmt", help=help)
    help = "number of translations per line, best first; text format: always N lines, some may be empty"
    add("--n-best", type=int, metavar="N", help=help)
    add_loading(parser)
    add_ensemble(parser)

    add = parser.add_argument_group("input and output").add_argument
    add("--input", type=Path, metavar="F", help="translate the lines of a file (plain or .gz)")
    add_output(add, "--input and --output")
    help = "force the translation of line N to begin with line N of this file"
    add("--prefix", type=Path, metavar="F", help=help)
    help = (
        "split lines into sentences and translate each: long (default): lines with more tokens than the training pairs "
        "had; always: all lines; never: none, and lines too long for the model are truncated"
    )
    add("--split-sentences", choices=("long", "always", "never"), default="long", help=help)
    help = "text (default): translations; tsv: line, rank, score, score per token, text; json: one object per line"
    add("--format", choices=("text", "tsv", "json"), default="text", help=help)
    help = "text format: print log-probability and its mean per token before each translation, separated by tabs"
    add("--scores", action="store_true", help=help)
    help = "add the word alignment, from the cross-attention: 0-0 1-2 (source word - target word)"
    add("--alignments", action="store_true", help=help)

    add_search(parser)
    add_sampling(parser, "sample --n-best translations")


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compute the log-probability of line N of G as a translation of line N of F, to rank and filter pairs. "
        "The score of a pair is -inf if a line is blank, or longer than the model supports (with a warning)."
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    add("--src", type=Path, required=True, metavar="F", help="source sentences (plain or .gz)")
    add("--tgt", type=Path, required=True, metavar="G", help="their translations, line by line")
    add_output(add, "--output")
    help = (
        "text (default): natural log-probability including EOS, and its mean per token; tsv: line, rank (always 1), "
        "both scores, translation; json: one object per line, with tokens"
    )
    add("--format", choices=("text", "tsv", "json"), default="text", help=help)
    add("--batch-tokens", type=int, metavar="N", help="maximum padded target tokens per batch (CPU: at most 2048)")
    add_tag(parser)
    add_loading(parser)
    add_ensemble(parser)


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compute BLEU, chrF, chrF++ and TER (edits per 100 words: lower is better) with sacreBLEU, with signatures and "
        "95 % intervals from 1,000 bootstrap resamples. Score a run, or a file of translations (--hyp F --ref G). "
        "TER is left out for th, lo, km, my and bo, which have no spaces between words."
    )
    add = parser.add_argument
    add("run", type=Path, nargs="?", metavar="RUN", help="a run folder")
    add("--src", type=Path, metavar="F", help="source sentences (default: test sets of the run)")
    help = "reference translations, line by line; for a run, raw text or Moses tokens like its training data"
    add("--ref", type=Path, metavar="G", help=help)
    add("--set", metavar="NAME", help="one test set of the run (default: all)")
    help = "run the behaviour tests of this YAML file, or starter; the exit status is 1 if one fails"
    add("--expect", metavar="F", help=help)
    help = "multi30k: add metric P of the Multi30k papers (BLEU of lower-cased Moses tokens)"
    add("--paper", choices=("multi30k",), help=help)
    add_json(parser)
    add("--show", type=int, metavar="N", help="print the first N translations")
    add("--output", type=Path, metavar="OUT", help="write the translations to this file, one per line")
    add_loading(parser)
    add_ensemble(parser)
    add = parser.add_argument_group("a file instead of a run").add_argument
    add("--hyp", type=Path, metavar="F", help="translations to score, line by line")
    add_kind_of_text(add)
    add_search(parser)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compute BLEU, chrF, chrF++ and TER of each system, and test them against the first by paired bootstrap "
        "resampling and by approximate randomisation. Also print scores by reference length and by word frequency, "
        "and the sentences whose translations differ most in chrF."
    )
    add = parser.add_argument
    add("systems", type=Path, nargs="+", metavar="SYSTEM", help="run folders, or files of translations")
    add("--src", type=Path, metavar="F", help="source sentences, line by line; required for runs")
    add("--ref", type=Path, required=True, metavar="G", help="reference translations, line by line")
    help = "target text in which to count word frequencies (default: training text of the first run)"
    add("--train", type=Path, metavar="F", help=help)
    add("--show", type=int, default=5, metavar="N", help="print the N sentences that differ most (5)")
    add_json(parser)
    add_loading(parser)
    add_kind_of_text(parser.add_argument_group("only if all systems are files").add_argument)
    add_search(parser)


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "ctranslate2: write a folder for CTranslate2 (pip install ctranslate2), with a script translate.py that needs "
        "only the packages ctranslate2 and tokenizers. Both engines translate up to 100 validation sentences; "
        "export.json contains the comparison. weights: write a folder that replaces a run, without the training state."
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    add("--to", required=True, choices=("ctranslate2", "weights"), help="target format")
    add("--output", required=True, type=Path, metavar="DIR", help="a new folder")
    add("--checkpoint", default="best", metavar="best|last|STEP", help="checkpoint to export (default: best)")
    help = "ctranslate2: float32 (default), int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16"
    add("--quantization", metavar="Q", help=help)
    help = "ctranslate2: compare the engines on the lines of this file (default: validation sentences)"
    add("--src", type=Path, metavar="F", help=help)


def _add_average(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the mean of several checkpoints to a new folder, which other commands read like a run. RUN itself does "
        "not change, and its training can continue. The mean is validated like the checkpoints of a training."
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    add("steps", nargs="*", default=[], metavar="STEP", help="steps of at least two checkpoints")
    add("--last", type=int, metavar="N", help="instead of steps: the N newest checkpoints (keep.last limits N)")
    add("--best", type=int, metavar="N", help="instead of steps: the N best checkpoints (keep.best limits N)")
    help = "a new folder (default: for example RUN-average-last-N, in the folder of RUN)"
    add("--output", type=Path, metavar="DIR", help=help)
    add_device(parser, default="auto")


def _add_plot(parser: argparse.ArgumentParser) -> None:
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
    help = "attention: cross (default), or the self-attention of the encoder or the decoder"
    add("--kind", choices=("cross", "encoder", "decoder"), default="cross", help=help)
    add("--layer", type=int, metavar="N", help="attention: only this layer, counted from 1")
    add("--head", type=int, metavar="N", help="attention: only this head, counted from 1")
    help = "checkpoint that is drawn, for attention and learned positions of a run (default: best)"
    add("--checkpoint", metavar="best|last|STEP", help=help)


def _add_tokenize(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    help = "a run folder; or a configuration, whose tokenizers are trained first"
    add("run_or_config", type=Path, metavar="RUN-or-X.yaml", help=help)
    help = "default: --input; else standard input for a run, and statistics of the validation pairs for a configuration"
    add("texts", nargs="*", default=[], metavar="text or section.key=value", help=help)
    add("--input", type=Path, metavar="F", help="print statistics of the lines of a file (plain or .gz)")
    add("--side", choices=("src", "tgt"), help="language (default: src; for validation pairs, both)")


def _add_config(parser: argparse.ArgumentParser) -> None:
    add_config_file(parser)
    parser.add_argument("--schema", action="store_true", help="print the JSON schema, for editors")


def _add_board(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", type=Path, nargs="*", metavar="RUN", help="run folders to show (default: all in --runs-dir)")
    add("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="folder that holds the runs (default: runs)")
    add("--port", type=int, default=6006, metavar="N", help="port on this machine (default: 6006; 0: any free one)")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that you use")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check package versions, devices, torch features and the disk, and train a tiny model. This takes up to a "
        "minute. Exit status: 0: no problems; 1: warnings, training works; 2: errors, training cannot work."
    )
    add_json(parser)
