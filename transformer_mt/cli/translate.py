"""`tmt translate`: translate lines of text.

Imports of torch are inside functions, so that mistakes in the arguments are reported at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt import __version__
from transformer_mt.cli import line_input
from transformer_mt.cli.formats import Format
from transformer_mt.cli.line_input import Line
from transformer_mt.cli.line_output import Settings, check_output, process_lines
from transformer_mt.cli.options import (
    check_sampling_options,
    get_decoding_options,
    get_loading_options,
    load_memory,
    load_translator,
)
from transformer_mt.cli.translate_document import find_document_format, translate_document
from transformer_mt.errors import UserError
from transformer_mt.system.log import ProgressReport, log_rank0

if TYPE_CHECKING:
    from transformer_mt.decoding.chunked_translator import ChunkedTranslator
    from transformer_mt.decoding.confidence import Calibration
    from transformer_mt.decoding.line_splitting import SplitWhen
    from transformer_mt.decoding.provenance import ModelProvenance
    from transformer_mt.decoding.text_translator import TextTranslator
    from transformer_mt.decoding.translation import Translation
    from transformer_mt.tools.markup.elements import MarkedText
    from transformer_mt.tools.markup.glossary import Glossary
    from transformer_mt.tools.markup.translation_memory import TranslationMemory


def run(args: argparse.Namespace) -> None:
    """Run `tmt translate`."""
    _check_arguments(args)
    document_format = find_document_format(args)
    if document_format is not None:
        translate_document(args, document_format, lambda: _load_run(args, few_texts=False))
        return
    is_at_prompt = not args.texts and not args.input and sys.stdin.isatty() and sys.stdout.isatty()
    is_interactive = bool(args.texts) or is_at_prompt
    texts = line_input.read_input(args.texts, args.input, is_at_prompt, args.errors)
    lines = line_input.add_prefixes(texts, args.prefix, args.errors)
    if args.texts:
        lines = iter([*lines])  # check their number before the model is loaded
    provenance, translator = (
        _load_ctranslate2(args) if args.engine == "ctranslate2" else _load_run(args, is_interactive)
    )
    check_sampling_options(args, translator.config.sample)
    progress = ProgressReport("translated")
    calibration = translator.load_calibration() if args.confidence else None
    line_translator = LineTranslator(
        provenance,
        translator,
        args.split_sentences,
        Format(args.format, translator.config.n_best, args.scores, args.alignments, args.memory is not None),
        progress,
        calibration,
        translator.glossary,
        load_memory(args.memory, provenance),
    )
    process_lines(
        lines,
        line_translator.translate,
        args.output,
        line_translator.settings() if args.input else None,
        resume=args.resume,
        is_interactive=is_interactive,
        progress=progress,
    )
    line_translator.terms.log()


def _check_arguments(args: argparse.Namespace) -> None:
    line_input.check_input(args.texts, args.input, "translate")
    glossary = Path(args.glossary) if args.glossary else None
    line_input.check_files(args.prefix, glossary, args.memory)
    check_output(args.output, args.input, args.prefix, glossary, args.memory)
    if args.resume and not (args.input and args.output):
        raise UserError("translate: --resume needs --input and --output; other input cannot be read again")
    if args.ensemble:
        for text in args.texts:
            if os.path.isdir(text):  # noqa: PTH112  (Path.is_dir raises an error for a long text)
                raise UserError(f"translate: {text} is a folder, but was read as a text; repeat --ensemble for it")
    if args.engine == "ctranslate2" and args.ensemble:
        raise UserError("--engine ctranslate2: it translates with one model; leave out --ensemble")
    if args.engine == "ctranslate2" and args.alignments:
        raise UserError("--engine ctranslate2: it has no alignments; leave out --alignments, or translate with the run")
    if args.confidence and (args.ensemble or args.engine == "ctranslate2"):
        other = "--ensemble" if args.ensemble else "--engine ctranslate2"
        raise UserError(f"--confidence: a calibration is for the model of one run; leave out {other}")
    line_input.check_same_length(args.input, args.prefix, args.errors)


def _load_run(args: argparse.Namespace, few_texts: bool) -> tuple[ModelProvenance, TextTranslator]:
    translator = load_translator(args, args.run, few_texts=few_texts)
    from transformer_mt.decoding.provenance import ModelProvenance

    return ModelProvenance.of_translator(translator), translator


def _load_ctranslate2(args: argparse.Namespace) -> tuple[ModelProvenance, TextTranslator]:
    try:
        from transformer_mt.tools.export import ctranslate2_engine as ctranslate2_metadata
        from transformer_mt.tools.export import ctranslate2_engine as ctranslate2_translator
    except ImportError:
        raise UserError("--engine ctranslate2 needs one more package: pip install ctranslate2") from None
    scores = args.scores or args.format != "text"  # the engine computes them only if they are written
    options = {**get_loading_options(args), **get_decoding_options(args)}
    translator = ctranslate2_translator.CTranslate2Translator.load(args.run, scores=scores, **options)
    return ctranslate2_metadata.read_provenance(args.run, translator.engine.compute_type), translator


@dataclass
class TermCount:
    """Number of terms in the sources, and of those that the best translations use."""

    needed: int = 0
    used: int = 0

    def log(self) -> None:
        """Print the numbers if there was a term."""
        if self.needed:
            log_rank0(f"tmt: terms used: {self.used:,} of {self.needed:,}")


@dataclass(frozen=True)
class LineTranslator:
    """Translates windows of lines, long lines sentence by sentence, and formats the translations."""

    provenance: ModelProvenance
    translator: TextTranslator
    split_sentences: SplitWhen
    format: Format
    progress: ProgressReport
    calibration: Calibration | None = None  # None: without confidences
    glossary: Glossary | None = None
    memory: TranslationMemory | None = None
    terms: TermCount = field(default_factory=TermCount)

    def settings(self) -> Settings:
        """Return all settings that affect the translations. `--resume` compares them."""
        return {
            "tmt": __version__,
            **self.provenance.identity,
            "--split-sentences": self.split_sentences,
            "--format": self.format.kind,
            "--scores": str(self.format.scores),
            "--alignments": str(self.format.alignments),
            "--confidence": str(self.calibration and self.calibration.digest()),
            "--glossary": str(self.glossary and self.glossary.digest),
            "--memory": str(self.memory and self.memory.digest),
            **{f"decoding.{key}": str(value) for key, value in self.translator.config.output_options().items()},
        }

    def translate(self, window: Sequence[Line], first_number: int) -> str:
        """Return the output text for the lines of a window, which are numbered from `first_number`."""
        line_numbers = range(first_number, first_number + len(window))
        translated = self._chunked.translate(
            [line.src for line in window],
            [line.tgt for line in window],
            line_numbers,
            alignments=self.format.alignments,
            confidence=self.calibration is not None,
            on_lines=lambda done: self.progress.update(first_number - 1 + done),
        )
        output: list[str] = []
        for number, line, translation in zip(line_numbers, window, translated, strict=True):
            n_best = translation.join()
            output += self.format.lines(number, line.src, n_best)
            self._count_terms(translation.source, n_best[0])
        return "".join(f"{line}\n" for line in output)

    def _count_terms(self, source: MarkedText, best: Translation) -> None:
        if self.glossary is None or best.from_memory:
            return

        used, needed = self.glossary.count_used(source, best.marked_text)
        self.terms.used += used
        self.terms.needed += needed

    @cached_property
    def _chunked(self) -> ChunkedTranslator:
        from transformer_mt.decoding.chunked_translator import ChunkedTranslator

        return ChunkedTranslator.make(self.translator, self.provenance, self.split_sentences, self.memory)
