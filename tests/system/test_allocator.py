"""The allocator: TCMalloc where it is there, and glibc's keeps what is freed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from transformer_mt.system import allocator

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no library is put before the others so")


class Machine:
    """A system with some libraries. A command that is begun anew ends here."""

    def __init__(self, libraries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.libraries = libraries
        self.begun: list[tuple[str, list[str]]] = []
        monkeypatch.setattr(allocator.ctypes, "CDLL", self.load)
        monkeypatch.setattr(os, "execv", lambda *command: self.begun.append(command))
        monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "transformer_mt", "train"])
        monkeypatch.setenv("TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD", "")
        monkeypatch.setenv("LD_PRELOAD", "")  # so that it is put back
        monkeypatch.delenv("LD_PRELOAD")

    def load(self, name: str) -> None:
        if name not in self.libraries:
            raise OSError(f"{name}: cannot open shared object file")


@ON_LINUX
def test_a_command_begins_anew_with_tcmalloc(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(["libtcmalloc.so.4"], monkeypatch)
    allocator.prefer_tcmalloc()
    assert machine.begun == [(sys.executable, [sys.executable, "-m", "transformer_mt", "train"])]
    assert os.environ["LD_PRELOAD"] == "libtcmalloc.so.4"


def test_a_system_without_tcmalloc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([], monkeypatch)
    allocator.prefer_tcmalloc()
    assert not machine.begun
    assert "LD_PRELOAD" not in os.environ


@pytest.mark.parametrize("chosen", ["", "libjemalloc.so.2"])
def test_whoever_has_chosen_is_heard(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(["libtcmalloc.so.4"], monkeypatch)
    monkeypatch.setenv("LD_PRELOAD", chosen)
    allocator.prefer_tcmalloc()
    assert not machine.begun


WHOSE = """
from pathlib import Path
from transformer_mt.system import allocator
allocator.prefer_tcmalloc()
print("tcmalloc" in Path("/proc/self/maps").read_text())
allocator.release_memory()
"""


@ON_LINUX
def test_once_begun_anew_it_goes_on_with_what_is_there() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-c", WHOSE]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (f"{is_there()}\n", "")


def is_there() -> bool:
    load = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])"]
    return any(subprocess.run([*load, name], capture_output=True).returncode == 0 for name in allocator.TCMALLOC)


RELEASE, TRIM = ("MallocExtension_ReleaseFreeMemory", ()), ("malloc_trim", (0,))


@pytest.mark.parametrize("called", [[TRIM], [RELEASE, TRIM], []], ids=["glibc", "TCMalloc", "another"])
@ON_LINUX
def test_every_allocator_gives_back_what_it_keeps(
    called: list[tuple[str, tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, tuple[int, ...]]] = []
    library = SimpleNamespace(**{name: lambda *given, name=name: heard.append((name, given)) for name, _ in called})
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: library)
    allocator.release_memory()
    assert heard == called


FAULTS = """
import resource, torch
from transformer_mt.system.device import resolve
resolve("cpu", "fp32", 1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(1 << 24).zero_()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize()
print([faults() for _ in range(24)][-8:])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_freed_memory_is_used_again() -> None:
    """A block of 64 MiB that is freed and wanted again, and has found its place, brings next to no page fault."""
    found = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True).stdout
    assert sum(json.loads(found)) < 1 << 20


@pytest.mark.parametrize("library", [object(), SimpleNamespace(mallopt=lambda *_: 0)], ids=["has none", "refuses"])
def test_a_library_without_that_setting_is_left_alone(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: library)
    allocator.keep_freed_memory()
