"""The processes that train together, as `torchrun` starts them; alone there is one.

Every process (a *rank*) holds the whole model. A step's micro-batches are shared out among them, each sums up the
gradients of its own, and one all-reduce adds the sums; another, of one number, says whether to stop. Against
overlapping the exchange with the backward pass, as `DistributedDataParallel` does, this costs the time of one exchange
a step; for it, a rank may split a batch or have nothing to do, and no other waits for a message that never comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType]

from transformer_mt.errors import UserError
from transformer_mt.system import launcher

PATIENCE = timedelta(hours=2)
"""How long ranks wait for each other: the first one tokenises a large corpus before the others can begin."""
STEP = timedelta(minutes=10)
"""How long they wait for each other's gradients, for which all set out together: far above what a step takes, also one
whose batches are split. A process that has died is noticed at once, by its closed connections; this is for one that
hangs, and for a machine that lost its power or its network."""

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    patient: dist.ProcessGroup | None = None  # in which they wait for as long as `PATIENCE`

    @property
    def is_rank0(self) -> bool:
        """Whether this is the one that speaks and writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Every `size`-th item, beginning with this rank's own number."""
        return items[self.rank :: self.size]

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums over all ranks, in one exchange. The same bits on every rank.

        They have to come here at about the same time, see `STEP`; to all other exchanges any of them may be late.
        """
        if self.size == 1:
            return list(tensors)
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _together():
            dist.all_reduce(flat)
        parts = flat.split_with_sizes([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def broadcast_parameters(self, tensors: Iterable[Tensor]) -> None:
        """Give them on every rank, in place, the values that they have on the first one."""
        for tensor in tensors if self.size > 1 else ():
            with _together():
                dist.broadcast(tensor, src=0)

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers: a stop signal that one received, all obey."""
        if self.size == 1:
            return number
        largest = torch.tensor(number)
        with _together():
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.patient)
        return int(largest)

    def gather(self, share: Sequence[T]) -> list[T]:
        """What `share` took apart, in order again, on every rank."""
        if self.size == 1:
            return list(share)
        shares: list[Any] = [None] * self.size
        with _together():
            dist.all_gather_object(shares, list(share), group=self.patient)
        rows = [list(part) for part in cast("list[list[T]]", shares)]
        return [part[i] for i in range(len(rows[0])) for part in rows if i < len(part)]

    def run_on_rank0(self, decide: Callable[[], T]) -> T:
        """What the first rank found; the others wait for it, and do not look themselves."""
        found: list[Any] = [decide() if self.is_rank0 else None]
        if self.size > 1:
            with _together():
                dist.broadcast_object_list(found, group=self.patient)
        return cast(T, found[0])

    @contextmanager
    def rank0_first(self) -> Generator[None]:
        """The first rank does what stands inside, and only then the others, who find its files."""
        if not self.is_rank0:
            self.wait()
        yield
        if self.is_rank0:
            self.wait()

    def wait(self) -> None:
        """Until all have come here."""
        if self.size > 1:
            with _together():
                dist.barrier(self.patient)


@contextmanager
def join(accumulate: int) -> Generator[Ranks]:
    """Meet the processes that `torchrun` started with this one. Without it this is one process alone.

    Raises `UserError` where a step has fewer batches than there are processes.
    """
    size = launcher.world_size()
    if size == 1:
        yield Ranks()
        return
    if missing := [name for name in launcher.REQUIRED_VARIABLES if name not in os.environ]:
        raise UserError(
            f"WORLD_SIZE is {size} in the environment, and {missing[0]} is not there: start the processes with "
            "torchrun, or unset WORLD_SIZE"
        )
    if size > accumulate:
        raise UserError(
            f"batches.accumulate: {accumulate}: {size} processes cannot share so few batches a step: set it to {size}, "
            f"or a multiple (a step is then as much larger), or start {accumulate}"
        )
    if (number := launcher.local_rank()) is not None and number < torch.cuda.device_count():
        torch.cuda.set_device(number)
    store, rank, _ = next(rendezvous("env://", timeout=PATIENCE))
    # torchrun keeps its store when it starts a job anew, with the addresses of those that have died
    store = PrefixStore(f"start-{launcher.restart_count()}", store)
    # messages between CPUs go by gloo, between GPUs by NCCL
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP)
    patient = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=PATIENCE))
    yield Ranks(rank, size, patient)
    # not after an error, or a stop: NCCL would wait here for the others, and these for the end of this process
    dist.destroy_process_group()


@contextmanager
def _together() -> Generator[None]:
    """An exchange, which fails where a process has gone."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f"another process of this training has gone, or hangs ({str(error).splitlines()[0]});\n"
            "what it said stands above; the same command goes on from the last checkpoint, and "
            "torchrun --max-restarts N types it by itself"
        ) from None
