"""Resolving device, precision and threads, and configuring the process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from transformer_mt.errors import UserError
from transformer_mt.system import device
from transformer_mt.system.device import (
    ALLOCATOR_VARIABLES,
    PRIMITIVE_CACHE_SIZE,
    PRODUCT_CACHE_SIZE,
    DeviceName,
    Machine,
    bf16_is_faster,
    configure_process,
    is_out_of_memory,
    resolve_machine,
)

PRIMITIVE_CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


@pytest.fixture(autouse=True)
def restore_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    threads, cudnn_sdp = torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.set_num_threads(threads)
    torch.backends.cuda.enable_cudnn_sdp(cudnn_sdp)


def pretend(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    """Let torch report these devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


# --- device -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "mps", "best"), [(1, False, "cuda"), (1, True, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_auto_chooses_the_best_device(cuda: int, mps: bool, best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=cuda, mps=mps)
    assert str(resolve_machine("auto", "fp32", "auto").device) == best


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_missing_device_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=1 if name == "cuda:1" else 0)
    with pytest.raises(UserError, match=f"device: {name} is not available.*; cpu always is"):
        resolve_machine(name, "auto", "auto")


@pytest.mark.parametrize("name", ["cuda:0", "mps"])
def test_one_device_is_refused_for_several_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=2, mps=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert resolve_machine("cuda", "fp32", "auto").device == torch.device("cuda:1")
    with pytest.raises(UserError, match=f"device: {name} cannot serve 2 processes: set cuda"):
        resolve_machine(name, "fp32", "auto")


@pytest.mark.parametrize(
    ("name", "precision", "threads", "message"),
    [
        (f"cuda:{10**11}", "auto", "auto", f'device: "cuda:{10**11}" is no device'),
        ("cpu", "auto", f"{10**20}", f"threads: {10**20:,} are too many"),
        ("cpu", "fp8", "1", "precision: fp8: choose from auto, fp32, bf16, fp16"),
    ],
)
def test_invalid_value_is_refused_with_its_name(name: str, precision: str, threads: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        resolve_machine(name, precision, threads)


def test_device_names_are_checked() -> None:
    for name in ("auto", "cpu", "cuda", "cuda:0", "cuda:12", "mps"):
        assert TypeAdapter[str](DeviceName).validate_python(name) == name
    for name in ("", "tpu", "cpu:0", "cuda:", "cuda:x", "cuda:01", "cuda:128", "CUDA", None):
        with pytest.raises(ValidationError, match="is no device; choose from: auto"):
            TypeAdapter[str](DeviceName).validate_python(name)


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "is_faster", "expected"),
    [("auto", True, "bf16"), ("auto", False, "fp32"), ("fp16", True, "fp16")],
)
def test_auto_precision_is_the_faster_one(
    requested: str, is_faster: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "bf16_is_faster", lambda _: is_faster)
    machine = resolve_machine("cpu", requested, "auto")
    assert machine.precision == expected
    with machine.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[expected]


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((6, 1), "fp32"), ((7, 5), "fp16"), ((8, 0), "bf16")],
    ids=["GTX 1080", "T4", "A100"],
)
def test_auto_precision_depends_on_the_compute_capability(
    capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: capability >= (8, 0))
    assert resolve_machine("cuda", "auto", "auto").precision == expected


@pytest.mark.parametrize(
    ("vendor", "avx512", "amx", "expected"),
    [("AuthenticAMD", False, False, False), ("AuthenticAMD", True, False, True), ("GenuineIntel", True, False, False)],
)
def test_bf16_is_faster_on_these_cpus(
    vendor: str, avx512: bool, amx: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(device, "read_cpuinfo", {"vendor_id": vendor}.get)
    assert bf16_is_faster(torch.device("cpu")) is expected


def test_emulated_bf16_is_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not bf16_is_faster(torch.device("cuda"))
    assert not bf16_is_faster(torch.device("mps"))


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000\n", 3), ("200000 100000\n", 2), ("150000 100000\n", 2), ("50000 100000\n", 1)]
)
def test_auto_threads_respect_the_container_limit(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with three cores."""
    (tmp_path / "cpu.max").write_text(limit, encoding="utf-8")
    monkeypatch.setattr(device, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3), raising=False)
    torch.set_num_threads(3)
    assert resolve_machine("cpu", "fp32", "auto").threads == expected
    torch.set_num_threads(1)
    assert resolve_machine("cpu", "fp32", "auto").threads == 1  # OMP_NUM_THREADS, say


def test_auto_threads_are_shared_between_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "CPU_LIMIT", tmp_path / "missing")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5), raising=False)
    for processes, expected in ((2, 2), (8, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert resolve_machine("cpu", "fp32", "auto").threads == expected
        assert resolve_machine("cpu", "fp32", 4).threads == 4


# --- the process ------------------------------------------------------------------------------------------------------


def test_resolve_machine_does_not_configure_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=1)
    monkeypatch.delenv(PRIMITIVE_CACHE, raising=False)
    torch.set_num_threads(1)
    assert resolve_machine("cuda", "fp32", 2) == Machine(torch.device("cuda"), "fp32", 2)
    assert torch.get_num_threads() == 1
    assert torch.backends.cuda.cudnn_sdp_enabled()
    assert PRIMITIVE_CACHE not in os.environ


def test_configure_process_disables_cudnn_attention_on_gpus() -> None:
    configure_process(Machine(torch.device("cpu"), "fp32", 1))
    assert torch.backends.cuda.cudnn_sdp_enabled()
    configure_process(Machine(torch.device("cuda"), "fp32", 1))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled()


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_cuda_allocator_is_configured_unless_the_user_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=1)
    for variable in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    resolve_machine("cpu", "fp32", 1)
    assert not {*ALLOCATOR_VARIABLES} & os.environ.keys()
    with monkeypatch.context() as user:
        user.setenv(name, "max_split_size_mb:64")
        resolve_machine("cuda", "fp32", 1)
        assert [os.environ[variable] for variable in ALLOCATOR_VARIABLES if variable in os.environ] == [
            "max_split_size_mb:64"
        ]
    resolve_machine("cuda", "fp32", 1)
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_cuda_allocator_is_configured_before_cuda_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration is read once."""
    pretend(monkeypatch, cuda=1)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setattr(device, "bf16_is_faster", lambda _: "PYTORCH_ALLOC_CONF" in os.environ)
    assert resolve_machine("auto", "auto", 1).precision == "bf16"


@pytest.mark.parametrize(
    ("variable", "limit"), [(PRIMITIVE_CACHE, PRIMITIVE_CACHE_SIZE), ("LRU_CACHE_CAPACITY", PRODUCT_CACHE_SIZE)]
)
def test_caches_of_products_are_limited_unless_the_user_sets_them(
    variable: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "7")
    configure_process(resolve_machine("cpu", "fp32", 1))
    assert os.environ[variable] == "7"
    monkeypatch.delenv(variable)
    configure_process(resolve_machine("cpu", "fp32", 1))
    assert os.environ[variable] == str(limit)


# --- Memory of freed tensors ------------------------------------------------------------------------------------------

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
        (RuntimeError("can't start new thread"), True),
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
