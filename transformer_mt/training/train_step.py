"""One optimizer step: gradients of the micro-batches, their sum over all ranks, and the update of the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from transformer_mt.data.batches import Batch
from transformer_mt.model.transformer import Transformer
from transformer_mt.model.weight_cast import WeightCast
from transformer_mt.system.device import Machine
from transformer_mt.system.memory import is_out_of_memory, release_memory
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.gradients import GradientSum
from transformer_mt.training.loss_config import BatchLoss

Number = TypeVar("Number", float, Tensor)


class StepMetrics(NamedTuple, Generic[Number]):
    """Sums over all labels of one step and all ranks, on the device or, after a synchronisation, as numbers."""

    loss: Number
    nll: Number
    consistency: Number
    n_src: Number
    n_tgt: Number
    n_padded: Number  # source and target positions, including padding, even if packing has removed it
    n_splits: Number  # batches that were split because memory ran out
    grad_norm: Number  # of the mean gradient per label
    source_nll: tuple[Number, ...] = ()  # of each source of a mixture
    source_n_tgt: tuple[Number, ...] = ()

    def values(self) -> list[Number]:
        """Return all numbers in a row."""
        return [*self[:8], *self.source_nll, *self.source_n_tgt]


def metrics_from_values(values: Sequence[Number]) -> StepMetrics[Number]:
    """Undo `StepMetrics.values`."""
    loss, nll, consistency, n_src, n_tgt, n_padded, n_splits, grad_norm, *rest = values
    source_nll, source_n_tgt = tuple(rest[: len(rest) // 2]), tuple(rest[len(rest) // 2 :])
    return StepMetrics(loss, nll, consistency, n_src, n_tgt, n_padded, n_splits, grad_norm, source_nll, source_n_tgt)


class TrainStep:
    """Updates the weights of a model, one optimizer step per call.

    On a CPU, the result depends on the number of ranks only by rounding. Packing on CUDA and the splitting of batches
    also change the random numbers of dropout. `split_batch` divides a batch in two, or raises an error if it has a
    single pair.
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
        split_batch: Callable[[Batch], Sequence[Batch]],
        n_sources: int = 0,
    ) -> None:
        """`n_sources` is the number of sources of a mixture, whose losses are summed separately; 0: no mixture."""
        self.n_sources = n_sources
        self.model, self.optimizers, self.parameters = model, optimizers, list(model.parameters())
        self.gradient_sum = GradientSum(self.parameters, ranks)
        self.loss, self.clip_norm, self.seed = loss, clip_norm, seed
        self.machine, self.ranks, self.split_batch = machine, ranks, split_batch
        is_cast = machine.device.type == "cuda" and machine.precision == "bf16"
        self.cast_weights = WeightCast(model, torch.bfloat16) if is_cast else nullcontext

    def __call__(self, step: int, learning_rate: float, batches: Sequence[Batch]) -> StepMetrics[Tensor]:
        """Update the weights with this rank's micro-batches, on the mean loss per label over all ranks.

        The update is skipped if the gradient is not finite or there is no label.
        """
        sums: list[Tensor] = []
        for i, batch in enumerate(batches):
            torch.manual_seed(self.micro_batch_seed(step, self.ranks.rank + i * self.ranks.size))
            sums.append(self.forward_backward(batch, is_last=i == len(batches) - 1))
        gradients = self.gradient_sum.take_sums()
        (total,) = self.ranks.all_reduce_sum([torch.stack(sums).sum(0)])
        metrics = metrics_from_values([*total[:7], get_total_norm(gradients), *total[7:]])
        metrics = metrics._replace(grad_norm=metrics.grad_norm / metrics.n_tgt)
        self.apply_gradients(learning_rate, gradients, metrics.n_tgt, metrics.grad_norm)
        return metrics

    def micro_batch_seed(self, step: int, index: int) -> int:
        """Return the dropout seed of a micro-batch, which does not depend on the rank or on previous steps."""
        return int(np.random.SeedSequence([self.seed, step, index]).generate_state(1)[0])

    def forward_backward(
        self, batch: Batch, *, is_last: bool, complete_buckets: AbstractSet[int] = frozenset()
    ) -> Tensor:
        """Add the gradients of a micro-batch to the step, and return its sums [7 + 2 K]. Split it if memory runs out.

        `is_last` means that this rank has no further micro-batch in this step. `complete_buckets` are those of
        `GradientSum` that include this micro-batch already.
        """
        complete_buckets = set(complete_buckets)
        try:
            return self.run_passes(batch, is_last=is_last, complete_buckets=complete_buckets)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # outside of the handler, whose traceback keeps the graph of the batch alive
        release_memory(self.machine.device)
        left, right = self.split_batch(batch)
        sums = self.forward_backward(left, is_last=False, complete_buckets=complete_buckets)
        sums = sums + self.forward_backward(right, is_last=is_last, complete_buckets=complete_buckets)
        sums[6] += 1  # n_splits
        return sums

    def run_passes(self, batch: Batch, *, is_last: bool, complete_buckets: set[int]) -> Tensor:
        """Run the forward and backward pass, and return the sums. Returning or raising frees the loss and its graph."""
        with self.cast_weights():
            total, sums = compute_batch_sums(self.model, batch, machine=self.machine, loss=self.loss)
        self.gradient_sum.backward(total, is_last=is_last, complete_buckets=complete_buckets)
        return self.add_source_sums(batch, sums)

    def add_source_sums(self, batch: Batch, sums: Tensor) -> Tensor:
        """Append the sums of the sources, which are 0 for all but the source of the batch. [7] -> [7 + 2 K]."""
        if not self.n_sources:
            return sums
        is_source = torch.arange(self.n_sources, device=sums.device) == batch.source_index  # [K]
        return torch.cat([sums, *(sums[number] * is_source for number in (1, 4))])  # nll and n_tgt

    def apply_gradients(
        self, learning_rate: float, gradients: Sequence[Tensor], n_labels: Tensor, grad_norm: Tensor
    ) -> None:
        """Update the weights without synchronising: the optimizers average, clip and skip, see `make_optimizers`."""
        clip_factor = (grad_norm / (self.clip_norm or float("inf"))).clamp(min=1.0)
        scale, is_finite = n_labels * clip_factor, grad_norm.isfinite()
        if self.machine.device.type == "mps":  # its fused kernel ignores `grad_scale` and `found_inf`
            if not is_finite:
                return
            for gradient in gradients:
                gradient.div_(scale)
            scale = torch.ones_like(scale)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.grad_scale = scale  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.found_inf = (~is_finite).float()  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.step()
            optimizer.zero_grad()


def compute_batch_sums(model: Transformer, batch: Batch, *, machine: Machine, loss: BatchLoss) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch with its graph [], and the first seven fields of `StepMetrics` without a graph [7]."""
    with machine.autocast():
        total, nll, consistency = loss(model, batch.to(machine.device))
    n_splits = 0
    counts = [torch.full_like(nll, count) for count in (batch.n_src, batch.n_tgt, batch.n_padded, n_splits)]
    return total, torch.stack([total.detach(), nll, consistency, *counts])


class SumsAndGradients(NamedTuple):
    """The sums of a batch (see `compute_batch_sums`), and the gradient of its loss for each parameter."""

    sums: Tensor
    gradients: list[Tensor]


def loss_and_gradients(model: Transformer, batch: Batch, *, machine: Machine, loss: BatchLoss) -> SumsAndGradients:
    """Compute loss and gradients of a batch without a `TrainStep`, and leave the model unchanged."""
    total, sums = compute_batch_sums(model, batch, machine=machine, loss=loss)
    return SumsAndGradients(sums, [*torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)])
