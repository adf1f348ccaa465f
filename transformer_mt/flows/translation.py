"""Loading of a translator, and translation of lines and documents with it, as `tmt translate` does.

A translator is a run or an ensemble, with the engine that suits the machine. Windows of lines go in, and output text
comes out.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from transformer_mt import __version__
from transformer_mt.choices import DocumentFormat, SplitWhen
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import Format, Line, Settings, open_output, process_lines, score_columns
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import (
    configure_process,
    is_cpu,
    keep_freed_memory,
    resolve_machine,
    set_waiting,
)
from transformer_mt.system.log import ProgressReport, log, log_rank0

if TYPE_CHECKING:  # translator, guard and engines are imported after the arguments were checked
    from transformer_mt.decoding.hooks import OnFault, ReviewPolicy, TextStage, TranslatorHooks
    from transformer_mt.decoding.interface import LoadedRun, ModelProvenance
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.documents.document import DocumentOptions
    from transformer_mt.tools.robustness.guard import FaultReport


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded."""

    checkpoint: str = "best"
    """best, last, or the number of a step."""
    device: str = "auto"
    """auto, or a device of PyTorch such as cpu, cuda or mps."""
    threads: int | str = "auto"
    """CPU threads, or auto. PyTorch ignores it unless `owns_process` is set."""
    precision: str = "auto"
    """Precision of the matrix products (fp32, bf16 or fp16); auto takes the fastest one."""
    ensemble: str | Path | Sequence[str | Path] = ()
    """Further runs with the same vocabulary, loaded at the same checkpoint. The first run's settings apply."""
    few_texts: bool = False
    """Few texts on a CPU: precision auto is fp32, and threads share the sentences of a wide model in CTranslate2."""
    split: SplitWhen = "auto"
    """Which lines are divided into sentences (auto, long, always or never)."""
    owns_process: bool = False
    """Configure threads, allocator and caches of this process, as a command does."""


def load_translator(run: str | Path, options: LoadOptions | None = None, **decoding: object) -> Translator:
    """Load a run folder. The training data is not needed.

    On a CPU, `decoding.engine: auto` searches with CTranslate2 if it supports the model and the options, and uses
    PyTorch for what it lacks. The choice is logged.

    Args:
        run: The folder.
        options: How it is loaded.
        **decoding: Keys of the section `decoding`, such as `beam=1`. They override those of the run.

    Raises:
        UserError: A checkpoint cannot be read, the runs of an ensemble do not fit together, an option is invalid, or
            the chosen engine cannot translate.
    """
    options, path = options or LoadOptions(), Path(run)
    others = [options.ensemble] if isinstance(options.ensemble, str | Path) else options.ensemble
    folders = [RunFolder.open(each) for each in (path, *map(Path, others))]
    config = folders[0].read_section("decoding", DecodingConfig, logs_removed=True).with_options(decoding)
    if "length_penalty_exponent" in decoding and config.n_beams == 1:
        raise UserError("decoding.length_penalty_exponent: ranks hypotheses, and there is only one: raise --beam")
    for folder in folders:
        folder.find_checkpoint(options.checkpoint)
    with _collect_no_garbage(options.owns_process):
        return _load_ctranslate2(folders[0], config, options) or _load_torch(folders, config, options)


@contextmanager
def _collect_no_garbage(owns_process: bool) -> Generator[None]:
    """Collect no garbage in a process that is ours: importing torch makes many objects that live until the end.

    To search them takes half a second.
    """
    if not owns_process:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _load_torch(folders: Sequence[RunFolder], config: DecodingConfig, options: LoadOptions) -> Translator:
    """Load runs with PyTorch."""
    from transformer_mt.decoding.engine import load_engine
    from transformer_mt.decoding.translator import Translator

    precision = options.precision
    if options.few_texts and precision == "auto" and is_cpu(options.device):
        precision = "fp32"  # products in bf16 are faster only in batches
    machine = resolve_machine(options.device, precision, options.threads, owns_process=options.owns_process)
    if options.owns_process:
        configure_process(machine)
        if machine.device.type == "cpu":
            set_waiting("auto", machine.threads)
    engine, runs = load_engine(folders, options.checkpoint, machine.device, machine.precision)
    return Translator(engine, runs[0].tokenizers, config, runs, make_hooks(options))


