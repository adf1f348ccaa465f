"""Predict the peak memory of a training step, and choose the largest batch size that fits a GPU.

Both try the most expensive batches. A trial computes loss and gradients, and changes neither the weights nor the state
of the random number generator. `step_bytes` is the memory that a step needs in addition, such as optimizer state.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from transformer_mt.data.batches import Batch, BatchStream
from transformer_mt.errors import UserError
from transformer_mt.system.device import is_out_of_memory, release_memory
from transformer_mt.system.files import format_bytes

CPU_TOKENS = 4096  # `batches.tokens: auto` on anything but a CUDA GPU
MIN_TOKENS, MAX_TOKENS = 256, 2**18  # range of `batches.tokens: auto`
MIN_BATCHES = 50  # per epoch with `batches.tokens: auto`, because larger batches of a small corpus train badly
MEMORY_SHARE = 0.9  # of the GPU memory with `batches.tokens: auto`; fragmentation needs the rest
MOMENTS_PER_WEIGHT = 2  # that Adam stores; Muon stores one

TryBatch = Callable[[Batch], object]
"""Computes loss and gradients of a batch. Raises torch's error if memory runs out."""


# --- prediction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryPrediction:
    """Peak memory of a training step with the largest batch."""

    largest_batch: tuple[int, int, int]  # pairs, source length, target length
    n_bytes: int | None  # None: the trial ran out of memory
    available: int  # bytes that the process may use in total
    device: str
    start_bytes: int = 0
    """Resident memory of the process before the trial; 0 on a CUDA GPU."""

    def max_positions(self, memory_bytes: int) -> int:
        """Return how many padded source and target positions fit into memory, which grows in proportion to them."""
        pairs, src_length, tgt_length = self.largest_batch
        if not self.n_bytes:
            return 0
        return int(MEMORY_SHARE * memory_bytes / self.n_bytes * pairs * (src_length + tgt_length))

    @property
    def fits(self) -> bool:
        """Return whether the largest batch fits into memory."""
        return self.n_bytes is not None and self.n_bytes <= self.available

    def describe(self) -> str:
        """Return the line for the log."""
        shape = " x ".join(f"{n:,}" for n in self.largest_batch)
        subject = f"the largest batch (pairs x source x target: {shape})"
        if self.n_bytes is not None and self.fits:
            return f"{subject} takes {format_bytes(self.n_bytes)} of {format_bytes(self.available)}"
        remedy = "it will be split, which takes time; lower batches.tokens or data.max_length"
        if self.largest_batch[0] == 1:
            remedy = "lower data.max_length or the size of the model"
        return f"{subject} does not fit into the {format_bytes(self.available)} of {self.device}: {remedy}"


def predict_memory(
    stream: BatchStream, try_batch: TryBatch, device: torch.device, step_bytes: int = 0
) -> MemoryPrediction:
    """Try the most expensive batches, and return the peak memory of a step."""
    batches = select_most_expensive_batches(stream)
    start_bytes = 0 if device.type == "cuda" else read_resident_bytes()
    peak, limit = measure_peak(batches, try_batch, device), read_memory_limit(device)
    shape = len(batches[0].src), batches[0].src.size(1), batches[0].labels.size(1)
    n_bytes = None if peak is None else peak + step_bytes
    return MemoryPrediction(shape, n_bytes, limit, str(device), start_bytes)


def select_most_expensive_batches(stream: BatchStream) -> list[Batch]:
    """Return the batches of all epochs with the most tokens and the most attention scores, without subword sampling."""
    n, s, t = (stream.plan.shapes[:, i] for i in range(3))  # pairs, source length, target length
    costs = n * (s + t), n * (s * s + s * t + t * t)
    return [stream.batch_of_shape(i) for i in dict.fromkeys(int(np.argmax(cost)) for cost in costs)]


def measure_peak(batches: list[Batch], try_batch: TryBatch, device: torch.device) -> int | None:
    """Try batches one by one, and return the peak memory in bytes, or None if memory runs out.

    This is allocated memory on a CUDA GPU, otherwise resident memory of the process.
    """
    _reset_peak(device)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for batch in batches:
                try_batch(batch)
        return read_peak(device)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    release_memory(device)  # outside of the handler, whose traceback keeps tensors alive
    return None


