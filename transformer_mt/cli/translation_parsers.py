"""The options of the commands that translate, score and report."""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_mt.cli.arguments import (
    add_ensemble,
    add_loading,
    add_markup,
    add_output,
    add_sampling,
    add_search,
    add_terminology,
)


def add_translate(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt translate`."""
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
    add("--input", type=Path, metavar="F", help="translate the lines of a file (plain or .gz), or a document")
    add_output(add, "--input and --output")
    help = "force the translation of line N to begin with line N of this file"
    add("--prefix", type=Path, metavar="F", help=help)
    help = (
        "split lines into sentences and translate each: long (default): lines with more tokens than the training pairs "
        "had, and all segments of documents; always: all lines; never: none, and lines too long are truncated"
    )
    add("--split-sentences", choices=("long", "always", "never"), default="long", help=help)
    help = "text (default): translations; tsv: line, rank, score, score per token, text; json: one object per line"
    add("--format", choices=("text", "tsv", "json"), default="text", help=help)
    help = "text format: print log-probability and its mean per token before each translation, separated by tabs"
    add("--scores", action="store_true", help=help)
    help = "add the word alignment, from the cross-attention: 0-0 1-2 (source word - target word)"
    add("--alignments", action="store_true", help=help)

    help = "add the probability that the translation is acceptable, before its text (needs tmt calibrate RUN)"
    add("--confidence", action="store_true", help=help)
    _add_documents(parser)

    add_markup(parser)
    add_terminology(parser)
    add_search(parser)
    add_sampling(parser, "sample --n-best translations")


def _add_documents(parser: argparse.ArgumentParser) -> None:
    description = (
        "With --input page.html --output page.de.html, the text of the page is translated, and all else is kept. "
        "Documents are files with a suffix of HTML, Markdown (.md), PO, XLIFF (.xlf), SRT or JSON."
    )
    add = parser.add_argument_group("documents", description).add_argument
    help = "format of --input, if its suffix does not say it; text: lines, whatever its suffix"
    add("--document-format", choices=("html", "json", "markdown", "po", "srt", "xliff", "text"), help=help)
    help = "HTML: also translate these attributes: alt, aria-label, placeholder, title"
    add("--attributes", nargs="+", choices=("alt", "aria-label", "placeholder", "title"), metavar="NAME", help=help)
    help = "PO, XLIFF: also translate messages that have a translation"
    add("--retranslate", action="store_true", help=help)
