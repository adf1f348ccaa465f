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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from transformer_mt import __version__, streams
from transformer_mt.errors import Interrupted, UserError

if TYPE_CHECKING:
    from transformer_mt.config import Config
    from transformer_mt.decoding.translator import Translator

SEVERAL = "several processes: torchrun --nproc-per-node N -m transformer_mt train ... batches.accumulate=N"
OVERRIDES = "override a key of the configuration: model.d_model=512, 'data.train={src: F, tgt: G}'"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a verb and exit: 0, 2 for a user's mistake, 128 + N when signal N ended it."""
    args = _parse(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # whatever the locale: as files are
    warnings.showwarning = _show_warning
    threading.excepthook = _show_thread_error
    try:
        args.verb(args)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error))
    except Interrupted as stop:
        saved = "and saved; the same command goes on from here"
        not_saved = "and not saved, for want of room on the disk; the same command goes on from the last checkpoint"
        _note(f"stopped by {signal.Signals(stop.signal).name} {saved if stop.saved else not_saved}")
        sys.exit(128 + stop.signal)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # whoever read our output has gone; that is no mistake
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(
            f"{place}{error.strerror or error}; nothing half-written was left: mend it and run the same command again"
        )
    sys.exit(0)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; overrides and steps may stand behind options too, where argparse no longer knows them."""
    parser = _parser()
    args, rest = parser.parse_known_args(arguments)
    for name, form in (("overrides", r"(?!-).*=.*"), ("steps", r"\d+")):
        if hasattr(args, name) and all(re.fullmatch(form, word, re.DOTALL) for word in rest):
            setattr(args, name, [*getattr(args, name), *rest])
            return args
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tmt",
        description="Train a Transformer for machine translation from scratch, from one YAML file.",
        epilog="tensorboard --logdir runs shows the curves. configs/reference.yaml names every key.",
    )
    parser.add_argument("--version", action="version", version=f"tmt {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    about = "train a model; the same command again goes on where it stopped"
    train = verbs.add_parser("train", help=about, description=about, epilog=SEVERAL)
    train.add_argument("--config", type=Path, metavar="X.yaml", help="without it, the built-in quickstart")
    train.add_argument("--restart", action="store_true", help="begin anew; the old run is moved aside")
    train.add_argument(
        "--checkpoint",
        default="last",
        metavar="last|best|STEP",
        help="where to go on from (default: last); later checkpoints are deleted",
    )
    train.add_argument("overrides", nargs="*", metavar="section.key=value", help=OVERRIDES)
    train.set_defaults(verb=_train)

    translate = verbs.add_parser("translate", help="translate arguments, standard input, a file, or at a prompt")
    translate.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/quickstart")
    translate.add_argument("texts", nargs="*", metavar="text", help="without any: --input, or standard input")
    translate.add_argument("--input", type=Path, metavar="F", help="translate the lines of a file (plain or .gz)")
    translate.add_argument(
        "--output", type=Path, metavar="G", help="write here instead of to standard output; grows in G.part"
    )
    _add_reading(translate)
    translate.set_defaults(verb=_translate)

    evaluate = verbs.add_parser("evaluate", help="BLEU and chrF of a run's translations, on raw text")
    evaluate.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    evaluate.add_argument("--src", type=Path, metavar="F", help="source sentences; without, the run's own test sets")
    evaluate.add_argument("--ref", type=Path, metavar="G", help="their reference translations, line by line")
    evaluate.add_argument("--show", type=int, default=0, metavar="N", help="print N of the translations")
    _add_reading(evaluate)
    evaluate.set_defaults(verb=_evaluate)

    _add_export(verbs.add_parser("export", help="a run's model for elsewhere: for CTranslate2, or its weights alone"))

    _add_average(verbs.add_parser("average", help="the mean of the weights of several checkpoints, scored"))

    _add_plot(verbs.add_parser("plot", help="draw positions, schedule, attention or lengths, as PNG, SVG or PDF"))

    _add_tokenize(verbs.add_parser("tokenize", help="show pieces and ids, or how well a vocabulary fits a text"))

    config = verbs.add_parser("config", help="print the resolved configuration, with every default")
    config.add_argument("config", type=Path, nargs="?", metavar="X.yaml", help="without it, the built-in quickstart")
    config.add_argument("overrides", nargs="*", metavar="section.key=value", help=OVERRIDES)
    config.add_argument("--schema", action="store_true", help="print the JSON schema, for editors")
    config.set_defaults(verb=_config)
    return parser


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
    export.set_defaults(verb=_export)


def _add_average(average: argparse.ArgumentParser) -> None:
    average.description = (
        "The mean goes to a folder of its own, in which it is the only checkpoint: so the training of RUN can go on, "
        "and neither its best and last checkpoints nor what it deletes are touched. tmt translate, evaluate, plot and "
        "export read the folder like a run. It is scored on RUN's validation pairs, as the training scores them."
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
    average.set_defaults(verb=_average)


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
        help=".png, .svg or .pdf (default: plots/WHAT.png in the run; of a configuration, NAME-WHAT.png here)",
    )
    plot.add_argument("--text", help="attention: a sentence to translate (default: the first validation sentence)")
    plot.add_argument("--kind", choices=("cross", "encoder", "decoder"), default="cross", help="attention: of which")
    plot.add_argument("--layer", type=int, metavar="N", help="attention: one layer, counted from 1 (default: all)")
    plot.add_argument("--head", type=int, metavar="N", help="attention: one head, counted from 1 (default: all)")
    plot.add_argument("--checkpoint", default="best", metavar="best|last|STEP", help="of a run (default: best)")
    plot.set_defaults(verb=_plot)


def _add_tokenize(tokenize: argparse.ArgumentParser) -> None:
    about = "a run folder; or a configuration, whose tokenizers are then learnt"
    tokenize.add_argument("subject", type=Path, metavar="RUN-or-X.yaml", help=about)
    about = "without text, --input: of a run standard input, of a configuration figures over the validation pairs"
    tokenize.add_argument("texts", nargs="*", metavar="text or section.key=value", help=about)
    tokenize.add_argument("--input", type=Path, metavar="F", help="figures over the lines of a file (plain or .gz)")
    tokenize.add_argument(
        "--side", choices=("src", "tgt"), help="which language (default: src; of validation pairs, both)"
    )
    tokenize.set_defaults(verb=_tokenize)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", default="best", metavar="best|last|STEP", help="default: best")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N or mps")
    parser.add_argument("--threads", default="auto", metavar="N", help="CPU threads (default: one a core)")


# --- the verbs --------------------------------------------------------------------------------------------------------


def _train(args: argparse.Namespace) -> None:
    config = _load_config(args)
    from transformer_mt import pipeline

    pipeline.train(config, checkpoint=args.checkpoint, restart=args.restart)


def _translate(args: argparse.Namespace) -> None:
    streams.check_input(args.texts, args.input, "translate")
    streams.check_output(args.output)
    translator = _load_translator(args)
    at_prompt = not args.texts and not args.input and sys.stdin.isatty() and sys.stdout.isatty()
    lines = streams.lines(args.texts, args.input, at_prompt)
    with streams.output(args.output) as output:
        done = 0
        for window in streams.windows(lines, 1 if at_prompt else 1000):
            for line in translator.translate(window, first_line=done + 1):
                output.write(f"{line}\n".encode())
            output.flush()
            done += len(window)


def _evaluate(args: argparse.Namespace) -> None:
    if bool(args.src) != bool(args.ref):
        raise UserError("evaluate: --src and --ref go together")
    from transformer_mt import config as configuration
    from transformer_mt import material, pipeline
    from transformer_mt.runs import RunFolder

    run = RunFolder.open(args.run)
    config = configuration.load(run.config)
    translator = _load_translator(args)
    for name, table in material.test_tables(config, args.src, args.ref).items():
        scores, samples = pipeline.evaluate(translator, table, config)
        for sample in samples[: args.show]:
            print("\n".join(sample.lines()) + "\n")
        print("\n".join([f"{name} ({len(table):,} pairs)", *scores.lines()]))


def _export(args: argparse.Namespace) -> None:
    if args.to == "weights" and (args.quantization or args.src):
        raise UserError("export --to weights: --quantization and --src belong to ctranslate2; leave them out")
    streams.check_input((), args.src, "export")
    from transformer_mt.runs import RunFolder

    run = RunFolder.open(args.run)
    if args.to == "weights":
        from transformer_mt.tools import weights

        said = weights.export(run, args.checkpoint, args.output)
    else:
        from transformer_mt.tools import export

        texts = None if args.src is None else [*streams.lines((), args.src, at_prompt=False)]
        said = export.to_ctranslate2(run, args.checkpoint, args.output, args.quantization or "float32", texts)
    print("\n".join(said))


def _average(args: argparse.Namespace) -> None:
    from transformer_mt.runs import RunFolder
    from transformer_mt.tools import average

    choice = average.Choice(args.last, args.best, args.steps)
    for line in average.average(RunFolder.open(args.run), choice, args.output, args.device, args.threads):
        print(line)


def _plot(args: argparse.Namespace) -> None:
    text = None if args.text is None else streams.check_text(args.text)
    streams.check_output(args.output)
    from transformer_mt.tools import plots

    choice = plots.Choice(text, args.kind, args.layer, args.head)
    plots.check(args.what, choice, args.overrides, args.output)
    subject = plots.Subject.open(args.subject, args.overrides, args.checkpoint)
    print(plots.plot(args.what, subject, choice, args.output))


def _tokenize(args: argparse.Namespace) -> None:
    from transformer_mt.tools import tokens

    args.texts, overrides = tokens.split_words(args.subject, args.texts)
    streams.check_input(args.texts, args.input, "tokenize")
    subject = tokens.Subject.open(args.subject, overrides)
    if args.input or args.texts or subject.validation is None:
        lines = streams.lines(args.texts, args.input, at_prompt=False)
        output = tokens.look(subject.of(args.side or "src"), lines, args.input)
    else:
        output = subject.reports([args.side] if args.side else ["src", "tgt"])
    for line in output:
        print(line)


def _config(args: argparse.Namespace) -> None:
    from transformer_mt import config as configuration

    print(configuration.json_schema() if args.schema else configuration.render(_load_config(args)), end="")


# --- their parts ------------------------------------------------------------------------------------------------------


def _load_config(args: argparse.Namespace) -> Config:
    from transformer_mt import config as configuration

    if args.config is not None and not args.config.exists() and "=" in str(args.config):
        args.overrides, args.config = [str(args.config), *args.overrides], None  # tmt config key=value
    return configuration.load(args.config or configuration.builtin("quickstart"), args.overrides)


def _load_translator(args: argparse.Namespace) -> Translator:
    from transformer_mt.decoding.translator import Translator

    return Translator.load(args.run, args.checkpoint, args.device, args.threads)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _note(f"warning: {message}")


def _show_thread_error(error: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread; a disk that does not take it is an error of the main thread, and said there."""
    if not issubclass(error.exc_type, OSError):
        threading.__excepthook__(error)


def _note(text: str) -> None:
    print(f"tmt: {text}", file=sys.stderr)


def _fail(text: str) -> NoReturn:
    _note(text)
    sys.exit(2)