def read_memory_limit(device: torch.device) -> int:
    """Return the bytes that this process may use in total, with those that it uses already.

    On a CUDA GPU, this is memory that other processes leave; otherwise RAM within the limits of container and ulimit.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    cgroup, (address_space, _) = Path("/sys/fs/cgroup/memory.max"), resource.getrlimit(resource.RLIMIT_AS)
    if cgroup.exists() and (text := cgroup.read_text(encoding="utf-8").strip()).isdigit():
        limits.append(int(text))
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def read_free_memory(device: torch.device) -> int:
    """Return the bytes within the limit that no process uses."""
    limit = read_memory_limit(device)
    if device.type == "cuda":
        return limit
    with suppress(OSError, KeyError):
        return min(limit, _read_memory("/proc/meminfo", "MemAvailable"))
    return limit


def check_weights_fit(n_bytes: int, n_trained: int, device: torch.device) -> None:
    """Raise `UserError` if weights of `n_bytes`, gradients and optimizer state alone exceed the free memory.

    `n_trained` bytes of the weights are trained.
    """
    needed, free = n_bytes + (1 + MOMENTS_PER_WEIGHT) * n_trained, read_free_memory(device)
    if needed > free:
        raise UserError(
            f"model: needs {format_bytes(needed)} before the first batch (weights: {format_bytes(n_bytes)}, gradients: "
            f"{format_bytes(n_trained)}, optimizer state: {format_bytes(MOMENTS_PER_WEIGHT * n_trained)}), but "
            f"only {format_bytes(free)} are free on {device};\nlower model.d_model, model.d_ff, "
            "model.encoder.n_layers or model.decoder.n_layers, or end other programs"
        )


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # the file is missing or read-only
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # see proc(5)


def read_peak(device: torch.device) -> int:
    """Return the peak memory of this process in bytes, since the last prediction."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, KeyError):
        return _read_memory("/proc/self/status", "VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes


def read_resident_bytes() -> int:
    """Return the resident memory of this process in bytes, or 0 on other systems than Linux."""
    with suppress(OSError, KeyError):
        return _read_memory("/proc/self/status", "VmRSS")
    return 0


def _read_memory(file: str, key: str) -> int:
    """Return a value of a file of the proc file system, which has it in kB, in bytes."""
    lines = dict(line.split(":", 1) for line in Path(file).read_text(encoding="utf-8").splitlines())
    return int(lines[key].split()[0]) * 1024


# --- batches.tokens: auto ---------------------------------------------------------------------------------------------


def choose_batch_tokens(
    make_stream: Callable[[int], BatchStream], try_batch: TryBatch, device: torch.device, step_bytes: int = 0
) -> int:
    """Resolve `batches.tokens: auto`: the largest value that fits a CUDA GPU, or `CPU_TOKENS` on other devices.

    An epoch has at least 50 batches if possible. Raises `UserError` if not even the smallest value fits.
    """
    if device.type != "cuda":
        return CPU_TOKENS

    def fits(tokens: int) -> bool:
        peak = measure_peak(select_most_expensive_batches(make_stream(tokens)), try_batch, device)
        return peak is not None and peak + step_bytes <= MEMORY_SHARE * read_memory_limit(device)

    if not fits(MIN_TOKENS):
        raise UserError(
            f"batches.tokens: not even batches of {MIN_TOKENS} tokens fit; lower data.max_length, or the model's size"
        )
    corpus = make_stream(MAX_TOKENS).reader.corpus
    n_tokens = corpus.tgt.n_tokens + len(corpus)  # with end symbols
    return find_largest_that_fits(fits, MIN_TOKENS, max(MIN_TOKENS, min(MAX_TOKENS, n_tokens // MIN_BATCHES)))


def find_largest_that_fits(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Search the largest number from `low` to `high` that fits, to within a sixteenth. `low` must fit."""
    end = high + 1  # smallest number that does not fit or is not allowed
    while end - low > max(1, low // 16):
        middle = min(2 * low, (low + end) // 2)
        low, end = (middle, end) if fits(middle) else (low, middle)
    return low
