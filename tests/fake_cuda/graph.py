"""A CUDA graph of the fake device: it records operations with their tensors, and repeats them without Python code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fake_cuda.device import hidden, observe


class RecordedGraph(TorchDispatchMode):
    """`torch.cuda.CUDAGraph`. Unlike a GPU, the device also computes the operations while they are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        """Start to record."""
        self.__enter__()

    def capture_end(self) -> None:
        """Stop recording."""
        self.__exit__(None, None, None)

    def replay(self) -> None:
        """Repeat the operations with the same tensors, also for their results."""
        observe("graph", 1)
        with hidden(), torch.no_grad():
            for func, args, kwargs, result in self.operations:
                for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():  # no view, and not in place
                        old.copy_(new.reshape_as(old))  # its shape may have changed in place


def record(run: Callable[[], None]) -> Callable[[], None]:
    """Return a function that repeats the operations of `run`."""
    graph = RecordedGraph()
    graph.capture_begin()
    run()
    graph.capture_end()
    return graph.replay
