"""One optimizer step: gradients of the micro-batches, their sum over all ranks, and the update of the weights."""

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


class MicroBatchResult(NamedTuple):
    """Sums over the labels of one or more micro-batches, and the gradients of the summed loss."""

    sums: Tensor  # [7 + 2 K] the fields of `StepMetrics` without `grad_norm`
    gradients: list[Tensor]  # one per parameter of the model

    def plus(self, other: MicroBatchResult) -> MicroBatchResult:
        """Return the sum. Nothing is added in place, because two parameters may share one gradient tensor."""
        gradients = [mine + theirs for mine, theirs in zip(self.gradients, other.gradients, strict=True)]
        return MicroBatchResult(self.sums + other.sums, gradients)


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
        self.loss, self.clip_norm, self.seed = loss, clip_norm, seed
        self.machine, self.ranks, self.split_batch = machine, ranks, split_batch

    def __call__(self, step: int, learning_rate: float, batches: Sequence[Batch]) -> StepMetrics[Tensor]:
        """Update the weights with this rank's micro-batches, on the mean loss per label over all ranks.

        The update is skipped if the gradient is not finite or there is no label.
        """
        total: MicroBatchResult | None = None
        for i, batch in enumerate(batches):
            torch.manual_seed(self.micro_batch_seed(step, self.ranks.rank + i * self.ranks.size))
            result = self.forward_backward(batch)
            total = total.plus(result) if total else result
        assert total is not None
        sums, *gradients = self.ranks.all_reduce_sum([total.sums, *total.gradients])
        # `sums` is a view of the buffer of all gradients; a clone lets that buffer be freed before the metrics are read
        sums = [*sums.clone()]
        metrics = metrics_from_values([*sums[:7], get_total_norm(gradients), *sums[7:]])
        metrics = metrics._replace(grad_norm=metrics.grad_norm / metrics.n_tgt)
        self.apply_gradients(learning_rate, gradients, metrics.n_tgt, metrics.grad_norm)
        return metrics

    def micro_batch_seed(self, step: int, index: int) -> int:
        """Return the dropout seed of a micro-batch, which does not depend on the rank or on previous steps."""
        return int(np.random.SeedSequence([self.seed, step, index]).generate_state(1)[0])

    def forward_backward(self, batch: Batch) -> MicroBatchResult:
        """Compute loss and gradients of a micro-batch. Split it if memory runs out."""
        try:
            result = loss_and_gradients(self.model, batch, machine=self.machine, loss=self.loss)
            return self.add_source_sums(batch, result)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        release_memory(self.machine.device)  # outside of the handler, whose traceback keeps tensors alive
        left, right = (self.forward_backward(half) for half in self.split_batch(batch))
        result = left.plus(right)
        result.sums[6] += 1  # n_splits
        return result

    def add_source_sums(self, batch: Batch, result: MicroBatchResult) -> MicroBatchResult:
        """Append the sums of the sources, which are 0 for all but the source of the batch."""
        if not self.n_sources:
            return result
        is_source = torch.arange(self.n_sources, device=result.sums.device) == batch.source_index  # [K]
        by_source = [result.sums[number] * is_source for number in (1, 4)]  # nll and n_tgt
        return result._replace(sums=torch.cat([result.sums, *by_source]))

    def apply_gradients(
        self, learning_rate: float, gradients: Sequence[Tensor], n_labels: Tensor, grad_norm: Tensor
    ) -> None:
        """Update the weights without synchronising: the optimizers average, clip and skip, see `make_optimizers`."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        clip_factor = (grad_norm / (self.clip_norm or float("inf"))).clamp(min=1.0)
        scale, is_finite = n_labels * clip_factor, grad_norm.isfinite()
        if self.machine.device.type == "mps":  # its fused kernel ignores `grad_scale` and `found_inf`
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


def loss_and_gradients(model: Transformer, batch: Batch, *, machine: Machine, loss: BatchLoss) -> MicroBatchResult:
    """Compute the loss of a batch and its gradients, and leave the model unchanged.

    `torch.autograd.grad` replaces `backward`, which would leave incomplete gradients if memory runs out.
    """
    with machine.autocast():
        total, nll, consistency = loss(model, batch.to(machine.device))
    gradients = torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)
    n_splits = 0
    counts = [torch.full_like(nll, count) for count in (batch.n_src, batch.n_tgt, batch.n_padded, n_splits)]
    return MicroBatchResult(torch.stack([total.detach(), nll, consistency, *counts]), list(gradients))
