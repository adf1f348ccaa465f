"""Keeping and releasing the memory of freed tensors, on CPUs and GPUs."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # option numbers of glibc's malloc.h
TRIM_THRESHOLD = 1 << 30  # free bytes from which glibc returns memory to the system
MMAP_THRESHOLDS = 1 << 30, 1 << 25
"""Block sizes in bytes from which glibc maps a block separately; old versions reject the first one."""

OUT_OF_MEMORY_MESSAGES = (
    "DefaultCPUAllocator",
    "bad_alloc",
    "could not create a primitive",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)
"""Parts of the messages with which torch, the C++ library, oneDNN and GPU libraries report exhausted memory."""


def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed tensors for new ones. No effect with other C libraries.

    By default glibc maps and unmaps each large block, and page faults slow down every batch.
    """
    mallopt = _find_c_function("mallopt")
    if mallopt is not None and any(mallopt(M_MMAP_THRESHOLD, n_bytes) for n_bytes in MMAP_THRESHOLDS):
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)


def release_memory(device: torch.device) -> None:
    """Free unreachable tensors and return cached memory to the device or the system, after an allocation failed."""
    import torch

    gc.collect()  # an error inside a backward pass may be part of a reference cycle with the graph
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    else:
        for name, arguments in (("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))):  # TCMalloc, glibc
            if (function := _find_c_function(name)) is not None:
                function(*arguments)


def read_gpu_bytes(device: torch.device) -> int:
    """Return the size of the memory of a CUDA device, and 0 for any other device."""
    import torch

    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that the device, or the machine, has no memory left."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error) for text in OUT_OF_MEMORY_MESSAGES)


def detect_allocator() -> str:
    """Return the name of the allocator that this process uses, as far as its functions reveal it."""
    known = {"MallocExtension_ReleaseFreeMemory": "TCMalloc", "mallctl": "jemalloc", "malloc_trim": "glibc malloc"}
    return next((name for function, name in known.items() if _find_c_function(function)), "the system's malloc")


def _find_c_function(name: str) -> Callable[..., int] | None:
    """Return a function of the loaded C libraries, or None."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
