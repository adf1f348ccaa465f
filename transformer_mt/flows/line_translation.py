"""Translation of lines and of documents, as `tmt translate` does it: windows of lines go in, output text comes out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from transformer_mt import __version__
from transformer_mt.choices import DocumentFormat
from transformer_mt.flows.line_io import Format, Line, Settings, open_output, process_lines, score_columns
from transformer_mt.system.log import ProgressReport, log, log_rank0

if TYPE_CHECKING:  # imported with the translator, after mistakes in the arguments were reported
    from transformer_mt.decoding.text_stages import Translation
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.documents.document import DocumentOptions
    from transformer_mt.tools.markup.glossary import Glossary, TranslationMemory

N_DETECTED = 10  # a window of as many lines is checked at once; windows that start after as many are not checked
MIN_CHARACTERS = 30  # of a text whose language is checked: a shorter one is hardly ever certain


@dataclass(frozen=True)
class LineTask:
    """What is done with the lines of one command."""

    format: Format
    output: Path | None = None
    memory: Path | None = None  # translation memory
    scores_targets: bool = False  # score the targets of the lines instead of translating
    is_repeatable: bool = False  # the input can be read again, so the output can be resumed
    resume: bool = False
    is_interactive: bool = False  # a person types the lines


def translate_lines(translator: Translator, lines: Iterator[Line | None], task: LineTask) -> None:
    """Translate or score lines, and write each window to the output of the task."""
    progress = ProgressReport("scored" if task.scores_targets else "translated")
    windows = WindowTranslator.make(translator, task, progress)
    process_lines(
        lines,
        windows.score if task.scores_targets else windows.translate,
        task.output,
        windows.settings() if task.is_repeatable else None,
        resume=task.resume,
        is_interactive=task.is_interactive,
        progress=progress,
    )
    if windows.n_terms:
        log_rank0(f"tmt: terms used: {windows.n_used_terms:,} of {windows.n_terms:,}")


@dataclass
class WindowTranslator:
    """Translates windows of lines, and formats the translations."""

    translator: Translator
    task: LineTask
    progress: ProgressReport  # is updated inside of a window
    format: Format
    memory: TranslationMemory | None
    glossary: Glossary | None
    has_warned: bool = field(default=False, init=False)  # of a text in another language
    n_terms: int = field(default=0, init=False)  # in the sources
    n_used_terms: int = field(default=0, init=False)  # of those, in the best translations

    @classmethod
    def make(cls, translator: Translator, task: LineTask, progress: ProgressReport) -> WindowTranslator:
        """Read the glossary and the translation memory, if there are any."""
        glossary = memory = None
        if translator.config.glossary is not None:
            from transformer_mt.tools.markup.stages import read_glossary

            glossary = read_glossary(translator.config.glossary)
        if task.memory:
            memory, translator = read_memory(translator, task.memory)
        output_format = replace(task.format, n_best=translator.config.n_best, has_memory=memory is not None)
        return cls(translator, task, progress, output_format, memory, glossary)

    def settings(self) -> Settings:
        """Return all settings that affect the translations. `--resume` compares them."""
        return {
            "tmt": __version__,
            **self.translator.provenance().identity,
            "--score-targets": str(self.task.scores_targets),
            "--split-sentences": self.translator.features.split,
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
        if first_number <= N_DETECTED and not self.translator.provenance().src_langs and not self.has_warned:
            self._check_language("\n".join(line.src for line in window), is_long=len(window) >= N_DETECTED)
        n_best_lists = self.translator.n_best(
            [line.src for line in window],
            [line.tgt for line in window],
            line_numbers,
            alignments=self.format.alignments,
            scores=self.format.has_scores,
            on_batch=lambda done: self.progress.update(first_number - 1 + done),
        )
        output: list[str] = []
        for number, line, n_best in zip(line_numbers, window, n_best_lists, strict=True):
            output += self.format.lines(number, line.src, n_best)
            self._count_terms(line.src, n_best[0])
        return "".join(f"{line}\n" for line in output)

    def score(self, window: Sequence[Line], first_number: int) -> str:
        """Return the output text for the pairs of a window, which are numbered from `first_number`."""
        sources, targets = zip(*window, strict=True)
        line_numbers = range(first_number, first_number + len(window))
        scored = self.translator.score(sources, targets, line_numbers)
        if self.format.kind == "text":
            return "".join("\t".join(score_columns(translation)) + "\n" for translation in scored)
        rows = zip(line_numbers, sources, scored, strict=True)
        return "".join(f"{line}\n" for row in rows for line in self.format.lines(*row[:2], [row[2]]))

    def _check_language(self, text: str, *, is_long: bool) -> None:
        """Warn of another language. A thread checks a short text, because loading takes half a second."""
        if is_long:
            self._warn_of_language(text)
        elif sys.stderr.isatty() and len(text) >= MIN_CHARACTERS:
            Thread(target=self._warn_of_language, args=(text,)).start()

    def _warn_of_language(self, text: str) -> None:
        from transformer_mt.tools.languages.detection import find_other_language, language_name

        expected = self.translator.provenance().src_lang
        if other := find_other_language([text], expected):
            self.has_warned = True
            names = language_name(other), language_name(expected)
            log_rank0("tmt: warning: the text seems to be {}, and the model translates {}".format(*names))

    def _count_terms(self, source: str, best: Translation) -> None:
        if self.glossary is None or best.from_memory:
            return
        from transformer_mt.tools.markup.elements import to_marked_text

        marked = to_marked_text(self.translator.read(source))
        used, needed = self.glossary.count_used(marked, to_marked_text(best.content))
        self.n_used_terms += used
        self.n_terms += needed


def read_memory(translator: Translator, path: Path) -> tuple[TranslationMemory, Translator]:
    """Return a translation memory in the languages of a translator, and the translator with it."""
    from transformer_mt.tools.markup.glossary import TranslationMemory

    provenance = translator.provenance()
    memory = TranslationMemory.read(path, provenance.src_lang, provenance.tgt_lang)
    return memory, translator.with_features(replace(translator.features, look_up=memory.look_up))


def translate_document(
    translator: Translator,
    source: Path,
    target: Path | None,
    document_format: DocumentFormat,
    options: DocumentOptions,
    memory: Path | None = None,
) -> None:
    """Write the translated document to a file, or to standard output (None)."""
    from transformer_mt.tools.documents.formats import fill_document, make_segments, protect_elements, read_document

    if memory:
        _, translator = read_memory(translator, memory)
    document = read_document(source, document_format, options)
    segments = make_segments(document)
    progress = ProgressReport("translated", len(segments), "segments")
    with progress.show():
        translated = protect_elements(translator).n_best(
            segments, line_numbers=document.line_numbers(), scores=False, on_batch=progress.update, n_best=1
        )
    with open_output(target) as file:
        file.write((), fill_document(document, translated))
    n_segments = f"{len(segments):,} segment{'' if len(segments) == 1 else 's'}"
    log(f"tmt: translated {n_segments} of {source} to {target or 'standard output'}")
