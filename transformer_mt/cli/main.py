"""The command line: verbs, thin. Heavy imports stand inside each verb, so that `tmt --help` is instant."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from transformer_mt.cli import line_input, line_output
from transformer_mt.cli.parser import DRAWING, decoding_options, make_parser, option, reading_options
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.system import allocator
from transformer_mt.system.logging import log

if TYPE_CHECKING:
    from transformer_mt.cli.line_input import Line
    from transformer_mt.cli.line_output import Settings
    from transformer_mt.config.root import Config
    from transformer_mt.decoding.provenance import ModelProvenance
    from transformer_mt.decoding.text_translator import TextTranslator
    from transformer_mt.decoding.translator import Translator

    Work = Callable[[Sequence[Line], int], str]

WINDOW = 1000  # lines that are translated together, and written


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a verb and exit: 0, 2 for a user's mistake, 128 + N when signal N ended it."""
    args = _parse(arguments)
    if arguments is None and args.verb == "train":  # in a process of its own
        allocator.prefer_tcmalloc()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started it closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # whatever the locale: as files are
    if args.verb != "train" and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)  # so that what is half written goes; a training knows what to do itself
    warnings.showwarning = _show_warning
    threading.excepthook = _show_thread_error
    try:
        VERBS[args.verb](args)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error))
    except Interrupted as stop:
        log(f"tmt: stopped by {signal.Signals(stop.signal).name}{stop.what}")
        sys.exit(128 + stop.signal)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (MemoryError, RuntimeError) as error:
        from transformer_mt.decoding.config import MAX_VALIDATION_TOKENS
        from transformer_mt.system.device import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        remedy = (
            f"decoding.batch_tokens (below {MAX_VALIDATION_TOKENS:,}); or, with --restart, batches.tokens or the "
            "model's size"
            if args.verb == "train"
            else "--batch-tokens (decoding.batch_tokens in config.yaml)"
        )
        _fail(f"there is no memory for this; lower {remedy}")
    except BrokenPipeError:  # whoever read our output has gone; that is no mistake
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except UnicodeEncodeError as error:  # of a path that was read from the system
        if "surrogates" not in error.reason:
            raise
        _fail(f"{error.object}: a name that is not UTF-8, which libraries here cannot open; rename it")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}")
    sys.exit(0)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; overrides, steps, texts and systems may stand behind options too, where argparse no longer knows
    them."""
    parser = make_parser()
    args, rest = parser.parse_known_args(arguments)
    dashes = rest.index("--") if "--" in rest else len(rest)
    rest, literal = rest[:dashes], rest[dashes + 1 :]  # what stands behind it is no option, whatever it looks like
    forms = {"overrides": r"(?!-).*=.*", "steps": r"\d+", "texts": r"(?!--?[A-Za-z]).*", "systems": r"(?!-).*"}
    for name, form in forms.items():
        if hasattr(args, name) and all(re.fullmatch(form, word, re.DOTALL) for word in rest):
            more = [*rest, *literal]
            setattr(args, name, [*getattr(args, name), *(map(Path, more) if name == "systems" else more)])
            return args
    if rest or literal:
        parser.error(f"unrecognized arguments: {' '.join([*rest, *literal])}")
    return args


# --- the verbs --------------------------------------------------------------------------------------------------------


def _train(args: argparse.Namespace) -> None:
    config = _load_config(args)
    from transformer_mt.pipeline import train

    try:
        train.train(config, checkpoint=args.checkpoint, restart=args.restart)
    except Interrupted:
        if args.restart or args.checkpoint != "last":
            log("tmt: --restart and --checkpoint would undo what was saved: leave them out to go on")
        raise


def _translate(args: argparse.Namespace) -> None:
    line_input.check_input(args.texts, args.input, "translate")
    line_input.check_file(args.prefix)
    line_output.check(args.output, args.input, in_place=True)
    line_output.check(args.output, args.prefix)
    if args.resume and not (args.input and args.output):
        raise UserError("translate: --resume goes with --input and --output: only a file can be gone on with")
    for text in args.texts if args.ensemble else ():
        if os.path.isdir(text):  # noqa: PTH112  (unlike Path, it finds nothing wrong with a long text)
            raise UserError(f"translate: {text} is a folder, taken for a text: --ensemble stands before each run")
    line_input.check_prefixes(args.input, args.prefix, args.errors)
    at_prompt = not args.texts and not args.input and sys.stdin.isatty() and sys.stdout.isatty()
    lines = line_input.paired(
        line_input.lines(args.texts, args.input, at_prompt, args.errors), args.prefix, args.errors
    )
    from transformer_mt.cli.translate import Job

    origin, translator = _load_engine(args) if args.engine == "ctranslate2" else _load_run(args)
    for key in () if translator.config.sample else DRAWING:
        if getattr(args, key) is not None:
            raise UserError(f"translate: {option(key)} is of drawing at random; add --sample, or leave it out")
    if translator.config.sample and args.beam is not None:
        raise UserError("translate: --beam is of the search, and what is drawn has none; leave it out, or --sample")
    job = Job(origin, translator, args.split_sentences, args.format, args.scores, args.alignments)
    settings = job.settings() if args.input else None
    _answer(args, lines, settings, job.translate, is_quiet=bool(args.texts) or at_prompt, source=args.input)


def _score(args: argparse.Namespace) -> None:
    for file in (args.src, args.tgt):
        line_input.check_file(file)
    line_output.check(args.output, args.src, args.tgt)
    if args.resume and not args.output:
        raise UserError("score: --resume goes with --output: only a file can be gone on with")
    lines = line_input.translated(args.src, args.tgt, args.errors)
    from transformer_mt.cli.score import Job

    job = Job(*_load_run(args), args.format)
    _answer(args, lines, job.settings(), job.score, is_quiet=False)


def _evaluate(args: argparse.Namespace) -> None:
    line_output.check(args.output, args.src, args.ref)
    from transformer_mt.cli import evaluate

    evaluate.check(vars(args))
    if args.hyp:
        about, found = evaluate.of_file(args.hyp, args.ref, args.tgt_lang, args.text or "raw", args.paper)
    else:
        run = evaluate.RunEvaluation.open(args.run, args.src, args.ref, args.set, args.output, args.paper)
        about, found = run.of(_load_translator(args, args.run), args.checkpoint or "best")
    if args.json:
        print(evaluate.render(about, list(found)))
    else:
        for one in found:
            print(*one.lines(args.show or 0), sep="\n")


def _compare(args: argparse.Namespace) -> None:
    from transformer_mt.cli.compare import Question, compare

    found = compare(Question.of(vars(args)), lambda run: _load_translator(args, run))
    print(found.record() if args.json else "\n".join(found.lines()))


def _export(args: argparse.Namespace) -> None:
    from transformer_mt.cli import export

    print("\n".join(export.run(args)))


def _average(args: argparse.Namespace) -> None:
    from transformer_mt.cli import average
    from transformer_mt.runs.folder import RunFolder

    choice = average.Choice(args.last, args.best, args.steps)
    for line in average.average(RunFolder.open(args.run), choice, args.output, args.device, args.threads):
        print(line)


def _plot(args: argparse.Namespace) -> None:
    text = None if args.text is None else line_input.decode_argument(args.text)
    line_output.check(args.output)
    from transformer_mt.cli import plot

    choice = plot.Choice(text, args.kind, args.layer, args.head)
    plot.check(args.what, choice, args.overrides, args.output)
    subject = plot.Subject.open(args.subject, args.overrides, args.checkpoint)
    print(plot.plot(args.what, subject, choice, args.output))


def _tokenize(args: argparse.Namespace) -> None:
    from transformer_mt.cli import tokenize

    args.texts, overrides = tokenize.split_words(args.subject, args.texts)
    if args.texts or args.input or args.subject.is_dir():  # else a configuration's own validation pairs are read
        line_input.check_input(args.texts, args.input, "tokenize")
    subject = tokenize.Subject.open(args.subject, overrides)
    if args.input or args.texts or subject.validation is None:
        lines = (line for line in line_input.lines(args.texts, args.input, at_prompt=False) if line is not None)
        output = tokenize.look(subject.of(args.side or "src"), lines, args.input)
    else:
        output = subject.reports([args.side] if args.side else ["src", "tgt"])
    for line in output:
        print(line)


def _config(args: argparse.Namespace) -> None:
    from transformer_mt.config.rendering import render_yaml
    from transformer_mt.config.root import json_schema

    print(json_schema() if args.schema else render_yaml(_load_config(args)), end="")


VERBS = {
    "train": _train,
    "translate": _translate,
    "score": _score,
    "evaluate": _evaluate,
    "compare": _compare,
    "export": _export,
    "average": _average,
    "plot": _plot,
    "tokenize": _tokenize,
    "config": _config,
}


# --- their parts ------------------------------------------------------------------------------------------------------


def _load_config(args: argparse.Namespace) -> Config:
    from transformer_mt.config import root as configuration

    is_there = args.config is not None and os.path.exists(args.config)  # noqa: PTH110  (as in `_translate`)
    if args.config is not None and not is_there and "=" in str(args.config):
        args.overrides, args.config = [str(args.config), *args.overrides], None  # tmt config key=value
    return configuration.load(args.config or configuration.builtin_path("quickstart"), args.overrides)


def _load_translator(args: argparse.Namespace, run: Path) -> Translator:
    from transformer_mt.decoding.translator import Translator

    together = getattr(args, "ensemble", None) or ()
    return Translator.load(run, **reading_options(args), ensemble=together, **decoding_options(args))


def _load_run(args: argparse.Namespace) -> tuple[ModelProvenance, TextTranslator]:
    from transformer_mt.decoding.provenance import ModelProvenance

    translator = _load_translator(args, args.run)
    return ModelProvenance.of_translator(translator), translator


def _load_engine(args: argparse.Namespace) -> tuple[ModelProvenance, TextTranslator]:
    """The other engine, in which scores cost something: it is told when nobody looks at them."""
    try:
        from transformer_mt.export import ctranslate2_engine
    except ImportError:
        raise UserError("--engine ctranslate2 needs one more package: pip install ctranslate2") from None
    if args.ensemble:
        raise UserError("--engine ctranslate2: it translates with one model alone; leave out --ensemble")
    if args.alignments:
        raise ctranslate2_engine.no_alignments()
    scores = args.scores or args.format != "text"
    engine = ctranslate2_engine.Engine.load(args.run, **reading_options(args), scores=scores, **decoding_options(args))
    return ctranslate2_engine.provenance(args.run, engine), engine


def _answer(
    args: argparse.Namespace,
    lines: Iterator[Line | None],
    settings: Settings | None,
    work: Work,
    is_quiet: bool,
    source: Path | None = None,
) -> None:
    """Write what becomes of each window of lines, and show how it goes where somebody looks."""
    is_quiet = is_quiet or not sys.stderr.isatty() or (sys.stdout.isatty() and not args.output)
    with (
        line_output.opened(args.output, settings, args.resume, source) as output,
        line_output.progress_bar(output.done.lines, is_quiet) as bar,
    ):
        for window in line_input.windows(output.remaining(lines), WINDOW):
            output.write(window, work(window, output.done.lines + 1))
            bar.update(len(window))


def _exit(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    log(f"tmt: warning: {message}")


def _show_thread_error(error: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread; a disk that does not take it is an error of the main thread, and said there."""
    if not issubclass(error.exc_type, OSError):
        threading.__excepthook__(error)


def _fail(text: str) -> NoReturn:
    log(f"tmt: {text}")
    sys.exit(2)
