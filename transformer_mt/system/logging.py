"""What the program says to the person who watches: on standard error, a progress bar stepping aside."""

from __future__ import annotations

import os
import sys

from transformer_mt.system import launcher


def log_rank0(text: str) -> None:
    """Of several processes that train together, the first one speaks."""
    if launcher.rank() == 0:
        log(text)


def log(text: str) -> None:
    """Whichever process this is. Where nobody can hear it any more, the work goes on in silence."""
    from tqdm import tqdm

    try:
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
