"""`tmt translate`: translate lines of text, or a document."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar, Literal

from transformer_mt.choices import (
    DocumentFormat,
    EngineName,
    MarkupMode,
    Quantization,
    SplitWhen,
)
from transformer_mt.cli.command import Command, OptionGroup, flag, group, list_given_flags, option, positional
from transformer_mt.cli.options import (
    LoadingOptions,
    SamplingOptions,
    SearchOptions,
    collect_overrides,
    engine_option,
    ensemble_option,
    errors_option,
    guard_option,
    quantization_option,
    split_sentences_option,
)
from transformer_mt.data.text_files import Errors, read_pairs
from transformer_mt.errors import UserError
from transformer_mt.flows import line_io
from transformer_mt.flows.line_io import Format, Line, OutputKind, check_output, is_complete
from transformer_mt.system.log import log, log_rank0

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.robustness.guard import Fault, FaultReport

DOCUMENT_OPTIONS = {"--input", "--output", "--split-sentences", "--guard", "--verbose"}
SCORING_OPTIONS = {
    *("--score-targets", "--input", "--output", "--resume", "--errors", "--format", "--scores"),
    *("--tag", "--batch-tokens", "--ensemble", "--engine"),
}
LINES = "text"  # value of --document-format for files that are translated line by line, whatever their suffix


@dataclass(frozen=True, kw_only=True)
class LineOptions(OptionGroup):
    """Input and output of lines."""

    TITLE: ClassVar[str] = "input and output"

    output: Path | None = option(
        "output file, replaced if it exists (default: standard output); unfinished output is in OUT.part", metavar="OUT"
    )
    resume: bool = flag("continue an interrupted command, which wrote to --output")
    errors: Errors = errors_option()
    input: Path | None = option("translate the lines of a file (plain or compressed), or a document", metavar="F")
    split_sentences: SplitWhen = split_sentences_option()
    guard: bool | None = guard_option()
    verbose: bool = flag("list the lines with faults that --guard has found")
    format: OutputKind = option(
        "text (default): translations; tsv: line, rank, score, score per token, text; json: one object per line",
        default="text",
    )
    scores: bool = flag(
        "text format: print log-probability and its mean per token before each translation, separated by tabs"
    )
    alignments: bool = flag("add the word alignment, from the cross-attention: 0-0 1-2 (source word - target word)")
    score_targets: Path | None = option(
        "do not translate: print the log-probability of line N of this file, including EOS, as the translation of line "
        "N of --input, and its mean per token; -inf for a blank line, or one that is longer than the model supports",
        metavar="G",
    )


@dataclass(frozen=True, kw_only=True)
class DocumentFileOptions(OptionGroup):
    """Translation of documents."""

    TITLE: ClassVar[str] = "documents"
    DESCRIPTION: ClassVar[str | None] = (
        "With --input page.html --output page.de.html, the text of the page is translated, and all else is kept. "
        "Documents are files with a suffix of HTML, Markdown (.md), PO, XLIFF (.xlf), TMX, JSON, SRT or VTT."
    )

    document_format: Literal[DocumentFormat, "text"] | None = option(
        "format of --input, if its suffix does not say it; text: lines, whatever its suffix"
    )
    retranslate: bool = flag("PO, TMX, XLIFF: also translate messages that have a translation")
    exclude_keys: tuple[str, ...] = option(
        "JSON: do not translate the values of these keys, at any depth", default=(), metavar="KEY", takes_list=True
    )


@dataclass(frozen=True, kw_only=True)
class MarkupOptions(OptionGroup):
    """Protected elements."""

    TITLE: ClassVar[str] = "protected elements"
    DESCRIPTION: ClassVar[str | None] = (
        "Each protected element of a line occurs exactly once in its translation, and markup tags stay nested."
    )

    markup: MarkupMode | None = option(
        "auto: place tags (HTML, XML), placeholders ({name}, %%s), links, names of files, versions, @names, #tags and "
        "symbols by word alignment; none (default): they are text"
    )
    protect_patterns: tuple[str, ...] | None = option(
        "also protect the matches of a regular expression; implies --markup auto; may be repeated",
        metavar="REGEX",
        flag="--protect-pattern",
    )


@dataclass(frozen=True, kw_only=True)
class TerminologyOptions(OptionGroup):
    """Glossary."""

    TITLE: ClassVar[str] = "terminology"

    glossary: str | None = option(
        "TSV file of terms: source, translation (variants separated by |), and options: case, keep", metavar="F"
    )


@dataclass(frozen=True, kw_only=True)
class Translate(Command):
    """Translate text from arguments, a file, standard input or a prompt."""

    EXAMPLE: ClassVar[str] = (
        "tmt translate runs/mine --markup auto --glossary terms.tsv --input page.html --output page.de.html"
    )

    run: Path = positional("a run folder, such as runs/quickstart", metavar="RUN")
    texts: tuple[str, ...] = positional(
        "text to translate (default: --input, else standard input, or a prompt on a terminal)",
        metavar="text",
        default=(),
    )
    engine: EngineName | None = engine_option()
    quantization: Quantization | None = quantization_option()
    n_best: int | None = option(
        "number of translations per line, best first; text format: always N lines, some may be empty", metavar="N"
    )
    loading: LoadingOptions = group(LoadingOptions)
    ensemble: tuple[Path, ...] = ensemble_option()
    lines: LineOptions = group(LineOptions)
    documents: DocumentFileOptions = group(DocumentFileOptions)
    markup: MarkupOptions = group(MarkupOptions)
    terminology: TerminologyOptions = group(TerminologyOptions)
    search: SearchOptions = group(SearchOptions)
    sampling: SamplingOptions = group(SamplingOptions)

    def collect_overrides(self) -> dict[str, object]:
        """Return the given options as keys of section `decoding`."""
        from transformer_mt.decoding.decoding_config import FORCE_TORCH

        groups = (self.search, self.sampling, self.markup)
        others: Mapping[str, object] = {"engine": self.engine, "quantization": self.quantization}
        if self.lines.score_targets and not self.engine:
            # CTranslate2 would be converted first.
            others = {**FORCE_TORCH, "quantization": self.quantization or "auto"}
        others = {**others, "n_best": self.n_best, "glossary": self.terminology.glossary}
        return collect_overrides(*groups, **others, guard=self.lines.guard)

    def execute(self) -> None:
        """Run `tmt translate`."""
        _check_arguments(self)
        document_format = _find_document_format(self)
        if self.lines.resume and self.lines.output and is_complete(self.lines.output):
            log(f"tmt: {self.lines.output} is complete; nothing to resume (to translate again, leave out --resume)")
            return
        if document_format and self.lines.input:
            fault_report = _translate_document(self, self.lines.input, document_format)
        else:
            fault_report = _translate_lines(self)
        if found := fault_report.describe():
            log_rank0(f"tmt: {found}{'' if self.lines.verbose else '; --verbose lists them'}")

    def load(self, *, few_texts: bool = False) -> tuple[Translator, FaultReport]:
        """Load the model. Return it with the report of its guard."""
        from transformer_mt.flows.translation import attach_fault_report, load_translator

        options = self.loading.make_load_options(
            ensemble=self.ensemble, few_texts=few_texts, split=self.lines.split_sentences
        )
        translator = load_translator(self.run, options, **self.collect_overrides())
        self.sampling.check(self.search, "translate", translator.config.sample)
        return attach_fault_report(translator, _report_fault if self.lines.verbose else None)


def _report_fault(number: int, before: Sequence[Fault], after: Sequence[Fault]) -> None:
    result = f"not repaired ({', '.join(dict.fromkeys(map(str, after)))})" if after else "repaired"
    log_rank0(f"tmt: line {number}: {', '.join(dict.fromkeys(map(str, before)))}: {result}")


def _translate_lines(args: Translate) -> FaultReport:
    options = args.lines
    is_at_prompt = not args.texts and not options.input and sys.stdin.isatty() and sys.stdout.isatty()
    is_interactive = bool(args.texts) or is_at_prompt
    if options.input and options.score_targets:
        pairs = read_pairs(options.input, options.score_targets, options.errors)
        lines = (Line(pair.src, pair.tgt) for pair in pairs)
    else:
        texts = line_io.read_input(args.texts, options.input, is_at_prompt, options.errors)
        lines = (None if text is None else Line(text) for text in texts)
    if args.texts:
        lines = iter([*lines])  # refuse what is not UTF-8 before the model is loaded
    translator, fault_report = args.load(few_texts=is_interactive)
    from transformer_mt.flows.translation import translate_lines

    translate_lines(
        translator,
        lines,
        Format(options.format, translator.config.n_best, options.scores, options.alignments),
        options.output,
        scores_targets=options.score_targets is not None,
        is_repeatable=options.input is not None,
        resume=options.resume,
        is_interactive=is_interactive,
    )
    return fault_report


def _check_arguments(args: Translate) -> None:
    if args.markup.markup == "none" and args.markup.protect_patterns:
        raise UserError("--markup none protects no elements: leave it out, or remove --protect-pattern")
    if args.texts and args.lines.input:
        raise UserError("translate: give texts or --input, not both")
    for text in args.texts:
        # os.path, because `Path` raises an error for a long text
        if args.ensemble and os.path.isdir(text):  # noqa: PTH112
            raise UserError(f"translate: {text} is a folder, but was read as a text; repeat --ensemble for it")
        if os.path.isfile(text):  # noqa: PTH113
            advice = f"translate --input {quote(text)} reads its lines"
            log_rank0(f"tmt: warning: {text} is a file, but was read as a text; {advice}")
    glossary = Path(args.terminology.glossary) if args.terminology.glossary else None
    files = (args.lines.input, args.lines.score_targets, glossary)
    line_io.check_files(*files)
    check_output(args.lines.output, *files)
    if args.lines.resume and not (args.lines.input and args.lines.output):
        raise UserError("translate: --resume needs --input and --output; other input cannot be read again")
    if args.lines.verbose and args.lines.guard is False:
        raise UserError("translate: --verbose lists what --guard finds; leave out one of --verbose and --no-guard")
    if args.lines.guard and args.sampling.sample:
        raise UserError("translate: --guard repairs no random samples; leave out one of --guard and --sample")
    if args.lines.score_targets:
        groups = (args, args.lines, args.documents, args.markup, args.terminology, args.search, args.sampling)
        if given := [name for name in list_given_flags(*groups) if name not in SCORING_OPTIONS]:
            raise UserError(f"translate: --score-targets does not translate; leave out {', '.join(given)}")
        if not args.lines.input:
            raise UserError("translate: --score-targets needs the source sentences: pass them as --input F")
    line_io.check_same_length(args.lines.input, args.lines.score_targets, args.lines.errors)


# --- documents -------------------------------------------------------------------------------------------------------


def _find_document_format(args: Translate) -> DocumentFormat | None:
    """Return the format of the document to translate; None if the input has lines.

    Raises `UserError` if options do not fit a document, or options of documents do not fit lines.
    """
    if args.lines.score_targets:
        return None
    if args.documents.document_format and not args.lines.input:
        raise UserError("--document-format: a document is a file; pass it as --input F")
    document_format = None
    if args.lines.input and args.documents.document_format != LINES:
        from transformer_mt.tools.documents.formats import check_is_plain, find_format

        document_format = args.documents.document_format or find_format(args.lines.input)
        if document_format is None:
            check_is_plain(args.lines.input)
    if document_format:
        _check_document_options(args, document_format)
        return document_format
    for name in list_given_flags(args.documents):
        if name != "--document-format":
            raise UserError(f"{name}: is for documents; pass --input with a name such as page.html")
    return None


def _check_document_options(args: Translate, document_format: DocumentFormat) -> None:
    """Raise `UserError` for options that make no sense for a document."""
    given = [name for name in list_given_flags(args.lines) if name not in DOCUMENT_OPTIONS]
    given += ["--n-best"] if args.n_best not in (None, 1) else []
    given += ["--markup none"] if args.markup.markup == "none" else []
    if given:
        advice = f"leave it out, or translate its lines with --document-format {LINES}"
        raise UserError(f"{given[0]}: {args.lines.input} is translated as a document ({document_format}); {advice}")
    if args.engine == "ctranslate2":
        message = f"{args.lines.input}: CTranslate2 cannot keep the markup of a document"
        raise UserError(f"--engine ctranslate2: {message}; use --engine torch instead")
    for name, is_given, formats, reason in (
        ("--retranslate", args.documents.retranslate, "po tmx xliff", "only PO, TMX and XLIFF have translations"),
        ("--exclude-keys", args.documents.exclude_keys, "json", "only JSON has keys"),
    ):
        if is_given and document_format not in formats.split():
            raise UserError(f"{name}: {reason}, and {args.lines.input} is {document_format}; leave it out")


def _translate_document(args: Translate, source: Path, document_format: DocumentFormat) -> FaultReport:
    from transformer_mt.flows.translation import translate_document
    from transformer_mt.tools.documents.document import DocumentOptions

    translator, fault_report = args.load()
    provenance = translator.provenance()
    has_one_language = document_format != "xliff" or not provenance.src_langs
    options = DocumentOptions(
        provenance.tgt_lang,
        provenance.src_lang if has_one_language else "",
        args.documents.retranslate,
        frozenset(args.documents.exclude_keys),
    )
    translate_document(translator, source, args.lines.output, document_format, options)
    return fault_report
