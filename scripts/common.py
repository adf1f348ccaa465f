"""What the scripts share: arguments, `tmt` commands, and figures of processes and rounds."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from transformer_mt.errors import UserError


def run_script(main: Callable[[], None]) -> None:
    """Run the main function of a script, without a traceback for a `UserError` or Ctrl-C."""
    try:
        main()
    except UserError as error:
        sys.exit(f"{Path(sys.argv[0]).stem}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def positive_int(text: str) -> int:
    """Parse a positive integer from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be an integer of at least 1")
    return int(text)


def tmt(*arguments: object, log: Path | None = None, threads: int | None = None) -> str:
    """Run a `tmt` command in a subprocess and return its standard output. Standard error goes to `log`."""
    words = [*map(str, arguments)]
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    with nullcontext() if log is None else log.open("a", encoding="utf-8") as stderr:
        command = [sys.executable, "-m", "transformer_mt", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    if done.returncode:
        hint = f"; see {log}" if log else ""
        raise UserError(f"tmt {' '.join(words)}\nended with status {done.returncode}{hint}")
    return done.stdout


def read_resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def duration(function: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
