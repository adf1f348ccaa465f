"""Entry point of the command line: find the command, run it, and map exceptions to messages and exit statuses.

Each command is a class in a module of this package. Only the module of the command that is called is imported, and it
imports torch and other slow packages when it runs, because `tmt --help` must not wait for them.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from collections.abc import Collection, Sequence
from functools import partial
from importlib import import_module
from types import FrameType
from typing import NoReturn

from transformer_mt import __version__
from transformer_mt.cli.command import Command, CommandParser, OptionGroup, add_arguments
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.system import launcher
from transformer_mt.system.files import WRITE_ERROR_REMEDIES
from transformer_mt.system.log import log

GROUPS = {
    "prepare": {
        "init": "write a configuration that trains, or fine-tunes, on your sentence pairs",
        "check": "find problems in a corpus, and pair shifted lines again",
        "prepare": "encode the data of a training in advance, on several processes",
        "plan": "predict the time and memory of a training",
    },
    "train": {
        "import": "import a pretrained model of another toolkit, to use or fine-tune it",
        "train": "train a model, or resume an interrupted training",
        "runs": "list the runs below a folder, with status, best score and size",
    },
    "use": {
        "translate": "translate text or a document, or score given translations",
        "serve": "translate over HTTP, with a web page and an API",
        "export": "export a model to other programs, its weights, or a mean of weights",
        "explain": "show how a sentence is translated, and why it may be bad",
    },
    "improve and measure": {
        "evaluate": "compute BLEU, chrF and TER, compare systems",
        "report": "write one HTML page about a run",
        "synthesize": "make training pairs from text in one language",
    },
}
"""The commands in `tmt --help`, by group, each with one sentence."""
HIDDEN = {"config": "print every key of a configuration, or tokens"}
COMMANDS = [*(name for commands in GROUPS.values() for name in commands), *HIDDEN]
MODULES = {"import": "import_model"}
"""Modules of commands whose name cannot be that of a module."""
TRAINING_COMMANDS = {"train", "plan"}
FORMER_COMMANDS = {
    "average": "use tmt export RUN --average N --output DIR",
    "board": "use tensorboard --logdir runs",
    "compare": "use tmt evaluate A B",
    "completion": "the shell completes names of files",
    "doctor": "use pip check, and python -m torch.utils.collect_env",
    "plot": "use tmt explain RUN TEXT --html F, and tensorboard --logdir runs for the learning rate",
    "repair": "use tmt check X.yaml --write FOLDER",
    "score": "use tmt translate RUN --input F --score-targets G",
    "tokenize": "use tmt config RUN --tokens TEXT",
}
"""Commands of earlier versions, with what replaces them."""
IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
"""File name of the functions that import a module."""
DEFERRAL_SECONDS = 0.02
"""Delay after which a signal that arrived during an import is handled, or deferred again."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: status 0, 2 after a mistake of the user, 128 + N after signal N. A command may set 1.

    `--debug`, before or after the command, shows the traceback of a mistake of the user too.
    """
    for stream, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, stream) is None:  # closed; otherwise the next opened file would get its descriptor
            setattr(sys, stream, open(os.devnull, mode))  # noqa: PTH123, SIM115
    is_main_thread = threading.current_thread() is threading.main_thread()
    is_default = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL)
    handles_interrupt = is_main_thread and is_default
    if handles_interrupt:  # Ctrl-C during an import ends silently: no traceback, and no other error of a package
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments, is_debugging = remove_debug_option(sys.argv[1:] if arguments is None else arguments)
    command = parse(arguments)
    name = arguments[0]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # under any locale, like files
    if is_main_thread and not (name == "train" and launcher.under_torchrun()):  # the training ends its waiting ranks
        signal.signal(signal.SIGTERM, _raise_on_signal)  # so that cleanup code runs
    warnings.showwarning = _show_warning
    threading.excepthook = _show_thread_error
    try:
        if handles_interrupt:
            signal.signal(signal.SIGINT, _raise_on_signal)
        try:
            with launcher.answer_signals(log):
                command.execute()
            sys.stdout.flush()
        except Exception:
            for number in (signal.SIGINT, signal.SIGTERM):  # a compiled module may have replaced its exception
                if not is_debugging and signal.getsignal(number) is _ignore:
                    sys.exit(128 + number)
            raise
        finally:
            if getattr(signal.getsignal(signal.SIGALRM), "func", None) is _repeat_signal:
                signal.setitimer(signal.ITIMER_REAL, 0)  # our deferred signal, not a timer of the calling program
    except UserError as error:
        if is_debugging:
            traceback.print_exc()
        _fail(str(error))
    except Interrupted as stop:
        signal_name = signal.Signals(stop.signal).name
        log(f"tmt: stopped by {signal_name} and saved at {stop.progress}; {stop.advice}")
        sys.exit(128 + stop.signal)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of the output has exited, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        is_unnamed = error.filename in (None, "")
        remedy = WRITE_ERROR_REMEDIES.get(error.errno or 0)
        if is_debugging or (is_unnamed and not remedy and error.errno != errno.ENOENT):
            raise
        if is_unnamed:
            missing = "the current folder, or the folder of temporary files (TMPDIR)"
            name = "standard output, or another file" if remedy else missing
        elif isinstance(error.filename, int):
            name = f"file descriptor {error.filename}"
        else:
            name = os.fsdecode(error.filename)
        _fail(f"{name}: {error.strerror}" + (f"; {remedy} and run the same command again" if remedy else ""))
    except (MemoryError, RuntimeError) as error:
        from transformer_mt.system.device import is_out_of_memory

        if is_debugging or not is_out_of_memory(error):
            raise
        _fail(_out_of_memory_message(name, command))
    sys.exit(0)


def remove_debug_option(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Return the arguments without `--debug`, and whether it was among them. Arguments after `--` are text."""
    end = [*arguments, "--"].index("--")
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return [*options, *arguments[end:]], len(options) < end


