"""Ctrl-C while modules are imported: end silently. Import this module before slow ones.

Python would print a traceback, and some packages turn an interrupt of their import into another error.
"""

from __future__ import annotations

import signal
import threading

_is_replaced = (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _is_replaced:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def restore_interrupt() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, so that cleanup code runs."""
    if _is_replaced and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
