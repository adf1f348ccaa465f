"""Device, precision, threads and memory: resolving `auto`, configuring the process, and how threads wait.

torch is imported inside the functions, so that reading a configuration is fast.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, cast, get_args

from pydantic import BeforeValidator, WithJsonSchema

from transformer_mt.choices import Precision
from transformer_mt.config.section import parse_count_or_auto
from transformer_mt.errors import UserError
from transformer_mt.system import launcher

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

PRIMITIVE_CACHE_SIZE = 512
"""Number of compiled bf16 products, one per shape, that oneDNN caches, about 0.3 MB each. Nearly every batch has new
shapes in attention, so that oneDNN's default of 1024 would cost memory without more hits."""

PRODUCT_CACHE_SIZE = 128
"""Number of products with their working memory, one per shape, that torch caches in each thread, about 0.3 MB each or
more. A miss only asks oneDNN's cache, so that torch's default of 1024 would cost memory without saving time."""

MAX_THREADS = 1024  # with more, OpenMP aborts the process

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""A container's CPU limit: "MICROSECONDS PERIOD" or "max PERIOD"."""

CORES = Path("/sys/devices/system/cpu")
"""Folder of Linux with the topology of the processors."""

GPU_DRIVERS = tuple(map(Path, ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")))
"""Files of Linux that exist if a GPU of NVIDIA or AMD has a driver. The last one is that of WSL."""

ALLOCATOR_VARIABLES = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""Variables of the environment that configure CUDA's allocator. It reads them once, when CUDA is initialised."""

FP16_CAPABILITY = (7, 0)
"""The first compute capability whose GPUs multiply fp16 fast: Volta. Bf16 came with 8.0."""

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:(0|[1-9][0-9]?))?")


def _read_device(value: object) -> str:
    if not _DEVICE.fullmatch(str(value)):
        raise ValueError(f'"{value}" is no device; choose from: auto, cpu, cuda, cuda:N, mps')
    return str(value)


DeviceName = Annotated[
    str, BeforeValidator(_read_device), WithJsonSchema({"type": "string", "pattern": _DEVICE.pattern})
]
ResolvedPrecision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Machine:
    """A resolved device, precision and number of CPU threads."""

    device: torch.device
    precision: ResolvedPrecision
    threads: int

    def autocast(self) -> torch.autocast:
        """Compute matrix products in this precision. Parameters, residual stream, norms and losses stay in fp32."""
        import torch

        return torch.autocast(self.device.type, self.dtype, enabled=self.precision != "fp32")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return precision_dtype(self.precision)


def precision_dtype(precision: ResolvedPrecision) -> torch.dtype:
    """Return the dtype of matrix products in a precision."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def resolve_machine(device: str, precision: str, threads: str | int, *, owns_process: bool = True) -> Machine:
    """Resolve `auto` on this machine. The only change is the configuration of CUDA's allocator, see below.

    Without `owns_process`, the process is not ours to configure, and nothing changes.
    Raises `UserError` for a device that is missing, and for values that cannot be read.
    """
    chosen = _resolve_device(_read_or_fail("device", _read_device, device))
    is_configured = any(map(os.environ.get, ALLOCATOR_VARIABLES))
    if chosen.type == "cuda" and owns_process and not is_configured:  # before bf16 initialises CUDA
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # batches of all shapes fragment fixed segments
    n_threads = resolve_threads(threads)
    if precision not in get_args(Precision):
        raise UserError(f"precision: {precision}: choose from {', '.join(get_args(Precision))}")
    if precision == "auto":
        precision = choose_precision(chosen)
    return Machine(chosen, cast(ResolvedPrecision, precision), n_threads)


def is_cpu(device: str) -> bool:
    """Return whether a device resolves to the CPU. Imports torch only if this machine may have a GPU.

    Raises `UserError` for a device that is missing, and for a value that cannot be read.
    """
    name = _read_or_fail("device", _read_device, device)
    if name == "auto" and sys.platform == "linux" and "torch" not in sys.modules and not has_gpu_driver():
        name = "cpu"
    return name == "cpu" or _resolve_device(name).type == "cpu"


def has_gpu_driver() -> bool:
    """Return whether a GPU of this machine has a driver, on Linux."""
    return any(file.exists() for file in GPU_DRIVERS)


def configure_process(machine: Machine) -> None:
    """Set the threads, the allocator, the caches of oneDNN's products and the attention backends of this process."""
    import torch

    torch.set_num_threads(machine.threads)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRIMITIVE_CACHE_SIZE))  # read at the first product
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(PRODUCT_CACHE_SIZE))  # read at the first product of a thread
    if machine.device.type == "cpu":
        keep_freed_memory()
    elif machine.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans each new shape, and nearly every batch has new ones