def _load_ctranslate2(run: RunFolder, config: DecodingConfig, options: LoadOptions) -> Translator | None:
    """Load a run with CTranslate2. Return None if PyTorch must translate; the reason is logged."""
    is_required = config.engine == "ctranslate2"
    if config.engine == "torch" or not (is_required or is_cpu(options.device) or config.is_quantized):
        return None
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.export.ctranslate2_engine import (
        CombinedEngine,
        UnavailableError,
        explain_torch_fallback,
        load_converted,
    )

    found = None
    reason = explain_torch_fallback(config, options.device, options.precision, is_ensemble=bool(options.ensemble))
    if not reason:
        if options.owns_process:
            keep_freed_memory()

        def convert(loaded: LoadedRun, n_positions: int, weight_type: str, folder: Path) -> str:
            from transformer_mt.tools.export import ctranslate2_export

            translator = _load_same_weights(loaded, config, replace(options, device="cpu", precision="fp32"))
            return ctranslate2_export.convert(translator, n_positions, weight_type, folder)

        try:
            found = load_converted(
                run,
                options.checkpoint,
                config,
                options.device if is_required else "cpu",
                options.threads,
                convert,
                few_texts=options.few_texts,
            )
        except UnavailableError as error:
            reason = str(error)
    if found is None:
        if is_required:
            raise UserError(f"--engine ctranslate2: {reason}; use --engine torch instead")
        if config.is_quantized:
            raise UserError(f"quantization {config.quantization}: {reason}; choose auto or float32")
        log_rank0(f"tmt: engine torch: {reason}")
        return None
    engine, loaded = found
    if not is_required:
        engine = CombinedEngine(engine, lambda: _load_same_weights(loaded, config, options).torch_engine)
    return Translator(engine, loaded.tokenizers, config, [loaded], make_hooks(options))


def _load_same_weights(loaded: LoadedRun, config: DecodingConfig, options: LoadOptions) -> Translator:
    """Load a checkpoint with PyTorch. Raises `UserError` if it was replaced or deleted since it was described."""
    translator = _load_torch([loaded.folder], config, replace(options, checkpoint=str(loaded.step)))
    if translator.runs[0].weights_hash != loaded.weights_hash:
        raise UserError(f"{loaded.folder.path}: a running training replaced step {loaded.step:,}; repeat the command")
    return translator


def make_hooks(options: LoadOptions) -> TranslatorHooks:
    """Return the division of lines, the stages, and the guard."""
    from transformer_mt.decoding.hooks import TranslatorHooks

    return TranslatorHooks(options.split, _make_stages, _make_policy)


def attach_fault_report(translator: Translator, on_fault: OnFault | None = None) -> tuple[Translator, FaultReport]:
    """Return a copy of the translator that reports faulty lines, and the `FaultReport` that collects them."""
    from transformer_mt.tools.robustness.guard import FaultReport

    report = FaultReport(on_fault)
    return translator.with_hooks(replace(translator.hooks, on_fault=report.add)), report


def _make_stages(config: DecodingConfig, tokenizers: TokenizerPair) -> Sequence[TextStage]:
    """Return the stages that section `decoding` asks for. The first call imports their modules."""
    from transformer_mt.tools.markup.stages import make_stages

    return make_stages(config, tokenizers)


def _make_policy(provenance: ModelProvenance, config: DecodingConfig) -> ReviewPolicy | None:
    """Return the guard, or None if it is switched off. The first call imports its module."""
    from transformer_mt.tools.robustness.guard import Guard

    return Guard.make(provenance, config)


# --- lines ------------------------------------------------------------------------------------------------------------

N_DETECTED = 10  # only windows that start within these lines are checked, and one of this size at once
MIN_CHARACTERS = 30  # of a text whose language is checked: a shorter one is hardly ever certain


