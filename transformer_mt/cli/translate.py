"""`tmt translate`: translate lines of text, or a document."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from transformer_mt import __version__
from transformer_mt.choices import DocumentFormat, ElementKind, HtmlAttribute, MarkupMode, SplitWhen
from transformer_mt.cli.command import (
    Command,
    OptionGroup,
    collect_given,
    flag,
    group,
    list_given_flags,
    option,
    positional,
)
from transformer_mt.cli.options import (
    EngineName,
    LoadingOptions,
    SamplingOptions,
    SearchOptions,
    collect_overrides,
    engine_option,
    ensemble_option,
    errors_option,
    guard_option,
    load_translator,
    split_sentences_option,
)
from transformer_mt.data.text_files import Errors, read_pairs
from transformer_mt.errors import UserError
from transformer_mt.flows import line_input
from transformer_mt.flows.line_input import Line
from transformer_mt.flows.line_output import (
    Format,
    OutputKind,
    Settings,
    check_output,
    is_complete,
    open_output,
    process_lines,
    score_columns,
)
from transformer_mt.system.log import ProgressReport, log, log_rank0

if TYPE_CHECKING:
    from transformer_mt.decoding.line_splitting import LineTranslator
    from transformer_mt.decoding.translator import ModelProvenance, Translation, Translator
    from transformer_mt.tools.markup.elements import MarkedText
    from transformer_mt.tools.markup.glossary import Glossary, TranslationMemory
    from transformer_mt.tools.robustness.guard import Guard


DOCUMENT_OPTIONS = {"--input", "--output", "--split-sentences", "--guard", "--verbose"}
N_DETECTED = 10  # lines of a window whose language is checked at once, and first lines that are checked at all
MIN_CHARACTERS = 30  # of a text whose language is checked: a shorter one is hardly ever certain
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
    prefix: Path | None = option("force the translation of line N to begin with line N of this file", metavar="F")
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
        "Documents are files with a suffix of HTML, Markdown (.md), PO, XLIFF (.xlf), TMX, JSON, SRT, VTT or ASS."
    )

    document_format: Literal[DocumentFormat, "text"] | None = option(
        "format of --input, if its suffix does not say it; text: lines, whatever its suffix"
    )
    attributes: tuple[HtmlAttribute, ...] = option(
        "HTML: also translate these attributes: alt, aria-label, placeholder, title",
        default=(),
        metavar="NAME",
        takes_list=True,
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
        "auto or align: place elements by word alignment; none (default): elements are text"
    )
    protect: tuple[ElementKind, ...] | None = option(
        "kinds of elements: tags (HTML, XML), placeholders ({name}, %%s), urls, emails, files, versions (v0.85.x, "
        "RTX-4090), mentions (@name, #tag), symbols (emoji, :smile:), numbers (default: all but numbers); implies "
        "--markup auto",
        metavar="KIND",
        takes_list=True,
    )
    protect_patterns: tuple[str, ...] | None = option(
        "also protect the matches of a regular expression; implies --markup auto; may be repeated",
        metavar="REGEX",
        flag="--protect-pattern",
    )


@dataclass(frozen=True, kw_only=True)
class TerminologyOptions(OptionGroup):
    """Glossary and translation memory."""

    TITLE: ClassVar[str] = "terminology"

    glossary: str | None = option(
        "TSV file of terms: source, translation (variants separated by |), and options: case, keep", metavar="F"
    )
    memory: Path | None = option(
        "translation memory (.tsv or .tmx): lines that it contains get their translations from it", metavar="F"
    )


@dataclass(frozen=True, kw_only=True)
class Translate(Command):
    """Translate text from arguments, a file, standard input or a prompt."""

    EXAMPLE: ClassVar[str] = (
        "tmt translate runs/mine --markup auto --glossary terms.tsv --input page.html --output page.de.html"
    )

    run: Path = positional(
        "a run folder, such as runs/quickstart, or a folder made by tmt export --to ctranslate2", metavar="RUN"
    )
    texts: tuple[str, ...] = positional(
        "text to translate (default: --input, else standard input, or a prompt on a terminal)",
        metavar="text",
        default=(),
    )
    engine: EngineName | None = engine_option()
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

    def collect_overrides(self) -> dict[str, Any]:
        """Return the given options as keys of section `decoding`."""
        groups = (self.search, self.sampling, self.markup)
        others = {"engine": self.engine, "n_best": self.n_best, "glossary": self.terminology.glossary}
        return collect_overrides(*groups, **others, guard=self.lines.guard)

    @property
    def needs_scores(self) -> bool:
        """Return whether scores are written."""
        return self.lines.scores or self.lines.format != "text"

    @property
    def is_exported(self) -> bool:
        """Return whether RUN was made by `tmt export --to ctranslate2`."""
        from transformer_mt.runs.folder import EXPORT, RunFolder

        return (self.run / EXPORT).exists() and not RunFolder(self.run).exists()

    def execute(self) -> None:
        """Run `tmt translate`."""
        _check_arguments(self)
        document_format = _find_document_format(self)
        if document_format and self.lines.input:
            _translate_document(self, self.lines.input, self.lines.output, document_format)
            return
        if self.lines.resume and self.lines.output and is_complete(self.lines.output):
            log(f"tmt: {self.lines.output} is complete; nothing to resume (to translate again, leave out --resume)")
            return
        is_at_prompt = not self.texts and not self.lines.input and sys.stdin.isatty() and sys.stdout.isatty()
        is_interactive = bool(self.texts) or is_at_prompt
        if self.lines.input and self.lines.score_targets:
            pairs = read_pairs(self.lines.input, self.lines.score_targets, self.lines.errors)
            lines = (Line(pair.src, pair.tgt) for pair in pairs)
        else:
            texts = line_input.read_input(self.texts, self.lines.input, is_at_prompt, self.lines.errors)
            lines = line_input.add_prefixes(texts, self.lines.prefix, self.lines.errors)
        if self.texts:
            lines = iter([*lines])  # check their number before the model is loaded
        if self.is_exported and self.engine != "torch":
            provenance, translator = _load_exported(self)
        else:
            provenance, translator = _load_run(self, few_texts=is_interactive)
        self.sampling.check(self.search, "translate", translator.config.sample)
        progress = ProgressReport("scored" if self.lines.score_targets else "translated")
        window_translator = WindowTranslator(self, provenance, translator, progress)
        process_lines(
            lines,
            window_translator.score if self.lines.score_targets else window_translator.translate,
            self.lines.output,
            window_translator.settings() if self.lines.input else None,
            resume=self.lines.resume,
            is_interactive=is_interactive,
            progress=progress,
        )
        if window_translator.n_terms:
            log_rank0(f"tmt: terms used: {window_translator.n_used_terms:,} of {window_translator.n_terms:,}")
        _report_faults(window_translator.guard, self.lines)


def _check_arguments(args: Translate) -> None:
    if args.markup.markup == "none" and (args.markup.protect or args.markup.protect_patterns):
        raise UserError("--markup none protects no elements: leave it out, or remove --protect and --protect-pattern")
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
    files = (args.lines.input, args.lines.prefix, args.lines.score_targets, glossary, args.terminology.memory)
    line_input.check_files(*files)
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
    line_input.check_same_length(args.lines.input, args.lines.prefix or args.lines.score_targets, args.lines.errors)


def _load_run(
    args: Translate, document_format: DocumentFormat | None = None, *, few_texts: bool = False
) -> tuple[ModelProvenance, Translator]:
    reason = _find_torch_reason(args, document_format)
    if args.lines.prefix and args.engine != "ctranslate2":
        reason = reason or "--prefix: CTranslate2 ranks translations with prefixes in another way"
    translator = load_translator(
        args.run,
        args.loading,
        args.collect_overrides(),
        ensemble=args.ensemble,
        few_texts=few_texts,
        chooses_engine=True,
        torch_reason=reason,
        scores=args.needs_scores,
    )
    from transformer_mt.decoding.translator import ModelProvenance

    return ModelProvenance.of_translator(translator), translator


def _load_exported(args: Translate) -> tuple[ModelProvenance, Translator]:
    """Load a folder for CTranslate2."""
    if args.ensemble:
        raise UserError(f"--ensemble: {args.run} is a model for CTranslate2, which has one model; pass the runs")
    if reason := _find_torch_reason(args, None):
        raise UserError(f"{reason}, and {args.run} is a model for it; translate with the run itself")
    try:
        from transformer_mt.tools.export import ctranslate2_engine
    except ImportError as error:
        raise UserError(f"{args.run}: CTranslate2 cannot be imported ({error}); pip install ctranslate2") from None
    options = {**collect_given(args.loading), **args.collect_overrides()}
    translator = ctranslate2_engine.load_translator(args.run, scores=args.needs_scores, **options)
    return ctranslate2_engine.read_provenance(args.run, translator.precision), translator


def _find_torch_reason(args: Translate, document_format: DocumentFormat | None) -> str:
    """Return why only PyTorch can do what is wanted, or an empty text."""
    if document_format:
        return f"{args.lines.input}: CTranslate2 cannot keep the markup of a document"
    if args.lines.score_targets:
        return "--score-targets: CTranslate2 does not compute it"
    return "--alignments: CTranslate2 has none" if args.lines.alignments else ""


def _make_line_translator(
    args: Translate, provenance: ModelProvenance, translator: Translator
) -> tuple[LineTranslator, TranslationMemory | None, Guard | None]:
    """Return the translator of lines, with the translation memory and the guard that it uses, if they are wanted."""
    from transformer_mt.decoding.line_splitting import LineTranslator

    memory = guard = None
    if args.terminology.memory:
        from transformer_mt.tools.markup.glossary import TranslationMemory

        memory = TranslationMemory.read(args.terminology.memory, provenance.src_lang, provenance.tgt_lang)
    if translator.config.guard:
        from transformer_mt.tools.robustness.guard import Fault, Guard, ignore_faults

        def report(number: int, before: Sequence[Fault], after: Sequence[Fault]) -> None:
            result = f"not repaired ({', '.join(dict.fromkeys(map(str, after)))})" if after else "repaired"
            log_rank0(f"tmt: line {number}: {', '.join(dict.fromkeys(map(str, before)))}: {result}")

        guard = Guard.make(provenance, translator.config, report if args.lines.verbose else ignore_faults)
    look_up = memory and memory.look_up
    return LineTranslator.make(translator, provenance, args.lines.split_sentences, look_up, guard), memory, guard


def _report_faults(guard: Guard | None, options: LineOptions) -> None:
    if guard is not None and (found := guard.describe()):
        log_rank0(f"tmt: {found}{'' if options.verbose else '; --verbose lists them'}")


# --- lines -----------------------------------------------------------------------------------------------------------


class WindowTranslator:
    """Translates windows of lines, long lines sentence by sentence, and formats the translations."""

    def __init__(
        self, args: Translate, provenance: ModelProvenance, translator: Translator, progress: ProgressReport
    ) -> None:
        """`progress` is updated inside of a window."""
        self.args, self.provenance, self.translator, self.progress = args, provenance, translator, progress
        self.glossary: Glossary | None = None
        self.has_warned = False  # of a text in another language
        self.n_terms, self.n_used_terms = 0, 0  # in the sources, and of those in the best translations
        if translator.config.glossary is not None:
            from transformer_mt.tools.markup.stages import read_glossary

            self.glossary = read_glossary(translator.config.glossary)
        self.line_translator, self.memory, self.guard = _make_line_translator(args, provenance, translator)
        self.format = Format(
            args.lines.format,
            translator.config.n_best,
            args.lines.scores,
            args.lines.alignments,
            self.memory is not None,
        )

    def settings(self) -> Settings:
        """Return all settings that affect the translations. `--resume` compares them."""
        return {
            "tmt": __version__,
            **self.provenance.identity,
            "--score-targets": str(self.args.lines.score_targets is not None),
            "--split-sentences": self.args.lines.split_sentences,
            "--guard": str(self.guard is not None),
            "--format": self.format.kind,
            "--scores": str(self.format.scores),
            "--alignments": str(self.format.alignments),
            "--glossary": str(self.glossary and self.glossary.digest),
            "--memory": str(self.memory and self.memory.digest),
            **{f"decoding.{key}": str(value) for key, value in self.translator.config.output_options().items()},
        }

    def translate(self, window: Sequence[Line], first_number: int) -> str:
        """Return the output text for the lines of a window, which are numbered from `first_number`."""
        line_numbers = range(first_number, first_number + len(window))
        if first_number <= N_DETECTED and not self.provenance.src_langs and not self.has_warned:
            self._check_language("\n".join(line.src for line in window), is_long=len(window) >= N_DETECTED)
        translated = self.line_translator.translate(
            [line.src for line in window],
            [line.tgt for line in window],
            line_numbers,
            alignments=self.format.alignments,
            on_lines=lambda done: self.progress.update(first_number - 1 + done),
        )
        output: list[str] = []
        for number, line, translation in zip(line_numbers, window, translated, strict=True):
            n_best = translation.join()
            output += self.format.lines(number, line.src, n_best)
            self._count_terms(translation.source, n_best[0])
        return "".join(f"{line}\n" for line in output)

    def _check_language(self, text: str, *, is_long: bool) -> None:
        """Warn of another language. A thread checks a short text, because loading takes half a second."""
        if is_long:
            self._warn_of_language(text)
        elif sys.stderr.isatty() and len(text) >= MIN_CHARACTERS:
            Thread(target=self._warn_of_language, args=(text,)).start()

    def _warn_of_language(self, text: str) -> None:
        from transformer_mt.tools.languages.detection import find_other_language, language_name

        expected = self.provenance.src_lang
        if other := find_other_language([text], expected):
            self.has_warned = True
            names = language_name(other), language_name(expected)
            log_rank0("tmt: warning: the text seems to be {}, and the model translates {}".format(*names))

    def score(self, window: Sequence[Line], first_number: int) -> str:
        """Return the output text for the pairs of a window, which are numbered from `first_number`."""
        sources, targets = zip(*window, strict=True)
        line_numbers = range(first_number, first_number + len(window))
        scored = self.translator.score(sources, targets, line_numbers)
        if self.format.kind == "text":
            return "".join("\t".join(score_columns(translation)) + "\n" for translation in scored)
        rows = zip(line_numbers, sources, scored, strict=True)
        return "".join(f"{line}\n" for row in rows for line in self.format.lines(*row[:2], [row[2]]))

    def _count_terms(self, source: MarkedText | str, best: Translation) -> None:
        if self.glossary is None or best.from_memory:
            return

        from transformer_mt.tools.markup.elements import MarkedText
        from transformer_mt.tools.markup.stages import get_marked_text

        source = source if isinstance(source, MarkedText) else MarkedText.from_text(source)
        used, needed = self.glossary.count_used(source, get_marked_text(best))
        self.n_used_terms += used
        self.n_terms += needed


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
    if args.is_exported:
        raise UserError(f"{args.run}: CTranslate2 cannot keep the markup of a document; translate with the run")
    for name, is_given, formats, reason in (
        ("--attributes", args.documents.attributes, "html", "only HTML has attributes"),
        ("--retranslate", args.documents.retranslate, "po tmx xliff", "only PO, TMX and XLIFF have translations"),
        ("--exclude-keys", args.documents.exclude_keys, "json", "only JSON has keys"),
    ):
        if is_given and document_format not in formats.split():
            raise UserError(f"{name}: {reason}, and {args.lines.input} is {document_format}; leave it out")


def _translate_document(args: Translate, source: Path, target: Path | None, document_format: DocumentFormat) -> None:
    """Write the translated document to a file, or to standard output (None)."""
    from transformer_mt.tools.documents.formats import (
        DocumentOptions,
        adapt_translator,
        fill_document,
        make_lines,
        read_document,
    )

    provenance, translator = _load_run(args, document_format)
    args.sampling.check(args.search, "translate", translator.config.sample)
    options = DocumentOptions(
        provenance.tgt_lang,
        provenance.src_lang,
        args.documents.attributes,
        args.documents.retranslate,
        frozenset(args.documents.exclude_keys),
    )
    document = read_document(source, document_format, options)
    line_translator, _, guard = _make_line_translator(args, provenance, translator.with_options({"n_best": 1}))
    lines = make_lines(document)
    progress = ProgressReport("translated", len(lines), "segments")
    with progress.show():
        translated = adapt_translator(line_translator).translate(
            lines, [""] * len(lines), document.line_numbers(), on_lines=progress.update
        )
    with open_output(target) as file:
        file.write((), fill_document(document, translated))
    _report_faults(guard, args.lines)
    n_segments = f"{len(lines):,} segment{'' if len(lines) == 1 else 's'}"
    log(f"tmt: translated {n_segments} of {source} to {target or 'standard output'}")
