"""Memory of a step, known before the first: the worst batches are tried out, and nothing is kept of it.

`try_batch` computes the loss of a batch and its gradients, and raises what torch raises where memory does not suffice;
it moves no weight. What is drawn at random meanwhile is drawn again afterwards: a run is the same to the bit, with
trials and without. `besides` are the bytes that a step needs on top, such as the optimiser's moments.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from transformer_mt.data.batches import Batch, BatchStream
from transformer_mt.errors import UserError
from transformer_mt.system.files import format_bytes
from transformer_mt.system.memory import is_out_of_memory, release_memory

LEAST, MOST = 256, 2**18  # budgets between which `auto` chooses
LEAST_BATCHES = 50  # of an epoch: with fewer, little is learnt from so much
SHARE = 0.9  # of a GPU's memory that is planned with; the rest is lost between the blocks
NEARLY = 0.95  # of the best rate: what a CPU is content with

TryBatch = Callable[[Batch], object]


# --- the prediction ---------------------------------------------------------------------------------------------------


def predict(stream: BatchStream, try_batch: TryBatch, device: torch.device, besides: int = 0) -> str:
    """Try the worst batches, and say what a step takes at its peak, and of how much."""
    worst = heaviest(stream)
    peak, there = measure(worst, try_batch, device), capacity(device)
    shape = " x ".join(f"{n:,}" for n in (len(worst[0].src), worst[0].src.size(1), worst[0].labels.size(1)))
    about = f"the largest batch (pairs x source x target: {shape})"
    if peak is None or peak + besides > there:
        return (
            f"{about} does not fit into the {format_bytes(there)} of {device}: it will be split, which takes time; "
            "lower batches.tokens or data.max_length"
        )
    return f"{about} takes {format_bytes(peak + besides)} of {format_bytes(there)}"


def heaviest(stream: BatchStream) -> list[Batch]:
    """The batch with the most tokens, and the one with the most pairs of tokens that attend to each other.

    Of all epochs; with subword sampling a batch may become somewhat larger.
    """
    b, s, t = (stream.bucketed.shapes[:, i] for i in range(3))
    costs = b * (s + t), b * (s * s + s * t + t * t)
    plan = stream.bucketed.shortest_first()
    return [stream.collate(plan[i], 0) for i in dict.fromkeys(int(np.argmax(cost)) for cost in costs)]


def measure(batches: list[Batch], try_batch: TryBatch, device: torch.device) -> int | None:
    """Bytes in use at the peak while batches are tried one by one: of the GPU, else resident ones of the process.

    None where they ran out.
    """
    _forget_peak(device)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for batch in batches:
                try_batch(batch)
        return _peak(device)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    release_memory(device)  # outside of the handler, whose traceback holds on to the memory
    return None


def capacity(device: torch.device) -> int:
    """Bytes that this process may use: what the GPU has free, or the machine's memory within the limits of its
    container and of its addresses."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    there = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    of_container, (of_addresses, _) = Path("/sys/fs/cgroup/memory.max"), resource.getrlimit(resource.RLIMIT_AS)
    if of_container.exists() and (text := of_container.read_text(encoding="utf-8").strip()).isdigit():
        there.append(int(text))
    if of_addresses != resource.RLIM_INFINITY:
        there.append(of_addresses)
    return min(there)


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # what is not there, or not allowed
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # see proc(5)


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, KeyError):
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes


# --- batches.tokens: auto ---------------------------------------------------------------------------------------------


def choose_budget(
    make_stream: Callable[[int], BatchStream], try_batch: TryBatch, device: torch.device, besides: int = 0
) -> tuple[int, str]:
    """What `batches.tokens: auto` stands for on this machine, and why.

    Of the budgets whose worst batches fit, on a GPU the largest; elsewhere, where memory seldom decides, the smallest
    that is nearly as fast as any. Never so large that an epoch has fewer than 50 batches. Raises `UserError` where not
    even the least fits.
    """

    def fits(tokens: int) -> bool:
        peak = measure(heaviest(make_stream(tokens)), try_batch, device)
        return peak is not None and peak + besides <= SHARE * capacity(device)

    def rate_of(tokens: int) -> float:
        return rate(make_stream(tokens), try_batch) if fits(tokens) else 0.0

    if not fits(LEAST):
        raise UserError(
            f"batches.tokens: not even batches of {LEAST} tokens fit; lower data.max_length, or take a smaller model"
        )
    corpus = make_stream(MOST).corpus
    most = max(LEAST, min(MOST, (len(corpus.tgt.ids) + len(corpus)) // LEAST_BATCHES))
    if device.type == "cuda":
        return largest(fits, LEAST, most), f"the largest that fits into {SHARE:.0%} of {format_bytes(capacity(device))}"
    return fastest(rate_of, LEAST, most), "the fastest, or nearly"


def largest(fits: Callable[[int], bool], least: int, most: int) -> int:
    """The largest budget that fits, as the least does, to a sixteenth: by doubling, then by halving what is between."""
    low, high = least, most + 1  # what fits, and what does not
    while high - low > max(1, low // 16):
        middle = min(2 * low, (low + high) // 2)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fastest(rate: Callable[[int], float], least: int, most: int) -> int:
    """Of the doubled budgets, the smallest that is nearly as fast as the fastest. None is tried behind two slower, or
    behind one that has no rate, since it does not fit."""
    rates: dict[int, float] = {}
    tokens = least
    while tokens <= most and (len(rates) < 2 or max([*rates.values()][-2:]) >= max(rates.values())):
        rates[tokens] = rate(tokens)
        if not rates[tokens]:
            break
        tokens *= 2
    return next(tokens for tokens, found in rates.items() if found >= NEARLY * max(rates.values()))


def rate(stream: BatchStream, try_batch: TryBatch) -> float:
    """Target tokens per second over batches of short, middling and long sentences; each is computed twice, and the
    second time counts."""
    plan, labels, seconds = stream.bucketed.shortest_first(), 0, 0.0
    with torch.random.fork_rng([]):
        for i in {len(plan) * quarter // 4 for quarter in (1, 2, 3)}:
            batch = stream.collate(plan[i], 0)
            try_batch(batch)
            began = time.perf_counter()
            try_batch(batch)
            seconds += time.perf_counter() - began
            labels += batch.n_tgt
    return labels / seconds
