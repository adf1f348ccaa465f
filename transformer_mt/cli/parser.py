"""The arguments of the command line: every verb and its options, with the help that `tmt VERB --help` prints."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from transformer_mt import __version__
from transformer_mt.data.languages import check_language
from transformer_mt.errors import UserError

ON_MACHINES = (
    "several processes: torchrun --nproc-per-node N -m transformer_mt train ... batches.accumulate=N; "
    "TCMalloc is used where the system has it: LD_PRELOAD= in the environment leaves it out"
)
OVERRIDES = "override a key of the configuration: model.d_model=512, 'data.train={src: F, tgt: G}'"

ERRORS = "lines that are not UTF-8: refused (strict, the default), or read with U+FFFD in their place"

READING = ("checkpoint", "device", "threads", "precision")
SEARCHING = ("beam", "length_penalty", "min_length", "no_repeat_ngram", "repetition_penalty", "batch_tokens")
DRAWING = ("temperature", "top_k", "top_p", "seed")


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of the checkpoint and the machine."""
    return {key: getattr(args, key) for key in READING if getattr(args, key) is not None}


def option(key: str) -> str:
    """How the command line spells an argument."""
    return f"--{key.replace('_', '-')}"


def decoding_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line sets of the configuration's section `decoding`."""
    names = {"length_penalty": "length_penalty_exponent"}
    keys = (*SEARCHING, "sample", *DRAWING)
    options: dict[str, Any] = {names.get(key, key): getattr(args, key, None) for key in keys}
    options["n_best"] = getattr(args, "n_best", 1)  # a verb without that option takes the best alone
    if getattr(args, "max_length", None) is not None:
        match = re.fullmatch(r"(?:([0-9.]+)\*source\+)?([0-9]+)", args.max_length)
        if match is None:
            raise UserError(f"--max-length {args.max_length}: a number of tokens, such as 100, or 1.5*source+10")
        options |= {"max_length_factor": match[1] or 0, "max_length_offset": match[2]}
    return {key: value for key, value in options.items() if value is not None}