def parse(arguments: Sequence[str]) -> Command:
    """Parse the command line. Exit with status 2 and a message for a mistake."""
    name = arguments[0] if arguments else ""
    if name in FORMER_COMMANDS:
        make_parser(()).exit(2, f"tmt: error: tmt {name} was removed; {FORMER_COMMANDS[name]}\n")
    if name not in COMMANDS:
        make_parser(()).exit_without_command(arguments, COMMANDS)
    command = load_command(name)
    parser = CommandParser(prog=f"tmt {name}")
    add_arguments(parser, command)
    return parser.parse_command(command, arguments[1:])


def load_command(name: str) -> type[Command]:
    """Import the class of a command. Its module has the name of the command."""
    module = MODULES.get(name, name)
    class_name = "".join(word.capitalize() for word in module.split("_"))
    return getattr(import_module(f"transformer_mt.cli.{module}"), class_name)


def make_parser(commands: Collection[str] = COMMANDS) -> CommandParser:
    """Make the parser of `tmt`, with the arguments of some commands."""
    groups = (
        "\n".join([title, *(f"  {name:<12}{summary}" for name, summary in group.items())])
        for title, group in GROUPS.items()
    )
    parser = CommandParser(
        prog="tmt",
        usage="tmt [-h] [--version] [--debug] COMMAND ...",
        formatter_class=RawDescriptionHelpFormatter,
        description="\n\n".join(["Train and use Transformers for machine translation, from one YAML file.", *groups]),
        epilog="\n".join(f"tmt {name}: {summary}" for name, summary in HIDDEN.items()),
    )
    parser.add_argument("--version", action="version", version=f"tmt {__version__}")
    help = "show the traceback of every error; also after the command"
    parser.add_argument("--debug", action="store_true", help=help)  # for the help; `main` has removed it
    parsers = parser.add_subparsers(prog="tmt", dest="command", required=True, help=SUPPRESS)
    for name in COMMANDS:
        command = parsers.add_parser(name)
        if name in commands:
            add_arguments(command, load_command(name))
    return parser


def _raise_on_signal(number: int, frame: FrameType | None) -> None:
    """Raise an exception, so that cleanup code runs, and ignore further signals of this kind, so that it ends.

    During an import, a timer repeats the call, because compiled modules replace the exception by their own.
    The second handler is no `SIG_IGN`, for which Python reports a signal that has arrived already.
    """
    while frame is not None:
        if frame.f_code.co_filename == IMPORT_SYSTEM:
            signal.signal(signal.SIGALRM, partial(_repeat_signal, number))
            signal.setitimer(signal.ITIMER_REAL, DEFERRAL_SECONDS)
            return
        frame = frame.f_back
    signal.signal(number, _ignore)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing at a signal, because an earlier one ends the command."""


def _repeat_signal(number: int, _alarm: int, frame: FrameType | None) -> None:
    """Call the current handler of a signal. Sending the signal again would count as a second Ctrl-C."""
    handler = signal.getsignal(number)
    if callable(handler):
        handler(number, frame)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    log(f"tmt: warning: {message}")


def _show_thread_error(error: threading.ExceptHookArgs) -> None:
    """Hide an OSError of TensorBoard's writer thread, because the main thread raises the same error."""
    if not issubclass(error.exc_type, OSError):
        threading.__excepthook__(error)


def _out_of_memory_message(name: str, command: Command) -> str:
    groups = [value for value in vars(command).values() if isinstance(value, OptionGroup)]
    if any(hasattr(options, "batch_tokens") for options in (command, *groups)):
        return "out of memory; lower --batch-tokens (decoding.batch_tokens in config.yaml)"
    if name not in TRAINING_COMMANDS:
        return "out of memory; lower decoding.batch_tokens in config.yaml, or end other programs"
    restart = " (with --restart)" if name == "train" else ""
    return (
        f"out of memory; lower batches.tokens or the size of the model{restart}, or decoding.batch_tokens if it was a "
        "validation"
    )


def _fail(message: str) -> NoReturn:
    log(f"tmt: {message}")
    sys.exit(2)
