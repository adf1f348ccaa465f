"""What hands out this process's memory, and what it keeps of what is freed.

A training step takes and frees hundreds of blocks, and nearly every step blocks of other sizes. glibc's malloc looks
for the gap that fits best, wherever it lies, and over many steps the gaps add up to more than what is in use. TCMalloc
(gperftools) hands out first what was freed last, which the processor's caches still hold.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

TCMALLOC = "libtcmalloc_minimal.so.4", "libtcmalloc.so.4"
QUIET = {"TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": str(1 << 62)}  # else it tells stderr of blocks from 1 GiB on

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # names of glibc's malloc.h
MMAPPED = 1 << 30, 1 << 25
"""Bytes from which a block is mapped on its own: above those of a batch, or what older versions take at most."""
TRIMMED = 1 << 30
"""Free bytes from which memory goes back to the system."""


def prefer_tcmalloc() -> None:
    """Begin this command anew with TCMalloc, where the system has it: whose memory a process uses is settled before its
    first block. Whoever has set `LD_PRELOAD`, be it to nothing, is heard."""
    if sys.platform != "linux" or "LD_PRELOAD" in os.environ:
        return
    for library in TCMALLOC:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ |= {"LD_PRELOAD": library} | QUIET
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors for the next ones; other allocators do so by themselves.

    By default it maps each large block anew and gives it back, and every page of it costs a fault, batch after batch.
    """
    mallopt = _function("mallopt")
    if mallopt is not None and any(mallopt(MMAP_THRESHOLD, size) for size in MMAPPED):
        mallopt(TRIM_THRESHOLD, TRIMMED)


def release_memory() -> None:
    """Let go of what is kept for the next tensors: there was too little for other ones."""
    for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):
        if (function := _function(name)) is not None:
            function(*arguments)


def _function(name: str) -> Callable[..., int] | None:
    """Of the C libraries that are loaded, where they have it."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