def translate_lines(
    translator: Translator,
    lines: Iterator[Line | None],
    output_format: Format,
    output: Path | None = None,
    *,
    scores_targets: bool = False,
    is_repeatable: bool = False,
    resume: bool = False,
    is_interactive: bool = False,
) -> None:
    """Translate lines, or score their targets, and write each window to the output.

    `is_repeatable`: the input can be read again, so that the output can be resumed. `is_interactive`: a person types
    the lines.
    """
    progress = ProgressReport("scored" if scores_targets else "translated")
    windows = WindowTranslator(translator, output_format, scores_targets, progress)
    settings = windows.settings()  # raises for an invalid glossary before the first line is read
    process_lines(
        lines,
        windows.score if scores_targets else windows.translate,
        output,
        settings if is_repeatable else None,
        resume=resume,
        is_interactive=is_interactive,
        progress=progress,
    )


@dataclass
class WindowTranslator:
    """Translates windows of lines, or scores their targets, and formats the translations."""

    translator: Translator
    format: Format
    scores_targets: bool
    progress: ProgressReport  # is updated inside of a window
    has_warned: bool = field(default=False, init=False)  # of a text in another language

    def settings(self) -> Settings:
        """Return all settings that affect the output. `--resume` compares them."""
        digest = None
        if (path := self.translator.config.glossary) is not None:
            from transformer_mt.tools.markup.stages import read_glossary

            digest = read_glossary(path).digest
        return {
            "tmt": __version__,
            **self.translator.provenance().identity,
            "--score-targets": str(self.scores_targets),
            "--split-sentences": self.translator.hooks.split,
            "--format": self.format.kind,
            "--scores": str(self.format.scores),
            "--alignments": str(self.format.alignments),
            "--glossary": str(digest),
            **{f"decoding.{key}": str(value) for key, value in self.translator.config.output_options().items()},
        }

    def translate(self, window: Sequence[Line], first_number: int) -> str:
        """Return the output text for the lines of a window, which are numbered from `first_number`."""
        line_numbers = range(first_number, first_number + len(window))
        if first_number <= N_DETECTED and not self.has_warned:
            self._check_language("\n".join(line.src for line in window), is_long=len(window) >= N_DETECTED)
        n_best_lists = self.translator.n_best(
            [line.src for line in window],
            line_numbers,
            alignments=self.format.alignments,
            scores=self.format.has_scores,
            on_batch=lambda done: self.progress.update(first_number - 1 + done),
        )
        output: list[str] = []
        for number, line, n_best in zip(line_numbers, window, n_best_lists, strict=True):
            output += self.format.lines(number, line.src, n_best)
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
        self.has_warned = warn_of_other_language(self.translator, text)


def warn_of_other_language(translator: Translator, text: str, name: str = "the text") -> bool:
    """Warn if a text is certainly not in the source language of a model. Return whether it warned."""
    from transformer_mt.tools.languages.detection import describe_other_source

    if problem := describe_other_source(name, text, translator.provenance()):
        log_rank0(f"tmt: warning: {problem}")
    return problem is not None


def translate_document(
    translator: Translator,
    source: Path,
    target: Path | None,
    document_format: DocumentFormat,
    options: DocumentOptions,
) -> None:
    """Write the translated document to a file, or to standard output (None)."""
    from transformer_mt.tools.documents.formats import fill_document, list_sources, protect_elements, read_document

    document = read_document(source, document_format, options)
    segments = list_sources(document)
    progress = ProgressReport("translated", len(segments), "segments")
    with progress.show():
        translated = protect_elements(translator).n_best(
            segments, line_numbers=document.line_numbers(), scores=False, on_batch=progress.update, n_best=1
        )
    with open_output(target) as file:
        file.write((), fill_document(document, translated))
    n_segments = f"{len(segments):,} segment{'' if len(segments) == 1 else 's'}"
    log(f"tmt: translated {n_segments} of {source} to {target or 'standard output'}")
