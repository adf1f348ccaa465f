"""The fake CUDA device of this process: load it, and record kernel launches and waits of the host.

`load` must run before PyTorch is imported, which looks for a GPU only once. Afterwards `cuda:0` computes on the CPU,
with the random numbers of the CPU, and `torch.cuda` answers as for one GPU.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

HERE = f"{Path(__file__).parent}/"
TESTS = f"{Path(__file__).parents[1]}/"
ROOT = f"{Path(__file__).parents[2]}/"
PACKAGE = f"{ROOT}transformer_mt/"
TENSORS_PER_LAUNCH = 128  # of an operator on lists; the argument of a kernel holds up to 150 addresses
KERNELS = {
    "aten::_efficient_attention_backward": 3,
    "aten::_scaled_dot_product_efficient_attention_backward": 3,
    "aten::embedding_dense_backward": 10,
    "aten::native_layer_norm_backward": 3,
    "aten::nonzero": 4,
    "aten::nonzero_static": 4,
    "aten::repeat_interleave": 3,
    "aten::sort": 3,
    "aten::topk": 3,
}
"""Launches of an operator that starts several kernels."""

OBSERVER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)


@dataclass
class Trace:
    """Kernel launches of the device, by operator and line of code."""

    launches: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def n_launches(self) -> int:
        """Return the number of all launches."""
        return self.launches.total()


_traces: list[Trace] = []
_wait_mode = "default"
_n_hidden = 0


def load(library: Path) -> None:
    """Load the device into this process, which has not imported PyTorch."""
    assert "torch" not in sys.modules
    functions = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    for name in ("get_total_bytes", "get_allocated_bytes", "get_peak_bytes"):
        getattr(functions, name).restype = ctypes.c_int64
    functions.set_total_bytes.argtypes = [ctypes.c_int64]
    functions.set_observer(_observe)
    _patch_torch(functions)

    import fake_cuda.kernels  # pyright: ignore[reportUnusedImport]  # noqa: F401


def _patch_torch(functions: Any) -> None:
    """Let `torch.cuda` describe the device. A build of PyTorch for CPUs has no code for this."""
    import torch

    from fake_cuda.graph import RecordedGraph

    def set_memory_fraction(fraction: float, device: object = None) -> None:
        functions.set_total_bytes(int(fraction * total_bytes))

    def describe(device: object = None) -> SimpleNamespace:
        return SimpleNamespace(name="fake GPU", total_memory=total_bytes, major=9, minor=0, multi_processor_count=1)

    def clone_storage(self: torch.UntypedStorage) -> torch.UntypedStorage:
        as_bytes = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self, 0, (len(self),), (1,))
        return as_bytes.clone().untyped_storage()

    total_bytes: int = functions.get_total_bytes()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    replacements: dict[str, Callable[..., Any]] = {
        "CUDAGraph": RecordedGraph,
        "Stream": lambda device=None: stream,
        "current_stream": lambda: stream,
        "graph_pool_handle": lambda: (0, 0),
        "stream": lambda stream: nullcontext(),
        "_exchange_device": lambda device: 0,
        "_lazy_init": lambda: None,
        "_maybe_exchange_device": lambda device: 0,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: describe().name,
        "get_device_properties": describe,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_initialized": lambda: True,
        "manual_seed_all": lambda seed: None,
        "max_memory_allocated": lambda device=None: functions.get_peak_bytes(),
        "mem_get_info": lambda device=None: (
            functions.get_total_bytes() - functions.get_allocated_bytes(),
            functions.get_total_bytes(),
        ),
        "memory_allocated": lambda device=None: functions.get_allocated_bytes(),
        "memory_reserved": lambda device=None: functions.get_allocated_bytes(),
        "reset_peak_memory_stats": lambda device=None: functions.reset_peak_bytes(),
        "set_device": lambda device: None,
        "set_per_process_memory_fraction": set_memory_fraction,
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "set_sync_debug_mode": _set_wait_mode,
        "synchronize": lambda device=None: None,
    }
    for name, function in replacements.items():
        setattr(torch.cuda, name, function)
    torch.UntypedStorage.clone = clone_storage  # used by `copy.deepcopy`


# --- recording --------------------------------------------------------------------------------------------------------


@contextmanager
def record() -> Generator[Trace]:
    """Record the launches inside the `with` block."""
    _traces.append(Trace())
    try:
        yield _traces[-1]
    finally:
        _traces.pop()


@contextmanager
def hidden() -> Generator[None]:
    """Hide the operators inside the `with` block, which are the parts of one kernel."""
    global _n_hidden
    _n_hidden += 1
    try:
        yield
    finally:
        _n_hidden -= 1


def observe(name: str, n_launches: int) -> None:
    """Record an operator, unless it is hidden."""
    for trace in () if _n_hidden else _traces:
        path, line = find_place()
        trace.launches[name.removeprefix("aten::"), f"{path}:{line}"] += n_launches


@OBSERVER
def _observe(name: bytes, n_tensors: int, is_launch: int, is_wait: int) -> int:
    if _n_hidden:
        return 0
    operator = name.decode()
    if is_launch and _traces:
        is_list = operator.startswith(("aten::_foreach_", "aten::_fused_adam"))
        observe(operator, -(-n_tensors // TENSORS_PER_LAUNCH) if is_list else KERNELS.get(operator, 1))
    if is_wait and _wait_mode == "warn":
        path, line = find_place()
        warnings.warn_explicit(f"called a synchronizing CUDA operation: {operator}", UserWarning, path, line)
    return int(is_wait and _wait_mode == "error")


def _set_wait_mode(mode: str) -> None:
    global _wait_mode
    _wait_mode = mode


def find_place() -> tuple[str, int]:
    """Return file and line of the innermost code of the package, or of a test, that runs now."""
    test: tuple[str, int] | None = None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            return path.removeprefix(ROOT), frame.f_lineno
        if test is None and path.startswith(TESTS) and not path.startswith(HERE):
            test = path.removeprefix(ROOT), frame.f_lineno
        frame = frame.f_back
    return test or ("backward pass", 0)  # which runs in a thread of its own
