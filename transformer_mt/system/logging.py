"""Messages for the user on standard error, above a progress bar if there is one."""

from __future__ import annotations

import os
import sys

from transformer_mt.system import launcher
from transformer_mt.system.display import LAYOUT, make_visible


def log_rank0(text: str) -> None:
    """Write a message if this process has rank 0."""
    if launcher.rank() == 0:
        log(text)


def log(text: str) -> None:
    """Write a message, with escapes for control characters.

    If standard error cannot be written, this and all later messages are dropped.
    """
    from tqdm import tqdm

    try:
        tqdm.write(make_visible(text, keep=LAYOUT), file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def format_duration(seconds: float) -> str:
    """Format a duration in its largest unit, such as "50 seconds", "12 minutes" or "3.5 hours"."""
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 100 * 60 else f"{seconds / 3600:.1f} hours"
