"""Memory of freed tensors."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from transformer_mt.system.device import is_out_of_memory

PAGE_FAULTS = """
import resource, torch
from transformer_mt.system.device import configure_process, resolve_machine
configure_process(resolve_machine("cpu", "fp32", 1))
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(1 << 24).zero_()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize()
print([faults() for _ in range(24)][-8:])
"""

RESIDENT = """
import torch
from transformer_mt.system.device import configure_process, resolve_machine
from transformer_mt.system.device import release_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
machine = resolve_machine("cpu", "fp32", 1)
configure_process(machine)
torch.empty(1 << 26).zero_()
kept = resident()
release_memory(machine.device)
print([kept, resident()])
"""

NEW_SHAPES = """
import torch
from transformer_mt.system.device import configure_process, resolve_machine
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
configure_process(resolve_machine("cpu", "bf16", 1))
weight = torch.zeros(64, 64, dtype=torch.bfloat16)
sizes = []
for n_rows in range(1, 1201):
    torch.zeros(n_rows, 64, dtype=torch.bfloat16) @ weight
    sizes.append(resident())
print([sizes[599], sizes[1199]])
"""

on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt and malloc_trim are of glibc")


def run(code: str) -> list[int]:
    return json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@on_glibc
@pytest.mark.slow
def test_freed_memory_is_reused_without_page_faults() -> None:
    """A block of 64 MiB that is freed and allocated again brings next to no page faults."""
    assert sum(run(PAGE_FAULTS)) < 1 << 20


@on_glibc
@pytest.mark.slow
def test_release_memory_returns_kept_memory_to_the_system() -> None:
    kept, released = run(RESIDENT)
    assert kept - released > 200 << 20


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
    ],
)
def test_errors_of_exhausted_memory_are_recognised(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


@on_glibc
@pytest.mark.slow
def test_memory_stays_flat_while_products_have_new_shapes() -> None:
    """torch and oneDNN cache a limited number of them, though each batch of a server or a training has new ones."""
    early, late = run(NEW_SHAPES)
    assert late - early < 100 << 20
