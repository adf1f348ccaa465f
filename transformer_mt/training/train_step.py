"""One optimizer step: gradients of the micro-batches, their mean over all ranks, and the update of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from transformer_mt.data.batches import Batch
from transformer_mt.errors import UserError
from transformer_mt.model.cuda_graphs import Capture
from transformer_mt.model.cuda_kernels import WeightCast
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import Machine, is_out_of_memory, release_memory
from transformer_mt.training.distributed import Ranks, translate_errors
from transformer_mt.training.loss import collect_loss_sums, compute_losses, list_loss_sums
from transformer_mt.training.optimizers import check_tensor, list_trained_parameters
from transformer_mt.training.pass_graphs import PassGraphs
from transformer_mt.training.training_config import LossConfig

StepMetrics = dict[str, Tensor]
"""Metrics of one step by name, still on the device. Reading them synchronises.

Sums over all labels of all ranks: `loss`, `nll`, and of each source of a mixture `nll/NAME` and
`n_tgt/NAME`. Numbers: `n_src`, `n_tgt`, `n_padded` (source and target positions, with the padding that packing may have
removed), and `n_splits`. `grad_norm` is that of the mean gradient per label, and `loss_scale` the factor in fp16.
"""


class LossScale:
    """Factor of the loss in fp16, whose gradients would otherwise be too small (Micikevicius et al. 2018).

    A step whose gradient overflows halves the factor, and is skipped. After `GROWTH_INTERVAL` steps without overflow,
    the factor doubles. It is a power of 2, so that dividing the gradients by it is exact. It stays on the
    device, and all ranks change it identically, because they have the same sums of losses and gradients.

    `torch.amp.GradScaler` is not used: it has no minimum, and unscales the gradients in a pass of its own.
    """

    INITIAL = 2.0**7
    MINIMUM, MAXIMUM = 2.0**-14, 2.0**24  # the loss is a sum over labels, so that less than 1 is normal
    GROWTH_INTERVAL = 2000

    def __init__(self, device: torch.device) -> None:
        self.value = torch.full((), self.INITIAL, device=device)
        self.n_finite = torch.zeros((), device=device)  # finite steps in a row since the factor last grew

    def update(self, loss: Tensor, grad_norm: Tensor) -> None:
        """Adapt the factor after a step, without synchronising. A loss that is not finite only resets the count."""
        is_finite = grad_norm.isfinite()
        is_overflow = loss.isfinite() & ~is_finite
        self.n_finite.add_(1).mul_(is_finite)
        is_growing = self.n_finite == self.GROWTH_INTERVAL
        self.n_finite.mul_(~is_growing)
        self.value.mul_(1 + is_growing.float() - 0.5 * is_overflow).clamp_(self.MINIMUM, self.MAXIMUM)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""
        return {"value": self.value, "n_finite": self.n_finite}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Restore the state. Raises `KeyError`, `TypeError` or `ValueError` for impossible values."""
        value, n_finite = (check_tensor(name, saved[name], torch.zeros(())) for name in ("value", "n_finite"))
        if not (self.MINIMUM <= value <= self.MAXIMUM and 0 <= n_finite < self.GROWTH_INTERVAL):
            raise ValueError(f"the loss scale is {float(value)}, for {float(n_finite)} steps")
        self.value.copy_(value)
        self.n_finite.copy_(n_finite)


class BatchLoss(nn.Module):
    """Model and loss as one module, which `DistributedDataParallel` can wrap whether or not weights are tied."""

    def __init__(self, model: Transformer, config: LossConfig, machine: Machine) -> None:
        super().__init__()
        self.model, self.config, self.machine = model, config, machine
        # read by `DistributedDataParallel`: tables of positions are equal on all ranks, but of different lengths
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]
        is_cast = machine.device.type == "cuda" and machine.precision != "fp32" and not model.is_compiled
        self.cast_weights = (
            WeightCast((*model.encoder.layers, *model.decoder.layers), machine.dtype) if is_cast else nullcontext
        )

    def forward(self, batch: Batch | None) -> dict[str, Tensor]:
        """Compute the losses of a batch. For None, return 0 with zero gradients, which `wrap_for_ranks` needs."""
        if batch is None:
            return {"loss": torch.stack([parameter.flatten()[:0].sum() for parameter in self.parameters()]).sum()}
        with self.cast_weights(), self.machine.autocast():
            return compute_losses(self.model, batch.to(self.machine.device), self.config)


