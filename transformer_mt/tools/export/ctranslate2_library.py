"""Import of CTranslate2 with separate OpenMP threads.

torch and CTranslate2 bring a copy of GNU's OpenMP library each. If torch is imported first, the dynamic linker binds
CTranslate2 to torch's copy. That copy counts the threads of both. Once they exceed the cores, a thread sleeps as soon
as it waits for others, and CTranslate2 needs ten times as long for one sentence.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def _bind_to_own_libraries() -> Generator[None]:
    """Let libraries that are loaded inside the block prefer the symbols of their own dependencies.

    With a preloaded allocator this is impossible: the block would free memory of one allocator with another one.
    """
    if sys.platform != "linux" or not _is_malloc_of_libc():
        yield
        return
    before = sys.getdlopenflags()
    sys.setdlopenflags(before | os.RTLD_DEEPBIND)
    try:
        yield
    finally:
        sys.setdlopenflags(before)


def _is_malloc_of_libc() -> bool:
    """Return whether no preloaded library replaces the allocator of glibc."""
    try:
        functions = [ctypes.CDLL(library).malloc for library in (None, "libc.so.6")]
    except OSError:  # another C library
        return False
    first, second = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    return first == second


with _bind_to_own_libraries():
    import ctranslate2 as ctranslate2
