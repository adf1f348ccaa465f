"""`tmt translate` with a document: its segments are translated together, and written back at their places."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt.cli.options import check_sampling_options, load_memory
from transformer_mt.errors import UserError
from transformer_mt.system.files import write_text
from transformer_mt.system.log import ProgressReport, log
from transformer_mt.tools.documents.formats import (
    DocumentFormat,
    DocumentOptions,
    find_format,
    read_document,
)

if TYPE_CHECKING:
    from transformer_mt.decoding.provenance import ModelProvenance
    from transformer_mt.decoding.text_translator import TextTranslator

LINES = "text"
"""Value of --document-format for files that are translated line by line, whatever their suffix."""


def find_document_format(args: argparse.Namespace) -> DocumentFormat | None:
    """Return the format of the document to translate; None if the input has lines.

    Raises:
        UserError: Options do not fit a document, or options of documents do not fit lines.
    """
    if args.document_format and not (args.input and args.output):
        raise UserError("--document-format: a document needs --input and --output; add them")
    document_format = None
    if args.input and args.document_format != LINES:
        document_format = args.document_format or find_format(args.input)
    if document_format and args.output:
        _check_options(args, document_format)
        return document_format
    for option, value in (("--attributes", args.attributes), ("--retranslate", args.retranslate)):
        if value:
            raise UserError(f"{option}: is for documents; pass --input and --output with names such as page.html")
    if document_format:
        log(f"tmt: warning: {args.input} is translated line by line; with --output, its markup is kept")
    return None


def _check_options(args: argparse.Namespace, document_format: DocumentFormat) -> None:
    """Raise `UserError` for options that make no sense for a document."""
    refused = {
        "--n-best": args.n_best not in (None, 1),
        "--resume": args.resume,
        "--scores": args.scores,
        "--alignments": args.alignments,
        "--confidence": args.confidence,
        "--prefix": args.prefix,
        "--format": args.format != "text",
        "--errors": args.errors != "strict",
        "--markup none": args.markup == "none",
    }
    for option, is_given in refused.items():
        if is_given:
            advice = f"leave it out, or translate its lines with --document-format {LINES}"
            raise UserError(f"{option}: {args.input} is translated as a document ({document_format}); {advice}")
    if args.engine == "ctranslate2":
        raise UserError("--engine ctranslate2: it cannot keep the markup of a document; translate with the run")
    if args.attributes and document_format != "html":
        raise UserError(f"--attributes: only HTML has attributes, and {args.input} is {document_format}; leave it out")
    if args.retranslate and document_format not in ("po", "xliff"):
        raise UserError(
            f"--retranslate: only PO and XLIFF have translations already; {args.input} has not: leave it out"
        )


def translate_document(
    args: argparse.Namespace,
    document_format: DocumentFormat,
    load: Callable[[], tuple[ModelProvenance, TextTranslator]],
) -> None:
    """Translate the document `--input` to `--output`. `load` returns the model."""
    from transformer_mt.decoding.chunked_translator import ChunkedTranslator
    from transformer_mt.tools.documents.formats import adapt_translator, fill_document, make_lines

    provenance, translator = load()
    check_sampling_options(args, translator.config.sample)
    options = DocumentOptions(provenance.tgt_lang, tuple(args.attributes or ()), args.retranslate)
    document = read_document(args.input, document_format, options)
    memory = load_memory(args.memory, provenance)
    translator = translator.with_options({"n_best": 1})
    chunked = ChunkedTranslator.make(translator, provenance, args.split_sentences, memory)
    lines = make_lines(document)
    progress = ProgressReport("translated", len(lines), "segments")
    with progress.show():
        translated = adapt_translator(chunked).translate(
            lines, [""] * len(lines), document.line_numbers(), on_lines=progress.update
        )
    _write(args.output.resolve(), fill_document(document, translated))
    log(f"tmt: translated {len(lines):,} segments of {args.input} to {args.output}")


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # a device or a named pipe cannot be replaced
        path.write_bytes(text.encode())
    else:
        write_text(path, text)
