"""One step: micro-batches to gradients, their sum over all processes, and the optimiser's move along the mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from transformer_mt.data.batches import Batch
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine
from transformer_mt.system.memory import is_out_of_memory, release_memory
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.loss import BatchLoss

Number = TypeVar("Number", float, Tensor)


class Sums(NamedTuple, Generic[Number]):
    """What micro-batches come to, added up."""

    loss: Number
    nll: Number
    consistency: Number
    n_src: Number
    n_tgt: Number
    cells: Number  # padded positions of both sides
    splits: Number  # of batches that did not fit into memory


class Part(NamedTuple):
    """One micro-batch, or several: their sums, and the gradient of the summed loss for each parameter."""

    sums: Sums[Tensor]
    gradients: list[Tensor]

    def plus(self, other: Part) -> Part:
        """Both together. Not in place: one tensor may be the gradient of two parameters."""
        sums = [one + another for one, another in zip(self.sums, other.sums, strict=True)]
        return Part(Sums(*sums), [one + another for one, another in zip(self.gradients, other.gradients, strict=True)])


class Taken(NamedTuple):
    """What a step came to, on the device: to read it is to wait for it."""

    sums: Sums[Tensor]
    norm: Tensor  # of the mean gradient


class TrainStep:
    """Moves a model's weights, a step at a time. The result depends neither on how the micro-batches are shared out
    among processes nor on how one that does not fit into memory is split, but for rounding (and, split, for dropout).

    `halve` makes two batches of one; it says what cannot be split.
    """

    def __init__(
        self,
        model: Transformer,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        loss: BatchLoss,
        clip_norm: float | None,
        seed: int,
        machine: Machine,
        ranks: Ranks,
        halve: Callable[[Batch], Sequence[Batch]],
    ) -> None:
        self.model, self.optimizers, self.parameters = model, optimizers, list(model.parameters())
        self.loss, self.clip_norm, self.seed = loss, clip_norm, seed
        self.machine, self.ranks, self.halve = machine, ranks, halve

    def update(self, step: int, learning_rate: float, batches: Sequence[Batch]) -> Taken:
        """Take a step with this rank's share of its micro-batches, on the mean loss of all labels of all ranks.

        Where the gradient is not finite, or there is no label, nothing changes.
        """
        share: Part | None = None
        for i, batch in enumerate(batches):
            torch.manual_seed(self.chance(step, self.ranks.rank + i * self.ranks.size))
            part = self.sum_up(batch)
            share = share.plus(part) if share else part
        assert share is not None
        sums, *gradients = self.ranks.all_reduce_sum([torch.stack(share.sums), *share.gradients])
        # copies: they are read late, and until then a part of the exchange would hold on to all gradients
        total = Sums(*sums.clone())
        taken = Taken(total, norm=get_total_norm(gradients) / total.n_tgt)
        self.move(learning_rate, gradients, total.n_tgt, taken.norm)
        return taken

    def chance(self, step: int, number: int) -> int:
        """The seed of what is random in one micro-batch: the same on whatever rank, and after whatever happened."""
        return int(np.random.SeedSequence([self.seed, step, number]).generate_state(1)[0])

    def sum_up(self, batch: Batch) -> Part:
        """What `loss_and_gradients` finds of a batch; one for which there is no memory is split."""
        try:
            return loss_and_gradients(self.model, batch, machine=self.machine, loss=self.loss)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # outside of the handler, whose traceback holds on to the memory
        release_memory(self.machine.device)
        left, right = (self.sum_up(half) for half in self.halve(batch))
        whole = left.plus(right)
        return whole._replace(sums=whole.sums._replace(splits=whole.sums.splits + 1))

    def move(self, learning_rate: float, gradients: Sequence[Tensor], n_labels: Tensor, norm: Tensor) -> None:
        """The optimisers' step. They divide by the number of labels and clip as they go; see `make_optimizers` for the
        two tensors that they use."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        excess = (norm / (self.clip_norm or float("inf"))).clamp(min=1.0)
        scale, is_finite = n_labels * excess, norm.isfinite()
        if self.machine.device.type == "mps":  # whose fused kernel reads neither of the two
            if not is_finite:
                return
            for gradient in gradients:
                gradient.div_(scale)
            scale = torch.ones_like(scale)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.grad_scale = scale  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.found_inf = (~is_finite).float()  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.step()
            optimizer.zero_grad()


def loss_and_gradients(model: Transformer, batch: Batch, *, machine: Machine, loss: BatchLoss) -> Part:
    """What a batch comes to, and the gradient of its summed loss for each parameter of the model.

    The model is left as it is, also where memory ends half-way: hence not `backward`, which adds up in the parameters.
    """
    with machine.autocast():
        found = loss(model, batch.to(machine.device))
    gradients = torch.autograd.grad(found.total, list(model.parameters()), materialize_grads=True)
    cells = batch.src.numel() + batch.labels.numel()
    n_src, n_tgt, cells, splits = (torch.full_like(found.nll, count) for count in (batch.n_src, batch.n_tgt, cells, 0))
    sums = Sums(found.total.detach(), found.nll, found.consistency, n_src, n_tgt, cells, splits)
    return Part(sums, list(gradients))