def make_parser() -> argparse.ArgumentParser:
    """The parser; `verb` is the name of the verb."""
    parser = argparse.ArgumentParser(
        prog="tmt",
        description="Train a Transformer for machine translation from scratch, from one YAML file.",
        epilog="tensorboard --logdir runs shows the curves. configs/reference.yaml names every key.",
    )
    parser.add_argument("--version", action="version", version=f"tmt {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, about: str) -> argparse.ArgumentParser:
        """A verb whose own help says, unless it has more to say, what the list of verbs does."""
        return verbs.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")

    _add_train(verb("train", "train a model; the same command again goes on where it stopped"))
    _add_translate(verb("translate", "translate arguments, standard input, a file, or at a prompt"))
    _add_score(verb("score", "how likely given translations are: a log-probability for each pair"))
    _add_evaluate(verb("evaluate", "BLEU, chrF, chrF++ and TER, of a run's translations or a file's"))
    _add_compare(verb("compare", "which of several runs or files of translations is better, and where"))
    _add_export(verb("export", "a run's model for elsewhere: for CTranslate2, or its weights alone"))
    _add_average(verb("average", "the mean of the weights of several checkpoints, scored"))
    _add_plot(verb("plot", "draw positions, schedule, attention or lengths, as PNG, SVG or PDF"))
    _add_tokenize(verb("tokenize", "show pieces and ids, or how well a vocabulary fits a text"))
    _add_config(verb("config", "print the resolved configuration, with every default"))
    return parser


def _add_train(train: argparse.ArgumentParser) -> None:
    train.epilog = ON_MACHINES
    train.add_argument("--config", type=Path, metavar="X.yaml", help="without it, the built-in quickstart")
    start = train.add_mutually_exclusive_group()
    start.add_argument("--restart", action="store_true", help="begin anew; the old run is moved aside")
    start.add_argument(
        "--checkpoint",
        default="last",
        metavar="last|best|STEP",
        help="where to go on from (default: last); later checkpoints are deleted",
    )
    train.add_argument("overrides", nargs="*", metavar="section.key=value", help=OVERRIDES)


def _add_translate(translate: argparse.ArgumentParser) -> None:
    translate.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/quickstart")
    translate.add_argument("texts", nargs="*", metavar="text", help="without: --input, or standard input (a prompt)")
    about = "tmt (default); ctranslate2: RUN is a folder that tmt export --to ctranslate2 made"
    translate.add_argument("--engine", choices=("tmt", "ctranslate2"), default="tmt", help=about)
    lines = translate.add_argument_group("lines in and out")
    lines.add_argument("--input", type=Path, metavar="F", help="translate the lines of a file (plain or .gz)")
    lines.add_argument("--output", type=Path, metavar="G", help="write here, not to standard output; grows in G.part")
    lines.add_argument(
        "--resume", action="store_true", help="go on with a G.part that was stopped (with --input and --output)"
    )
    lines.add_argument("--errors", choices=("strict", "replace"), default="strict", help=ERRORS)
    about = (
        "translate sentence by sentence: long (default): the lines with more tokens than the training pairs had; "
        "always: every line; never: none, and what is too long for the model is cut off"
    )
    lines.add_argument("--split-sentences", choices=("long", "always", "never"), default="long", help=about)
    lines.add_argument(
        "--prefix", type=Path, metavar="F", help="a file: line N is how the translation of line N has to begin"
    )
    about = "text (default): the translations; tsv: line, rank, score, its mean per token, text; json: an object a line"
    lines.add_argument("--format", choices=("text", "tsv", "json"), default="text", help=about)
    about = "text: log-probability, and its mean per token, before each translation, with tabs between"
    lines.add_argument("--scores", action="store_true", help=about)
    about = "also which word comes from which, as 0-0 1-2: source word, target word, from the cross-attention"
    lines.add_argument("--alignments", action="store_true", help=about)
    _add_ensemble(translate)
    _add_search(translate)
    about = "translations of each line, the best first; text: N lines for each, empty where fewer were found"
    translate.add_argument("--n-best", type=int, metavar="N", help=about)
    drawing = translate.add_argument_group("drawing at random instead of searching")
    drawing.add_argument("--sample", action="store_true", default=None, help="draw --n-best translations")
    drawing.add_argument("--temperature", type=float, metavar="T", help="log-probabilities are divided by it (1)")
    drawing.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens (all)")
    about = "draw from the likeliest whose probabilities sum to P (1)"
    drawing.add_argument("--top-p", type=float, metavar="P", help=about)
    drawing.add_argument("--seed", type=int, metavar="N", help="what is drawn depends on it and the line's number (1)")
    _add_reading(translate)


def _add_score(score: argparse.ArgumentParser) -> None:
    score.description = (
        "The log-probability of each line of G as the translation of that line of F, for ranking and filtering pairs. "
        "-inf: a pair with a blank line, or with one that is longer than the model reads (with a warning)."
    )
    score.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    score.add_argument("--src", type=Path, required=True, metavar="F", help="source sentences (plain or .gz)")
    score.add_argument("--tgt", type=Path, required=True, metavar="G", help="their translations, line by line")
    score.add_argument("--output", type=Path, metavar="H", help="write here, not to standard output; grows in H.part")
    score.add_argument("--resume", action="store_true", help="go on with an H.part that was stopped (with --output)")
    score.add_argument("--errors", choices=("strict", "replace"), default="strict", help=ERRORS)
    about = (
        "text (default): natural log-probability, the end symbol counted, and its mean per token; tsv: line, 1, these "
        "two, translation; json: an object a line, with tokens"
    )
    score.add_argument("--format", choices=("text", "tsv", "json"), default="text", help=about)
    about = "padded target tokens that are read at once (on a CPU at most 2048, which is fastest)"
    score.add_argument("--batch-tokens", type=int, metavar="N", help=about)
    _add_ensemble(score)
    _add_reading(score)


def _add_evaluate(evaluate: argparse.ArgumentParser) -> None:
    evaluate.description = (
        "sacreBLEU's BLEU, chrF, chrF++ and TER (edits per 100 words: the lower, the better), with signatures and with "
        "intervals that hold 95 percent of 1,000 resamples of the test set. Of RUN; or, without one, of a file: --hyp "
        "F --ref G. TER is left out for th, lo, km, my and bo, which have no spaces between words."
    )
    evaluate.add_argument("run", type=Path, nargs="?", metavar="RUN", help="a run folder")
    evaluate.add_argument("--src", type=Path, metavar="F", help="source sentences; without, the run's own test sets")
    about = "their reference translations, line by line; for a run, the kind of text that it was trained on"
    evaluate.add_argument("--ref", type=Path, metavar="G", help=about)
    evaluate.add_argument("--set", metavar="NAME", help="one of the run's own test sets (default: all)")
    about = "multi30k: also metric P of its papers, BLEU of lower-cased Moses tokens, and the references' tokens"
    evaluate.add_argument("--paper", choices=("multi30k",), help=about)
    evaluate.add_argument("--json", action="store_true", help="print one JSON object with everything")
    evaluate.add_argument("--show", type=int, metavar="N", help="print N of the translations")
    evaluate.add_argument("--output", type=Path, metavar="G", help="write the translations, one a line")
    file = evaluate.add_argument_group("a file instead of a run")
    file.add_argument("--hyp", type=Path, metavar="F", help="translations to be measured, line by line")
    about = "their language, which chooses BLEU's tokeniser (without it, 13a), the words of TER, and Moses' rules"
    file.add_argument("--tgt-lang", type=_language, metavar="L", help=about)
    about = (
        "of both files: raw (default), or moses: Moses tokens, which are detokenised first, and compared without case"
    )
    file.add_argument("--text", choices=("raw", "moses"), help=about)
    _add_ensemble(evaluate)
    _add_search(evaluate)
    _add_reading(evaluate)


def _add_compare(compare: argparse.ArgumentParser) -> None:
    compare.description = (
        "BLEU, chrF, chrF++ and TER of each system, tested against the first by paired bootstrap resampling and by "
        "approximate randomisation; scores by length of the reference and by frequency of the words; and the "
        "sentences whose translations differ most in chrF."
    )
    compare.add_argument("systems", type=Path, nargs="+", metavar="A", help="run folders, or files of translations")
    compare.add_argument("--src", type=Path, metavar="F", help="source sentences, line by line; runs need them")
    compare.add_argument("--ref", type=Path, required=True, metavar="G", help="reference translations, line by line")
    about = "target text in which the words' frequencies are counted (default: what the first run has learnt from)"
    compare.add_argument("--train", type=Path, metavar="F", help=about)
    compare.add_argument("--show", type=int, default=5, metavar="N", help="print N of the sentences (5)")
    compare.add_argument("--json", action="store_true", help="print one JSON object with everything")
    files = compare.add_argument_group("files alone")
    about = "their language, which chooses BLEU's tokeniser (without it, 13a), the words of TER, and Moses' rules"
    files.add_argument("--tgt-lang", type=_language, metavar="L", help=about)
    files.add_argument("--text", choices=("raw", "moses"), help="of all files, as for tmt evaluate --hyp")
    _add_search(compare)
    _add_reading(compare)


def _add_ensemble(parser: argparse.ArgumentParser) -> None:
    about = (
        "another run, with the same vocabulary, at the same --checkpoint: at each position the models' probabilities "
        "are averaged; the settings are those of RUN; once for each"
    )
    parser.add_argument("--ensemble", type=Path, action="append", metavar="RUN2", help=about)


def _add_search(parser: argparse.ArgumentParser) -> None:
    """The options that the configuration's section `decoding` has as keys; without them the run's own count."""
    search = parser.add_argument_group("search (defaults: the run's section decoding, as it stands here)")
    search.add_argument("--beam", type=int, metavar="K", help="hypotheses followed at once (5); 1: greedy")
    about = (
        "A (1): hypotheses are compared by log-probability / length^A, or, with length_penalty: gnmt, "
        "/ ((5 + length) / 6)^A; the end symbol counts"
    )
    search.add_argument("--length-penalty", type=float, metavar="A", help=about)
    search.add_argument("--min-length", type=int, metavar="N", help="tokens of a translation at least (1)")
    about = "tokens of a translation at most, the end symbol counted: a number, or A*source+B (2*source+10)"
    search.add_argument("--max-length", metavar="L", help=about)
    search.add_argument("--no-repeat-ngram", type=int, metavar="N", help="no N tokens in a row come twice (0: off)")
    about = "factor on log-probabilities of tokens that are there already; scores include it (1: off)"
    search.add_argument("--repetition-penalty", type=float, metavar="X", help=about)
    about = "padded source tokens, times hypotheses, that are translated at once"
    search.add_argument("--batch-tokens", type=int, metavar="N", help=about)


def _add_export(export: argparse.ArgumentParser) -> None:
    export.description = (
        "ctranslate2: a folder that CTranslate2 loads (pip install ctranslate2), with translate.py, which needs that "
        "and tokenizers alone; up to 100 validation sentences are translated by both engines, and the figures go to "
        "export.json. weights: a folder that takes the place of a run, without the state of its training."
    )
    export.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    export.add_argument("--to", required=True, choices=("ctranslate2", "weights"), help="for what")
    export.add_argument("--output", required=True, type=Path, metavar="DIR", help="a new folder")
    export.add_argument("--checkpoint", default="best", metavar="best|last|STEP", help="default: best")
    about = "ctranslate2: float32 (default), int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16"
    export.add_argument("--quantization", metavar="Q", help=about)
    about = "ctranslate2: compare the engines on the lines of this file instead of on validation sentences"
    export.add_argument("--src", type=Path, metavar="F", help=about)


def _add_average(average: argparse.ArgumentParser) -> None:
    average.description = (
        "The mean goes to a folder of its own, in which it is the only checkpoint: so the training of RUN can go on, "
        "and neither its best and last checkpoints nor what it deletes are touched. tmt translate, score, evaluate, "
        "compare, tokenize, plot and export read the folder like a run. It is scored on RUN's validation pairs, as "
        "the training scores them."
    )
    average.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    average.add_argument("steps", nargs="*", metavar="STEP", help="the steps of the checkpoints, two or more")
    average.add_argument(
        "--last", type=int, metavar="N", help="in place of steps: the N newest (keep.last says how many are kept)"
    )
    average.add_argument("--best", type=int, metavar="N", help="in place of steps: the N best (keep.best)")
    average.add_argument(
        "--output", type=Path, metavar="DIR", help="a new folder (default: RUN-average-last-N beside RUN)"
    )
    average.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N or mps")
    average.add_argument("--threads", default="auto", metavar="N", help="CPU threads (default: one a core)")


def _add_plot(plot: argparse.ArgumentParser) -> None:
    what = (
        "positions: the table, some dimensions, and products; schedule: the learning rate, beside other schedules; "
        "attention: by layer and head, for one sentence; lengths: of the training sentences, in tokens"
    )
    plot.add_argument("what", choices=("positions", "schedule", "attention", "lengths"), help=what)
    plot.add_argument("subject", type=Path, metavar="RUN-or-X.yaml", help="a run folder, or a configuration")
    plot.add_argument("overrides", nargs="*", metavar="section.key=value", help=OVERRIDES)
    plot.add_argument(
        "--output",
        type=Path,
        metavar="F",
        help=".png, .svg or .pdf (default: plots/WHAT.png in the run; of a configuration, or with overrides, "
        "NAME-WHAT.png here)",
    )
    plot.add_argument("--text", help="attention: a sentence to translate (default: the first validation sentence)")
    about = "attention: cross (default), or the self-attention of the encoder or the decoder"
    plot.add_argument("--kind", choices=("cross", "encoder", "decoder"), default="cross", help=about)
    plot.add_argument("--layer", type=int, metavar="N", help="attention: one layer, counted from 1 (default: all)")
    plot.add_argument("--head", type=int, metavar="N", help="attention: one head, counted from 1 (default: all)")
    about = "of a run: for its attention, or the positions that it has learnt (default: best)"
    plot.add_argument("--checkpoint", metavar="best|last|STEP", help=about)


def _add_tokenize(tokenize: argparse.ArgumentParser) -> None:
    about = "a run folder; or a configuration, whose tokenizers are then learnt"
    tokenize.add_argument("subject", type=Path, metavar="RUN-or-X.yaml", help=about)
    about = (
        "without text and --input: a run reads standard input; of a configuration, figures over the validation pairs"
    )
    tokenize.add_argument("texts", nargs="*", metavar="text or section.key=value", help=about)
    tokenize.add_argument("--input", type=Path, metavar="F", help="figures over the lines of a file (plain or .gz)")
    tokenize.add_argument(
        "--side", choices=("src", "tgt"), help="which language (default: src; of validation pairs, both)"
    )


def _add_config(config: argparse.ArgumentParser) -> None:
    config.add_argument("config", type=Path, nargs="?", metavar="X.yaml", help="without it, the built-in quickstart")
    config.add_argument("overrides", nargs="*", metavar="section.key=value", help=OVERRIDES)
    config.add_argument("--schema", action="store_true", help="print the JSON schema, for editors")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", metavar="best|last|STEP", help="default: best")
    parser.add_argument("--device", help="auto (default), cpu, cuda, cuda:N or mps")
    parser.add_argument("--threads", metavar="N", help="CPU threads (default: one a core)")
    about = "of matrix products: fp32, bf16, or auto (default): bf16 where it is the faster one"
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), help=about)


def _language(text: str) -> str:
    try:
        return check_language(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
