"""Entry point of the command line: run a command, and map exceptions to messages and exit statuses.

Each command is a module of this package with a function `run`. It is imported only when it is called, because
`tmt --help` must not wait for torch.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

from transformer_mt.cli.early_interrupt import restore_interrupt  # first, because imports take time
from transformer_mt.cli.parser import parse_arguments
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.system import launcher
from transformer_mt.system.log import log


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: status 0, 2 after a mistake of the user, 128 + N after signal N. A command may set 1.

    `--debug`, before or after the command, shows the traceback of a mistake of the user too.
    """
    arguments, is_debugging = remove_debug_option(sys.argv[1:] if arguments is None else arguments)
    args = parse_arguments(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # under any locale, like files
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_main_thread and not (args.command == "train" and launcher.under_torchrun()):  # it ends waiting ranks itself
        signal.signal(signal.SIGTERM, _exit_on_signal)  # so that cleanup code runs
    warnings.showwarning = _show_warning
    threading.excepthook = _show_thread_error
    try:
        command = importlib.import_module(f"transformer_mt.cli.{args.command}")
        restore_interrupt()
        command.run(args)
        sys.stdout.flush()
    except UserError as error:
        if is_debugging:
            traceback.print_exc()
        _fail(str(error))
    except Interrupted as stop:
        name = signal.Signals(stop.signal).name
        log(f"tmt: stopped by {name} and saved at {stop.progress}; the same command resumes")
        sys.exit(128 + stop.signal)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of the output has exited, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if is_debugging or not error.filename:
            raise
        _fail(f"{error.filename}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        from transformer_mt.system.memory import is_out_of_memory

        if is_debugging or not is_out_of_memory(error):
            raise
        _fail(_out_of_memory_message(args))
    sys.exit(0)


def remove_debug_option(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Return the arguments without `--debug`, and whether it was among them. Arguments after `--` are text."""
    end = [*arguments, "--"].index("--")
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return [*options, *arguments[end:]], len(options) < end


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    log(f"tmt: warning: {message}")


def _show_thread_error(error: threading.ExceptHookArgs) -> None:
    """Hide an OSError of TensorBoard's writer thread, because the main thread raises the same error."""
    if not issubclass(error.exc_type, OSError):
        threading.__excepthook__(error)


def _out_of_memory_message(args: argparse.Namespace) -> str:
    if args.command != "train":
        return "out of memory; lower --batch-tokens (decoding.batch_tokens in config.yaml)"
    from transformer_mt.decoding.decoding_config import MAX_VALIDATION_TOKENS

    return (
        f"out of memory; lower decoding.batch_tokens (below {MAX_VALIDATION_TOKENS:,}); "
        "or, with --restart, batches.tokens or the size of the model"
    )


def _fail(message: str) -> NoReturn:
    log(f"tmt: {message}")
    sys.exit(2)
