"""Collectives of the processes that `torchrun` starts for one training. Without torchrun there is a single process.

Every rank holds the whole model. The ranks share the micro-batches of a step, and `DistributedDataParallel` averages
their gradients during the last backward pass (train_step.py).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType]

from transformer_mt.errors import UserError
from transformer_mt.system import launcher
from transformer_mt.system.device import is_out_of_memory

CPU_GROUP_TIMEOUT = timedelta(hours=2)
"""Timeout of the collectives of the CPU group, which wait while rank 0 writes or measures."""
POLL_SECONDS = 1.0
RANK0_DONE_KEY = "rank 0 is done"  # key of the store
JOIN_POLL_SECONDS = 0.05
STEP_TIMEOUT = timedelta(minutes=10)
"""Timeout of the default group, such as for gradients. It ends the training if a rank hangs, or its machine loses power
or network. The death of a rank is noticed at once, because its connections close."""

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process and the others of the same training."""

    rank: int = 0
    size: int = 1
    cpu_group: dist.ProcessGroup | None = None  # on CPU, with `CPU_GROUP_TIMEOUT`
    store: Store | None = None  # of torchrun

    @property
    def is_rank0(self) -> bool:
        """Return True for the rank that logs and writes files."""
        return self.rank == 0

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """Return this rank's items: every `size`-th one, starting with number `rank`."""
        return items[self.rank :: self.size]

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum each tensor over all ranks, in one all-reduce with `STEP_TIMEOUT`. All ranks get the same bits."""
        if self.size == 1:
            return list(tensors)
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with translate_errors():
            dist.all_reduce(flat)
        parts = flat.split_with_sizes([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def all_reduce_max(self, number: int) -> int:
        """Return the maximum over all ranks."""
        if self.size == 1:
            return number
        maximum = torch.tensor(number)
        with translate_errors():
            dist.all_reduce(maximum, dist.ReduceOp.MAX, group=self.cpu_group)
        return int(maximum)

    def all_gather(self, shard: Sequence[T]) -> list[T]:
        """Undo `shard`: return the items of all ranks in their original order."""
        if self.size == 1:
            return list(shard)
        shards: list[Any] = [None] * self.size
        with translate_errors():
            dist.all_gather_object(shards, list(shard), group=self.cpu_group)
        rows = [list(part) for part in cast("list[list[T]]", shards)]
        return [part[i] for i in range(len(rows[0])) for part in rows if i < len(part)]

    def run_on_rank0(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0 only, and return its result on every rank."""
        result: list[Any] = [function() if self.is_rank0 else None]
        if self.size > 1:
            with translate_errors():
                dist.broadcast_object_list(result, group=self.cpu_group)
        return cast(T, result[0])

    @contextmanager
    def rank0_first(self) -> Generator[None]:
        """Run the `with` block on rank 0, and then on the other ranks, which find its files.

        Call it once in a training, because its key stays in the store. The others poll the store, because rank 0 may
        take longer than any timeout of a collective. The store closes if the machine of rank 0 fails; a `UserError`
        then ends them.
        """
        if self.store is not None and not self.is_rank0:
            with translate_errors():
                while not self.store.check([RANK0_DONE_KEY]):
                    time.sleep(POLL_SECONDS)
        yield
        if self.store is not None and self.is_rank0:
            self.store.set(RANK0_DONE_KEY, "")

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        if self.size > 1:
            with translate_errors():
                dist.barrier(self.cpu_group)


@contextmanager
def init_ranks(accumulate: int) -> Generator[Ranks]:
    """Connect to the other processes that `torchrun` started, if any.

    Raises `UserError` for an incomplete environment, and for more processes than batches per step.
    """
    size = launcher.world_size()
    if size == 1:
        yield Ranks()
        return
    if missing := [name for name in launcher.REQUIRED_VARIABLES if name not in os.environ]:
        raise UserError(
            f"WORLD_SIZE is {size} in the environment, but {missing[0]} is missing: start the processes with "
            "torchrun, or unset WORLD_SIZE"
        )
    if size > accumulate:
        raise UserError(
            f"batches.accumulate: {accumulate}: {size} processes cannot share so few batches per step: set it to "
            f"{size} or a multiple (which makes a step larger), or start {accumulate}"
        )
    if (number := launcher.local_rank()) is not None and number < torch.cuda.device_count():
        torch.cuda.set_device(number)
    store, rank, _ = next(rendezvous("env://", timeout=CPU_GROUP_TIMEOUT))
    store = PrefixStore(_agree_on_prefix(store, rank, size), store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
    cpu_group = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=CPU_GROUP_TIMEOUT))
    yield Ranks(rank, size, cpu_group, store)
    # skipped after an error: NCCL would wait for the other ranks, which wait for the end of this process
    dist.destroy_process_group()


def _agree_on_prefix(store: Store, rank: int, size: int) -> str:
    """Return a key prefix for this start of the job. A restarted job gets the same store, with the keys of dead ranks.

    The nodes of an elastic job count restarts differently, so the count cannot be the prefix. Each rank writes a random
    number. Rank 0 publishes all numbers until each other rank has found its own. The number of rank 0 is the prefix.
    """
    own, deadline = secrets.token_hex(8), time.monotonic() + STEP_TIMEOUT.total_seconds()
    store.set(f"rank-{rank}", own)
    while time.monotonic() < deadline:
        if rank == 0:
            found = [_read(store, f"rank-{other}") for other in range(size)]
            store.set("start", " ".join(number or "none" for number in found))
            if all(_read(store, f"joined-{other}") == own for other in range(1, size)):
                return own
        else:
            numbers = (_read(store, "start") or "").split()
            if rank < len(numbers) and numbers[rank] == own:
                store.set(f"joined-{rank}", numbers[0])
                return numbers[0]
        time.sleep(JOIN_POLL_SECONDS)
    raise UserError(f"not all {size} processes of this training have started within {STEP_TIMEOUT}")


def _read(store: Store, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None


@contextmanager
def translate_errors() -> Generator[None]:
    """Turn the error of a failed collective into a `UserError`."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"another process of this training died or hangs, or memory ran out ({str(error).splitlines()[0]});\n"
            "see its message above; run the same command to resume from the last checkpoint, or let "
            "torchrun --max-restarts N do so"
        ) from None