def _resolve_device(name: str) -> torch.device:
    import torch

    processes = launcher.local_world_size()
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    chosen = torch.device(best if name == "auto" else name)
    if processes > 1 and (chosen.type == "mps" or ":" in str(chosen)):
        raise UserError(f"device: {chosen} cannot serve {processes} processes: set cuda (one GPU for each) or cpu")
    if str(chosen) == "cuda" and (rank := launcher.local_rank()) is not None:
        chosen = torch.device("cuda", rank)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device: {name} is not available ({torch.cuda.device_count()} CUDA devices); cpu always is")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device: mps is not available; cpu always is")
    return chosen


def resolve_threads(threads: str | int) -> int:
    """Resolve `auto`: the threads of torch, or as many as it would take if it is not imported yet.

    Raises `UserError` for a value that cannot be read, and for too many threads.
    """
    chosen = _read_or_fail("threads", parse_count_or_auto, threads)
    if chosen != "auto":
        if chosen > MAX_THREADS:
            raise UserError(f"threads: {chosen:,} are too many; auto takes one per core")
        return chosen
    processes = launcher.local_world_size()
    if processes > 1:
        return max(1, count_available_cores() // processes)
    torch = sys.modules.get("torch")
    return min(count_available_cores(), torch.get_num_threads() if torch else _count_default_threads())


def _count_default_threads() -> int:
    """Return the number that OMP_NUM_THREADS asks for, or else of physical cores, as torch does."""
    wanted = re.match("[1-9][0-9]*", os.environ.get("OMP_NUM_THREADS", ""))
    if wanted:
        return int(wanted[0])
    files = CORES.glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({file.read_text(encoding="ascii") for file in files}) or MAX_THREADS


def _read_or_fail(name: str, read: Callable[[object], T], value: object) -> T:
    try:
        return read(value)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None


def count_available_cores() -> int:
    """Return the number of cores that this process may use; its job or container may be limited."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if CPU_LIMIT.exists():
        time, period = CPU_LIMIT.read_text(encoding="utf-8").split()
        cores = min(cores, math.ceil(int(time) / int(period))) if time != "max" else cores
    return cores


def choose_precision(device: torch.device) -> ResolvedPrecision:
    """Return the fastest precision: bf16, or fp16 on an NVIDIA GPU of compute capability 7, or fp32."""
    import torch

    if bf16_is_faster(device):
        return "bf16"
    has_fp16_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FP16_CAPABILITY
    return "fp16" if has_fp16_cores else "fp32"


def bf16_is_faster(device: torch.device) -> bool:
    """Return whether matrix products are faster in bf16 than in fp32.

    This holds for NVIDIA GPUs since Ampere, CPUs with AMX, and AMD CPUs with AVX512-BF16. An Intel Xeon with
    AVX512-BF16 and without AMX computed bf16 at half the rate of fp32.
    """
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device.index if ":" in str(device) else -1):  # -1: the current one
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        amx, avx512 = torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]
        return amx or (avx512 and "Intel" not in read_cpuinfo("vendor_id"))
    return False


def describe_hardware(device: torch.device) -> str:
    """Return the name of the hardware, for the run's records."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = "Apple GPU" if device.type == "mps" else read_cpuinfo("model name") or "CPU"
    return f"{name}, {os.cpu_count()} cores"


def read_cpuinfo(name: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo; "" on other systems than Linux."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


# --- memory -----------------------------------------------------------------------------------------------------------

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # option numbers of glibc's malloc.h
TRIM_THRESHOLD = 1 << 30  # free bytes from which glibc returns memory to the system
MMAP_THRESHOLDS = 1 << 30, 1 << 25
"""Block sizes in bytes from which glibc maps a block separately; old versions reject the first one."""

OUT_OF_MEMORY_MESSAGES = (
    "DefaultCPUAllocator",
    "bad_alloc",
    "can't start new thread",
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


# --- waiting of threads -----------------------------------------------------------------------------------------------

# torch divides each product among threads of GNU OpenMP (libgomp). A thread that is done spins, because
# most products take less time than waking a sleeping thread. But if other programs use the cores, it spins while the
# thread that it waits for has no core, and a training can become twelve times slower.
#
# libgomp itself stops spinning in a process that has more OpenMP threads than cores (GOMP_SPINCOUNT in its manual). So
# a watcher adds idle threads while the cores are contended, and ends them when they are not. The threads that compute
# stay the same, and with them every bit of the results.

Waiting = Literal["auto", "active", "passive"]

THREADS = Path("/proc/self/task")
MEMORY_MAP = Path("/proc/self/maps")
OPENMP_VARIABLES = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
"""Variables of the environment with which a user decides about the waiting of OpenMP."""

SAMPLE_SECONDS = 0.5
CONTENDED, QUIET = 0.25, 0.08
"""Seconds per second that all threads together are ready to run but have no core: where sleeping starts and ends."""
QUIET_SECONDS = 20.0  # until the threads spin again; it doubles with each return, so that the waiting rarely changes
CONTENDED_MESSAGE = "other programs use the cores: threads sleep while they wait for each other (train.waiting)"
FREE_MESSAGE = "the cores are free again: threads spin while they wait for each other"
WATCHER = "waiting"  # name of the thread that watches


def set_waiting(waiting: Waiting, n_threads: int, log: Callable[[str], None] | None = None) -> None:
    """Let the threads of this process spin (active), sleep (passive), or sleep while the cores are contended (auto).

    A running watcher is kept. `log` gets a line at each change. Nothing changes for a single thread, in a
    process with a variable of `OPENMP_VARIABLES`, and where the system is not Linux, or does not count delays.
    """
    is_decided = waiting == "active" or any(map(os.environ.get, OPENMP_VARIABLES))
    is_started = any(thread.name == WATCHER for thread in threading.enumerate())
    if n_threads > 1 and not is_decided and not is_started and read_delay() is not None:
        threading.Thread(target=_watch, args=(waiting, log), daemon=True, name=WATCHER).start()


def _watch(waiting: Waiting, log: Callable[[str], None] | None) -> None:
    """Let the OpenMP threads sleep, always or while the cores are contended."""
    contention, idle_threads = Contention(), IdleThreads()
    delay, seconds = read_delay() or 0.0, time.perf_counter()
    while True:
        if contention.is_contended or waiting == "passive":
            idle_threads.start()
        else:
            idle_threads.end()
        time.sleep(SAMPLE_SECONDS)
        delay_before, delay = delay, read_delay() or 0.0
        seconds_before, seconds = seconds, time.perf_counter()
        has_changed = contention.update(delay - delay_before, seconds - seconds_before)
        if has_changed and waiting == "auto" and log is not None:
            log(CONTENDED_MESSAGE if contention.is_contended else FREE_MESSAGE)


def read_delay() -> float | None:
    """Return the seconds that the threads of this process were ready to run but had no core. None: unknown."""
    if sys.platform != "linux":
        return None
    delay = None
    for thread in THREADS.iterdir():
        with suppress(OSError, IndexError):  # a thread that has ended, or a kernel without the second number
            delay = (delay or 0) + int((thread / "schedstat").read_text(encoding="ascii").split()[1])
    return None if delay is None else delay / 1e9


class Contention:
    """Decides from samples of the delay whether the cores are contended."""

    def __init__(self) -> None:
        self.is_contended = False
        self._n_contended = 0  # samples in a row
        self._quiet_seconds = 0.0
        self._needed_seconds = QUIET_SECONDS

    def update(self, delay: float, seconds: float) -> bool:
        """Add the delay of all threads in some seconds. Return whether the decision has changed.

        The delay of threads that have ended is no longer counted, so it may be negative.
        """
        before, share = self.is_contended, delay / seconds
        self._n_contended = self._n_contended + 1 if share > CONTENDED else 0
        self._quiet_seconds = self._quiet_seconds + seconds if share < QUIET else 0.0
        if not self.is_contended and self._n_contended >= 2:
            self.is_contended = True
        elif self.is_contended and self._quiet_seconds >= self._needed_seconds:
            self.is_contended = False
            self._needed_seconds *= 2
        return self.is_contended != before


class IdleThreads:
    """Idle OpenMP threads, one more than the cores, in each copy of libgomp that is loaded."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._libraries: set[str] = set()

    def start(self) -> None:
        """Start threads in the copies that have none yet."""
        memory_map = MEMORY_MAP.read_text(encoding="utf-8", errors="surrogateescape")
        found = {*re.findall(r"/.*/libgomp[^/\n]*$", memory_map, re.MULTILINE)}
        for library in found - self._libraries:
            threading.Thread(target=self._hold, args=(library, self._end), daemon=True).start()
        self._libraries |= found

    def end(self) -> None:
        """End all of them."""
        self._end.set()
        self._end, self._libraries = threading.Event(), set()

    @staticmethod
    def _hold(library: str, end: threading.Event) -> None:
        """Run a parallel region that does nothing. Its threads live as long as the thread that runs it."""
        openmp = ctypes.CDLL(library)
        function = ctypes.cast(openmp.omp_get_thread_num, ctypes.c_void_p)
        openmp.GOMP_parallel(function, None, ctypes.c_uint(len(os.sched_getaffinity(0)) + 1), ctypes.c_uint(0))
        end.wait()
