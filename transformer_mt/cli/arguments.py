"""Arguments that several commands share, with their help."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from transformer_mt.data.languages import check_language
from transformer_mt.tools.markup.elements import ELEMENT_KINDS

CONFIG_FILE = "configuration file (default: the built-in quickstart)"

Add = Callable[..., argparse.Action]
"""The method `add_argument` of a parser or of a group of options."""


def add_config_file(parser: argparse.ArgumentParser) -> None:
    """Add the optional configuration file, and overrides of its keys."""
    parser.add_argument("config", type=Path, nargs="?", metavar="X.yaml", help=CONFIG_FILE)
    add_overrides(parser)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the run folder."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")


def add_run_or_config(parser: argparse.ArgumentParser) -> None:
    """Add the configuration or run folder of a command about the data, and overrides of its keys."""
    help = "a configuration, or the run that was trained with it"
    parser.add_argument("run_or_config", type=Path, metavar="X.yaml|RUN", help=help)
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the overrides of keys."""
    help = "override a key of the configuration: model.d_model=512, 'data.train={src: F, tgt: G}'"
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help=help)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option of output for programs."""
    parser.add_argument("--json", action="store_true", help="print one JSON object with all results")


def add_output(add: Add, needed: str) -> None:
    """Add the options of resumable line output. `needed` names the options that --resume needs."""
    help = "output file (default: standard output); unfinished output is in OUT.part"
    add("--output", type=Path, metavar="OUT", help=help)
    add("--resume", action="store_true", help=f"continue an interrupted command (needs {needed})")
    add_errors(add)


def add_errors(add: Add) -> None:
    """Add the option for input that is not UTF-8."""
    help = "input that is not UTF-8: strict (default): stop with an error; replace: replace invalid bytes by U+FFFD"
    add("--errors", choices=("strict", "replace"), default="strict", help=help)


def add_kind_of_text(add: Add) -> None:
    """Add the options that say what kind of text the files hold."""
    help = "target language; it sets the tokenizer of BLEU (default: 13a), the words of TER, and the rules of Moses"
    add("--tgt-lang", type=language, metavar="L", help=help)
    help = "kind of text in all files: raw (default), or moses: Moses tokens, which are detokenized, case ignored"
    add("--text", choices=("raw", "moses"), help=help)


def add_ensemble(parser: argparse.ArgumentParser) -> None:
    """Add the option for further models that are searched together."""
    help = (
        "average the token probabilities of RUN and RUN2, at the same --checkpoint; both need the same vocabulary; "
        "the settings are those of RUN; repeat the option for more runs"
    )
    parser.add_argument("--ensemble", type=Path, action="append", metavar="RUN2", help=help)


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options that override keys of the section `decoding` of the run."""
    description = "Defaults are in parentheses. Section decoding of the run's config.yaml overrides them."
    add = parser.add_argument_group("search", description).add_argument
    add("--beam", type=int, metavar="K", help="beam size (5); 1: greedy")
    help = (
        "exponent A (1): rank hypotheses by log-probability / length^A, or, if decoding.length_penalty is gnmt, by "
        "log-probability / ((5 + length) / 6)^A; the length includes EOS"
    )
    add("--length-penalty", type=float, metavar="A", help=help)
    add("--min-length", type=int, metavar="N", help="minimum tokens of a translation (1)")
    help = "maximum tokens of a translation including EOS: a number, or A*source+B (2*source+10)"
    add("--max-length", metavar="L", help=help)
    add("--no-repeat-ngram", type=int, metavar="N", help="forbid repeated n-grams of N tokens (0: off)")
    help = "multiply the log-probabilities of tokens that occurred already by X; scores include it (1: off)"
    add("--repetition-penalty", type=float, metavar="X", help=help)
    help = "maximum of padded source tokens times beam size in a batch"
    add("--batch-tokens", type=int, metavar="N", help=help)
    add_tag(parser)


def add_markup(parser: argparse.ArgumentParser) -> None:
    """Add the options of protected elements."""
    description = (
        "Each protected element of a line occurs exactly once in its translation, and markup tags stay nested."
    )
    add = parser.add_argument_group("protected elements", description).add_argument
    help = "align: elements are placed by word alignment; auto: the same; none (default): elements are text"
    add("--markup", choices=("none", "auto", "align"), help=help)
    help = (
        "kinds of elements: tags (HTML, XML), placeholders ({name}, %%s), urls, emails, files, numbers (default: not "
        "numbers)"
    )
    add("--protect", nargs="+", choices=ELEMENT_KINDS, metavar="KIND", help=help)
    help = "also protect the matches of a regular expression; may be repeated"
    add("--protect-pattern", action="append", dest="protect_patterns", metavar="REGEX", help=help)


def add_terminology(parser: argparse.ArgumentParser) -> None:
    """Add the options of glossaries and translation memories."""
    add = parser.add_argument_group("terminology").add_argument
    help = "TSV file of terms: source, translation (variants separated by |), and options: case, keep"
    add("--glossary", metavar="F", help=help)
    help = "translation memory (.tsv or .tmx): lines that it contains get their translations from it"
    add("--memory", type=Path, metavar="F", help=help)


def add_sampling(parser: argparse.ArgumentParser, sample_help: str) -> None:
    """Add the options of sampling. `sample_help` describes `--sample`."""
    add = parser.add_argument_group("sampling instead of beam search").add_argument
    add("--sample", action="store_true", default=None, help=sample_help)
    add("--temperature", type=float, metavar="T", help="divide the logits by T (1)")
    add("--top-k", type=int, metavar="K", help="sample from the K most likely tokens (all)")
    help = "sample from the most likely tokens whose probabilities sum to P (1)"
    add("--top-p", type=float, metavar="P", help=help)
    add("--seed", type=int, metavar="N", help="random seed (1); samples depend on the seed and the line number")


def add_tag(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects the tag."""
    help = "tag before each source sentence, for a model that was trained with tags, such as 2de"
    parser.add_argument("--tag", metavar="TAG", help=help)


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the checkpoint, the device and the precision."""
    parser.add_argument("--checkpoint", metavar="best|last|STEP", help="checkpoint to load (default: best)")
    add_device(parser)
    help = "precision of matrix products: fp32, bf16, or auto (default): the faster one"
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), help=help)


def add_device(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the options that select the device and the number of threads."""
    parser.add_argument("--device", default=default, help="auto (default), cpu, cuda, cuda:N or mps")
    parser.add_argument("--threads", default=default, metavar="N", help="CPU threads (default: one per core)")


def process_count(text: str) -> int:
    """Parse a number of processes. argparse reports the error."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: pass at least 1 process")
    return int(text)


def language(text: str) -> str:
    """Parse a language code. argparse reports the error."""
    try:
        return check_language(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