class TrainStep:
    """Updates the weights of a model, one optimizer step per call.

    Several ranks share the micro-batches of a step. On a CPU, the result depends on their number only by rounding.
    Packing on CUDA and the splitting of batches also change the random numbers of dropout.
    """

    def __init__(
        self,
        model: Transformer,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        loss: LossConfig,
        clip_norm: float | None,
        seed: int,
        machine: Machine,
        ranks: Ranks,
        split_batch: Callable[[Batch], Sequence[Batch]],
        source_names: Sequence[str] = (),
        capture: Capture | None = None,
    ) -> None:
        """Create the step.

        `split_batch` divides a batch in two, or raises an error if it has a single pair. `source_names` are those of
        the sources of a mixture, whose losses are summed separately. With `capture`, passes over padded batches are
        captured and replayed, which needs a single process.
        """
        self.model, self.optimizers, self.parameters = model, optimizers, list_trained_parameters(model)
        self.clip_norm, self.seed, self.machine, self.ranks = clip_norm, seed, machine, ranks
        self.split_batch, self.source_names = split_batch, source_names
        self.batch_loss = BatchLoss(model, loss, machine)
        self.loss_scale = LossScale(machine.device) if machine.precision == "fp16" else None
        self.parallel_loss = wrap_for_ranks(self.batch_loss, ranks) if ranks.size > 1 else None
        self.graphs: PassGraphs | None = None
        if capture is not None:
            scale = None if self.loss_scale is None else self.loss_scale.value
            self.graphs = PassGraphs(self.batch_loss, scale, machine.device, capture)

    def __call__(self, step: int, learning_rate: float, batches: Sequence[Batch]) -> StepMetrics:
        """Update the weights with this rank's micro-batches, on the mean loss per label over all ranks.

        The update is skipped if the gradient is not finite or there is no label.
        """
        metrics = self.compute_gradients(step, batches)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        divisor = metrics["n_tgt"] / self.ranks.size  # `DistributedDataParallel` has averaged over the ranks
        total_norm = get_total_norm(gradients)
        if self.loss_scale is not None:
            divisor, metrics["loss_scale"] = divisor * self.loss_scale.value, self.loss_scale.value.clone()
            self.loss_scale.update(metrics["loss"], total_norm)
        metrics["grad_norm"] = total_norm / divisor
        self.update_weights(learning_rate, divisor, metrics["grad_norm"])
        return metrics

    def compute_gradients(self, step: int, batches: Sequence[Batch]) -> StepMetrics:
        """Set the gradients to sums over the batches, times the loss scale, averaged over the ranks. Return all sums.

        If memory runs out, the batch at fault is split, and the step starts again.
        """
        # later parts of a split batch have no seed: they continue the random numbers of the part before
        passes: list[tuple[int | None, Batch]] = [
            (self.micro_batch_seed(step, batch.place), batch) for batch in batches
        ]
        n_splits, index = 0, 0
        while True:
            names = (*list_loss_sums(self.source_names), "n_src", "n_padded", "n_splits")
            totals = dict.fromkeys(names, torch.zeros((), device=self.machine.device))
            try:
                for index, (seed, batch) in enumerate(passes):
                    if seed is not None:
                        torch.manual_seed(seed)
                    metrics = self.forward_backward(batch, is_last=index == len(passes) - 1)
                    totals |= {name: totals[name] + value for name, value in metrics.items()}
                break
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            # outside of the handler, whose traceback keeps the graph of the batch alive
            self.zero_grad()
            release_memory(self.machine.device)
            seed, batch = passes[index]
            if self.ranks.size > 1:
                raise UserError(
                    f"step {step:,}: rank {self.ranks.rank} ran out of memory; with several processes, batches cannot "
                    "be split: lower batches.tokens (and raise batches.accumulate), or data.max_length"
                )
            first, *others = self.split_batch(batch)
            passes[index : index + 1] = [(seed, first), *((None, other) for other in others)]
            n_splits += 1
        totals["n_splits"] = totals["n_splits"] + n_splits
        return dict(zip(totals, self.ranks.all_reduce_sum(list(totals.values())), strict=True))

    def micro_batch_seed(self, step: int, place: tuple[int, int]) -> int:
        """Return the dropout seed of a micro-batch, see `Batch.place`. Ranks and previous steps do not matter."""
        return int(np.random.SeedSequence([self.seed, step, *place]).generate_state(1)[0])

    def forward_backward(self, batch: Batch, *, is_last: bool) -> dict[str, Tensor | int]:
        """Add the gradients of a micro-batch, and return its sums. The last one of a step then averages over the ranks.

        Returning or raising frees the autograd graph of the batch.
        """
        losses = self.add_gradients(batch, is_last=is_last) if self.graphs is None else self.graphs(batch)
        return collect_loss_sums(losses, batch, self.source_names) | {"n_src": batch.n_src, "n_padded": batch.n_padded}

    def add_gradients(self, batch: Batch, *, is_last: bool) -> dict[str, Tensor]:
        """Add the gradients of a micro-batch, averaged over the ranks if it is the last one. Return its losses."""
        loss_module = self.batch_loss
        context = nullcontext()
        if self.parallel_loss is not None:
            loss_module = self.parallel_loss
            context = translate_errors() if is_last else self.parallel_loss.no_sync()
        with context:
            losses: dict[str, Tensor] = loss_module(batch)
            loss = losses["loss"] if self.loss_scale is None else losses["loss"] * self.loss_scale.value
            loss.backward()
        return losses

    def update_weights(self, learning_rate: float, divisor: Tensor, grad_norm: Tensor) -> None:
        """Update the weights with the gradients divided by `divisor`, which then have the norm `grad_norm`.

        This does not synchronise: the optimizers divide, clip and skip, see `make_optimizers`.
        """
        clip_factor = (grad_norm / (self.clip_norm or float("inf"))).clamp(min=1.0)
        scale, is_finite = divisor * clip_factor, grad_norm.isfinite()
        if self.machine.device.type == "mps":  # its fused kernel ignores `grad_scale` and `found_inf`
            if not is_finite:
                self.zero_grad()
                return
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
            scale = torch.ones_like(scale)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.grad_scale = scale  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.found_inf = (~is_finite).float()  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Free all gradients."""
        for parameter in self.parameters:
            parameter.grad = None


def wrap_for_ranks(batch_loss: BatchLoss, ranks: Ranks) -> DistributedDataParallel:
    """Return the module that averages gradients over the ranks in the backward pass. All ranks get rank 0's weights.

    PyTorch rebuilds the buckets after the first backward pass. This function runs one, so that a resumed training adds
    the gradients in the same order as an uninterrupted one.
    """
    with translate_errors():
        wrapped = DistributedDataParallel(batch_loss, gradient_as_bucket_view=True)
        wrapped(None)["loss"].backward()
    for parameter in batch_loss.parameters():
        parameter.grad = None
    return wrapped


class LossesAndGradients(NamedTuple):
    """The losses of a batch, and the gradient of its loss for each trained parameter."""

    losses: dict[str, Tensor]
    gradients: list[Tensor]


def loss_and_gradients(model: Transformer, batch: Batch, *, machine: Machine, loss: LossConfig) -> LossesAndGradients:
    """Compute losses and gradients of a batch without a `TrainStep`, and leave the model unchanged."""
    losses = BatchLoss(model, loss, machine)(batch)
    gradients = torch.autograd.grad(losses["loss"], list_trained_parameters(model), materialize_grads=True)
    return LossesAndGradients({name: value.detach() for name, value in losses.items()}, [*gradients])
