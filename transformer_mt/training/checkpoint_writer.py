"""Writing checkpoints in a background thread, while the training continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

from torch import Tensor

from transformer_mt.system.logging import log

T = TypeVar("T")


class CheckpointWriter:
    """Context manager that runs one write at a time in a thread. Leaving the context waits for it.

    Writing needs seconds for a large model, mostly for the disk and checksums, which release the GIL.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        if self._pending is not None and (error := self._pending.exception()):  # another error ended the training
            log(f"tmt: the last checkpoint was not written: {error}")

    def submit(self, write: Callable[[], None]) -> None:
        """Start a write. Wait for the previous one first, and raise its error."""
        self.wait()
        self._pending = self._pool.submit(write)

    def wait(self) -> None:
        """Wait for the write that is under way, and raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def raise_error(self) -> None:
        """Raise the error of a write that has failed, without waiting for one that is under way."""
        if self._pending is not None and self._pending.done():
            self.wait()


def copy_to_host(values: T) -> T:
    """Copy the tensors in nested dicts and lists to the CPU, so that training can change the originals."""
    copied: Any = values
    if isinstance(values, Tensor):
        copied = values.detach().to("cpu", copy=True)
    elif isinstance(values, dict):
        copied = {key: copy_to_host(value) for key, value in cast("dict[Any, Any]", values).items()}
    elif isinstance(values, list):
        copied = [copy_to_host(value) for value in cast("list[Any]", values)]
    return cast(T, copied)
