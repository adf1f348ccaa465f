"""The argument parser: every command and its options, with the help that `tmt COMMAND --help` prints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from transformer_mt import __version__
from transformer_mt.data.languages import check_language

OVERRIDES = "override a key of the configuration: model.d_model=512, 'data.train={src: F, tgt: G}'"
ERRORS = "lines that are not UTF-8: refuse them (strict, default), or replace the invalid bytes by U+FFFD (replace)"
OUTPUT = "write to this file instead of standard output; unfinished output is in G.part"
TGT_LANG = "their language; it sets the tokeniser of BLEU (default: 13a), the words of TER, and the rules of Moses"

EXTRA_ARGUMENTS = {"overrides": r"(?!-).*=.*", "steps": r"\d+", "texts": r"(?!--?[A-Za-z]).*", "systems": r"(?!-).*"}
"""Positional arguments that may also follow options, and the pattern that each value must match."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. Positional arguments may follow options, which argparse alone does not support."""
    parser = make_parser()
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
        epilog="tensorboard --logdir runs shows the curves. configs/reference.yaml lists every key.",
    )
    parser.add_argument("--version", action="version", version=f"tmt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        description = f"{summary[0].upper()}{summary[1:]}."
        return commands.add_parser(name, help=summary, description=description, epilog=f"Example: {example}")

    _add_train(
        add(
            "train",
            "train a model; the same command resumes an interrupted training",
            "tmt train --config my.yaml model.d_model=512. Several processes: "
            "torchrun --nproc-per-node N -m transformer_mt train ... batches.accumulate=N",
        )
    )
    _add_translate(
        add(
            "translate",
            "translate arguments, standard input, a file, or at a prompt",
            "tmt translate runs/my --input big.en --output big.de --resume",
        )
    )
    _add_score(
        add(
            "score",
            "compute the log-probability of given translations",
            "tmt score runs/my --src pairs.en --tgt pairs.de > scores",
        )
    )
    _add_evaluate(
        add(
            "evaluate",
            "compute BLEU, chrF, chrF++ and TER of a run or of a file of translations",
            "tmt evaluate runs/my --src test.en --ref test.de",
        )
    )
    _add_compare(
        add(
            "compare",
            "compare runs or files of translations, with significance tests",
            "tmt compare runs/a runs/b --src test.en --ref test.de",
        )
    )
    _add_export(
        add(
            "export",
            "export the model of a run to CTranslate2, or its weights alone",
            "tmt export runs/my --to ctranslate2 --output engine",
        )
    )
    _add_average(
        add("average", "average the weights of several checkpoints, and validate them", "tmt average runs/my --last 5")
    )
    _add_plot(
        add(
            "plot",
            "draw positions, schedule, attention or lengths as PNG, SVG or PDF",
            "tmt plot attention runs/my --text 'The dog sleeps.' --output attention.png",
        )
    )
    _add_tokenize(
        add("tokenize", "show tokens and ids, or statistics of a vocabulary", "tmt tokenize runs/my 'The dog sleeps.'")
    )
    _add_config(add("config", "print the resolved configuration with all defaults", "tmt config my.yaml"))
    return parser


def _add_train(train: argparse.ArgumentParser) -> None:
    train.add_argument("--config", type=Path, metavar="X.yaml", help="default: the built-in quickstart")
    start = train.add_mutually_exclusive_group()
    start.add_argument("--restart", action="store_true", help="start from scratch; the old run is renamed")
    start.add_argument(
        "--checkpoint",
        default="last",
        metavar="last|best|STEP",
        help="resume from this checkpoint (default: last), and delete later ones",
    )
    train.add_argument("overrides", nargs="*", metavar="section.key=value", help=OVERRIDES)


def _add_translate(translate: argparse.ArgumentParser) -> None:
    translate.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/quickstart")
    translate.add_argument("texts", nargs="*", metavar="text", help="default: --input, standard input, or a prompt")
    help = "tmt (default), or ctranslate2, where RUN is a folder made by tmt export --to ctranslate2"
    translate.add_argument("--engine", choices=("tmt", "ctranslate2"), default="tmt", help=help)
    lines = translate.add_argument_group("input and output")
    lines.add_argument("--input", type=Path, metavar="F", help="translate the lines of a file (plain or .gz)")
    lines.add_argument("--output", type=Path, metavar="G", help=OUTPUT)
    help = "continue an interrupted translation in G.part (with --input and --output)"
    lines.add_argument("--resume", action="store_true", help=help)
    lines.add_argument("--errors", choices=("strict", "replace"), default="strict", help=ERRORS)
    help = (
        "translate sentence by sentence: long (default): lines with more tokens than the training pairs had; "
        "always: every line; never: no line, and lines too long for the model are cut"
    )
    lines.add_argument("--split-sentences", choices=("long", "always", "never"), default="long", help=help)
    help = "force the translation of line N to begin with line N of this file"
    lines.add_argument("--prefix", type=Path, metavar="F", help=help)
    help = "text (default): translations; tsv: line, rank, score, score per token, text; json: one object per line"
    lines.add_argument("--format", choices=("text", "tsv", "json"), default="text", help=help)
    help = "text format: print log-probability and its mean per token before each translation, separated by tabs"
    lines.add_argument("--scores", action="store_true", help=help)
    help = "add the word alignment as 0-0 1-2 (source word, target word), from the cross-attention"
    lines.add_argument("--alignments", action="store_true", help=help)
    _add_ensemble(translate)
    _add_search(translate)
    help = "number of translations per line, best first; text format: always N lines, some may be empty"
    translate.add_argument("--n-best", type=int, metavar="N", help=help)
    sampling = translate.add_argument_group("sampling instead of beam search")
    sampling.add_argument("--sample", action="store_true", default=None, help="sample --n-best translations")
    sampling.add_argument("--temperature", type=float, metavar="T", help="divide the logits by T (1)")
    sampling.add_argument("--top-k", type=int, metavar="K", help="sample from the K most likely tokens (all)")
    help = "sample from the most likely tokens whose probabilities sum to P (1)"
    sampling.add_argument("--top-p", type=float, metavar="P", help=help)
    help = "random seed (1); samples depend on the seed and the line number"
    sampling.add_argument("--seed", type=int, metavar="N", help=help)
    _add_loading(translate)


def _add_score(score: argparse.ArgumentParser) -> None:
    score.description = (
        "Compute the log-probability of each line of G as the translation of that line of F, to rank and filter pairs. "
        "The score of a pair is -inf if a line is blank, or longer than the model supports (with a warning)."
    )
    score.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    score.add_argument("--src", type=Path, required=True, metavar="F", help="source sentences (plain or .gz)")
    score.add_argument("--tgt", type=Path, required=True, metavar="G", help="their translations, line by line")
    score.add_argument("--output", type=Path, metavar="G", help=OUTPUT)
    help = "continue an interrupted command in G.part (with --output)"
    score.add_argument("--resume", action="store_true", help=help)
    score.add_argument("--errors", choices=("strict", "replace"), default="strict", help=ERRORS)
    help = (
        "text (default): natural log-probability including EOS, and its mean per token; tsv: line, 1, both scores, "
        "translation; json: one object per line, with tokens"
    )
    score.add_argument("--format", choices=("text", "tsv", "json"), default="text", help=help)
    help = "padded target tokens per batch (at most 2048 on a CPU, where that is fastest)"
    score.add_argument("--batch-tokens", type=int, metavar="N", help=help)
    _add_ensemble(score)
    _add_loading(score)


def _add_evaluate(evaluate: argparse.ArgumentParser) -> None:
    evaluate.description = (
        "Compute BLEU, chrF, chrF++ and TER (edits per 100 words: lower is better) with sacreBLEU, with signatures and "
        "95 % intervals from 1,000 bootstrap resamples. Scores a run, or a file of translations (--hyp F --ref G). "
        "TER is left out for th, lo, km, my and bo, which have no spaces between words."
    )
    evaluate.add_argument("run", type=Path, nargs="?", metavar="RUN", help="a run folder")
    evaluate.add_argument("--src", type=Path, metavar="F", help="source sentences (default: test sets of the run)")
    help = "their reference translations, line by line; for a run, the same kind of text as its training data"
    evaluate.add_argument("--ref", type=Path, metavar="G", help=help)
    evaluate.add_argument("--set", metavar="NAME", help="one test set of the run (default: all)")
    help = "multi30k: add metric P of its papers (BLEU of lower-cased Moses tokens)"
    evaluate.add_argument("--paper", choices=("multi30k",), help=help)
    evaluate.add_argument("--json", action="store_true", help="print one JSON object with all results")
    evaluate.add_argument("--show", type=int, metavar="N", help="print N of the translations")
    evaluate.add_argument("--output", type=Path, metavar="G", help="write the translations, one per line")
    file = evaluate.add_argument_group("a file instead of a run")
    file.add_argument("--hyp", type=Path, metavar="F", help="translations to score, line by line")
    file.add_argument("--tgt-lang", type=_language, metavar="L", help=TGT_LANG)
    help = "kind of text in both files: raw (default), or moses: Moses tokens, which are detokenised, case ignored"
    file.add_argument("--text", choices=("raw", "moses"), help=help)
    _add_ensemble(evaluate)
    _add_search(evaluate)
    _add_loading(evaluate)


def _add_compare(compare: argparse.ArgumentParser) -> None:
    compare.description = (
        "Compute BLEU, chrF, chrF++ and TER of each system, and test them against the first by paired bootstrap "
        "resampling and by approximate randomisation. Also print scores by reference length and by word frequency, "
        "and the sentences whose translations differ most in chrF."
    )
    compare.add_argument("systems", type=Path, nargs="+", metavar="A", help="run folders, or files of translations")
    compare.add_argument("--src", type=Path, metavar="F", help="source sentences, line by line; required for runs")
    compare.add_argument("--ref", type=Path, required=True, metavar="G", help="reference translations, line by line")
    help = "target text in which to count word frequencies (default: training text of the first run)"
    compare.add_argument("--train", type=Path, metavar="F", help=help)
    compare.add_argument("--show", type=int, default=5, metavar="N", help="print N of the sentences (5)")
    compare.add_argument("--json", action="store_true", help="print one JSON object with all results")
    files = compare.add_argument_group("only files")
    files.add_argument("--tgt-lang", type=_language, metavar="L", help=TGT_LANG)
    help = "kind of text in all files, as for tmt evaluate --hyp"
    files.add_argument("--text", choices=("raw", "moses"), help=help)
    _add_search(compare)
    _add_loading(compare)


def _add_ensemble(parser: argparse.ArgumentParser) -> None:
    help = (
        "average the probabilities of RUN with those of this run, at the same --checkpoint; it needs the same "
        "vocabulary; the settings are those of RUN; the option can be repeated"
    )
    parser.add_argument("--ensemble", type=Path, action="append", metavar="RUN2", help=help)


def _add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options that override keys of the section `decoding` of the run."""
    search = parser.add_argument_group("search (defaults: section decoding of the run)")
    search.add_argument("--beam", type=int, metavar="K", help="beam size (5); 1: greedy")
    help = (
        "exponent A (1): compare hypotheses by log-probability / length^A, or, with length_penalty: gnmt, "
        "/ ((5 + length) / 6)^A; the length includes EOS"
    )
    search.add_argument("--length-penalty", type=float, metavar="A", help=help)
    search.add_argument("--min-length", type=int, metavar="N", help="minimum tokens of a translation (1)")
    help = "maximum tokens of a translation including EOS: a number, or A*source+B (2*source+10)"
    search.add_argument("--max-length", metavar="L", help=help)
    search.add_argument("--no-repeat-ngram", type=int, metavar="N", help="forbid repeated n-grams of N tokens (0: off)")
    help = "factor on the log-probabilities of tokens that occurred already; scores include it (1: off)"
    search.add_argument("--repetition-penalty", type=float, metavar="X", help=help)
    help = "padded source tokens times hypotheses per batch"
    search.add_argument("--batch-tokens", type=int, metavar="N", help=help)


def _add_export(export: argparse.ArgumentParser) -> None:
    export.description = (
        "ctranslate2: write a folder for CTranslate2 (pip install ctranslate2), with a script translate.py that needs "
        "only this and tokenizers. Both engines translate up to 100 validation sentences; export.json has the "
        "comparison. weights: write a folder that replaces a run, without the training state."
    )
    export.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    export.add_argument("--to", required=True, choices=("ctranslate2", "weights"), help="target format")
    export.add_argument("--output", required=True, type=Path, metavar="DIR", help="a new folder")
    export.add_argument("--checkpoint", default="best", metavar="best|last|STEP", help="default: best")
    help = "ctranslate2: float32 (default), int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16"
    export.add_argument("--quantization", metavar="Q", help=help)
    help = "ctranslate2: compare the engines on the lines of this file (default: validation sentences)"
    export.add_argument("--src", type=Path, metavar="F", help=help)


def _add_average(average: argparse.ArgumentParser) -> None:
    average.description = (
        "Write the mean of several checkpoints to a new folder, which other commands read like a run. RUN itself does "
        "not change, and its training can continue. The mean is validated like the checkpoints of a training."
    )
    average.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    average.add_argument("steps", nargs="*", metavar="STEP", help="steps of at least two checkpoints")
    help = "instead of steps: the N newest checkpoints (keep.last sets how many are kept)"
    average.add_argument("--last", type=int, metavar="N", help=help)
    average.add_argument("--best", type=int, metavar="N", help="instead of steps: the N best checkpoints (keep.best)")
    help = "a new folder (default: RUN-average-last-N in the folder of RUN)"
    average.add_argument("--output", type=Path, metavar="DIR", help=help)
    average.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N or mps")
    average.add_argument("--threads", default="auto", metavar="N", help="CPU threads (default: one per core)")


def _add_plot(plot: argparse.ArgumentParser) -> None:
    help = (
        "positions: the position table; schedule: the learning rate per step; attention: weights by layer and head for "
        "one sentence; lengths: training sentences by tokens"
    )
    plot.add_argument("what", choices=("positions", "schedule", "attention", "lengths"), help=help)
    plot.add_argument("run_or_config", type=Path, metavar="RUN-or-X.yaml", help="a run folder, or a configuration")
    plot.add_argument("overrides", nargs="*", metavar="section.key=value", help=OVERRIDES)
    help = ".png, .svg or .pdf (default: plots/WHAT.png in the run, or NAME-WHAT.png here)"
    plot.add_argument("--output", type=Path, metavar="F", help=help)
    plot.add_argument("--text", help="attention: a sentence to translate (default: the first validation sentence)")
    help = "attention: cross (default), or the self-attention of the encoder or the decoder"
    plot.add_argument("--kind", choices=("cross", "encoder", "decoder"), default="cross", help=help)
    plot.add_argument("--layer", type=int, metavar="N", help="attention: only this layer, counted from 1")
    plot.add_argument("--head", type=int, metavar="N", help="attention: only this head, counted from 1")
    help = "attention and learned positions of a run (default: best)"
    plot.add_argument("--checkpoint", metavar="best|last|STEP", help=help)


def _add_tokenize(tokenize: argparse.ArgumentParser) -> None:
    help = "a run folder; or a configuration, whose tokenizers are trained first"
    tokenize.add_argument("run_or_config", type=Path, metavar="RUN-or-X.yaml", help=help)
    help = "default: --input; else standard input for a run, and statistics of the validation pairs for a configuration"
    tokenize.add_argument("texts", nargs="*", metavar="text or section.key=value", help=help)
    tokenize.add_argument("--input", type=Path, metavar="F", help="statistics of the lines of a file (plain or .gz)")
    help = "language (default: src; for validation pairs, both)"
    tokenize.add_argument("--side", choices=("src", "tgt"), help=help)


def _add_config(config: argparse.ArgumentParser) -> None:
    config.add_argument("config", type=Path, nargs="?", metavar="X.yaml", help="default: the built-in quickstart")
    config.add_argument("overrides", nargs="*", metavar="section.key=value", help=OVERRIDES)
    config.add_argument("--schema", action="store_true", help="print the JSON schema, for editors")


def _add_loading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", metavar="best|last|STEP", help="default: best")
    parser.add_argument("--device", help="auto (default), cpu, cuda, cuda:N or mps")
    parser.add_argument("--threads", metavar="N", help="CPU threads (default: one per core)")
    help = "of matrix products: fp32, bf16, or auto (default): the faster one"
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), help=help)


def _language(text: str) -> str:
    try:
        return check_language(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
