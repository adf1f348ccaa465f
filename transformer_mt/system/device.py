"""Device, precision and threads: what `auto` means, decided in one place.

torch is imported inside the functions, so that a configuration is read and checked at once.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, get_args

from pydantic import BeforeValidator, WithJsonSchema

from transformer_mt.config.section import parse_count_or_auto
from transformer_mt.errors import UserError
from transformer_mt.system import allocator, launcher

if TYPE_CHECKING:
    import torch

SHAPES = 512
"""Matrix products in bf16 that torch's CPU library keeps compiled for their shapes, a third of a megabyte each. Those
of a model are few, as `model/products.py` fills up their rows; those of attention are new in nearly every batch, and
with the default, 1,024, they would make memory grow for longer, for little speed."""

OUT_OF_MEMORY = (
    "DefaultCPUAllocator",
    "bad_alloc",
    "could not create a primitive",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)
"""What torch, the C++ library, oneDNN and the libraries of GPUs say where memory ends."""

T = TypeVar("T")

MOST_THREADS = 1024  # with more, the libraries below end the process

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""Of a container: microseconds of CPU time, or max, in so many."""

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:(0|[1-9][0-9]?))?")


def _read_device(value: object) -> str:
    if not _DEVICE.fullmatch(str(value)):
        raise ValueError(f'"{value}" is no device; choose from: auto, cpu, cuda, cuda:N, mps')
    return str(value)


DeviceName = Annotated[
    str, BeforeValidator(_read_device), WithJsonSchema({"type": "string", "pattern": _DEVICE.pattern})
]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class Machine:
    """Where and how to compute: a device that exists, a precision it has, a number of threads."""

    device: torch.device
    precision: Literal["fp32", "bf16"]
    threads: int

    @contextmanager
    def autocast(self) -> Generator[None]:
        """Matrix products in this precision; parameters, residual stream, norms and loss stay in fp32."""
        import torch

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            yield


def resolve(device: str, precision: str, threads: str | int) -> Machine:
    """Give `auto` its meaning on this machine, and set the number of threads and what this process keeps of shapes and
    of memory.

    Raises `UserError` where a device is named that is not there.
    """
    import torch

    device, threads = _named("device", _read_device, device), _named("threads", parse_count_or_auto, threads)
    chosen, processes = torch.device(_best_device() if device == "auto" else device), launcher.local_world_size()
    if processes > 1 and (chosen.type == "mps" or ":" in str(chosen)):
        raise UserError(
            f"device: {chosen} cannot serve {processes} processes: set cuda, of which each takes its own, or cpu"
        )
    if str(chosen) == "cuda" and (number := launcher.local_rank()) is not None:  # of several, each has its own
        chosen = torch.device("cuda", number)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device: {device} is not there ({torch.cuda.device_count()} CUDA devices); there is always cpu"
        )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device: mps is not there; there is always cpu")
    if threads != "auto" and threads > MOST_THREADS:
        raise UserError(f"threads: {threads:,} are too many; auto takes one a core")
    if precision not in get_args(Precision):
        raise UserError(f"precision: {precision}: choose from {', '.join(get_args(Precision))}")
    bf16 = precision == "bf16" or (precision == "auto" and bf16_is_faster(chosen))
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(SHAPES))  # read at the first matrix product
    if chosen.type == "cpu":
        allocator.keep_freed_memory()
    elif chosen.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans each new shape, and nearly every batch has one
    if threads != "auto":
        torch.set_num_threads(threads)
    elif processes > 1 or _cores() < torch.get_num_threads():
        torch.set_num_threads(max(1, _cores() // processes))
    return Machine(chosen, "bf16" if bf16 else "fp32", torch.get_num_threads())


def _named(name: str, read: Callable[[object], T], value: object) -> T:
    """What was asked for, read; what cannot be read is the user's mistake."""
    try:
        return read(value)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None


def _cores() -> int:
    """Those that this process may use, which its job or its container may have fewer of than the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if CPU_LIMIT.exists():
        time, period = CPU_LIMIT.read_text(encoding="utf-8").split()
        cores = min(cores, math.ceil(int(time) / int(period))) if time != "max" else cores
    return cores


def _best_device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def release_memory(device: torch.device) -> None:
    """Let go of what is kept for the next tensors: there was too little for other ones."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    else:
        allocator.release_memory()


def bf16_is_faster(device: torch.device) -> bool:
    """Whether bf16 is faster there than fp32: on NVIDIA's from Ampere on, CPUs with AMX, AMD's with AVX512-BF16.

    Intel's AVX512-BF16 alone does not do: on a Xeon whose virtual machine hid AMX, it had half the rate of fp32.
    """
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device.index if ":" in str(device) else -1):  # -1: the one that is current
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        amx, avx512 = torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]
        return amx or (avx512 and "Intel" not in _cpuinfo("vendor_id"))
    return False


def describe(device: torch.device) -> str:
    """The hardware in words, for a run's records."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = "Apple GPU" if device.type == "mps" else _cpuinfo("model name") or "CPU"
    return f"{name}, {os.cpu_count()} cores"


def _cpuinfo(name: str) -> str:
    """What Linux says of its first processor; elsewhere nothing."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that the device, or the machine, has no memory left."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in OUT_OF_MEMORY)
