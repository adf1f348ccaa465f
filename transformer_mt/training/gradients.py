"""The gradients of a step, summed over its micro-batches and over all ranks.

The parameters form buckets. The all-reduce of a bucket starts during the last backward pass, when its gradients and
those of all earlier buckets are complete. It runs while the pass computes the others (Li et al. 2020, PyTorch
Distributed).
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# `torch._foreach_*` changes all tensors of a list in one operation; torch has no public name for it.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from transformer_mt.training.distributed import Ranks

BUCKET_BYTES = 1 << 24
"""A bucket is closed when it reaches this size. Smaller messages would use less of a network's bandwidth."""


@dataclass
class Bucket:
    """Parameters whose gradients are summed over the ranks in one message."""

    parameters: list[nn.Parameter]
    gradients: list[Tensor] = field(default_factory=list[Tensor])  # sums over backward passes; empty before the first
    n_missing: int = 0  # gradients that the current backward pass has not computed

    def add_pass(self) -> None:
        """Add the gradients of the current backward pass. Those that it does not compute are 0."""
        new = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters]
        self.clear_pass()
        if self.gradients:
            torch._foreach_add_(self.gradients, new)
        else:
            self.gradients = new

    def clear_pass(self) -> None:
        """Free the gradients of the current backward pass."""
        for parameter in self.parameters:
            parameter.grad = None


class GradientSum:
    """Runs the backward passes of a step, and sums their gradients over passes and ranks."""

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks) -> None:
        self.parameters, self.ranks, self.buckets = parameters, ranks, make_buckets(parameters)
        self.complete_buckets: set[int] = set()  # indices of those that include the gradients of the current batch
        self.is_last = False  # whether the current pass is the last one
        # one function per all-reduce that has started; all ranks start them in the order of the buckets
        self.waits: list[Callable[[], None]] = []
        for i, bucket in enumerate(self.buckets):
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._count_gradient, i))

    def backward(self, loss: Tensor, *, is_last: bool, complete_buckets: set[int]) -> None:
        """Run a backward pass, and add its gradients to all buckets except those in `complete_buckets`.

        Each of these then joins `complete_buckets`, which is changed in place. If memory runs out, torch's error is
        raised, and passes over the halves of the batch complete the other buckets.
        """
        self.complete_buckets, self.is_last = complete_buckets, is_last
        for bucket in self.buckets:
            bucket.n_missing = len(bucket.parameters)
        try:
            loss.backward()
            for i in range(len(self.buckets)):  # those with parameters that LayerDrop skipped are incomplete
                self._add_bucket(i)
        finally:
            for bucket in self.buckets:
                bucket.clear_pass()
                bucket.n_missing = 0  # in other backward passes the hooks make it negative, so that it never reaches 0

    def take_sums(self) -> list[Tensor]:
        """Wait for the all-reduces, and return the gradient of each parameter, summed over all ranks.

        The next step starts with zeros.
        """
        for wait in self.waits:
            wait()
        sums = {
            parameter: gradient
            for bucket in self.buckets
            for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True)
        }
        for bucket in self.buckets:
            bucket.gradients = []
        self.waits = []
        return [sums[parameter] for parameter in self.parameters]

    def _count_gradient(self, i: int, _: Tensor) -> None:
        """Note that the gradient of a parameter of bucket `i` is computed."""
        self.buckets[i].n_missing -= 1
        if not self.buckets[i].n_missing:
            self._add_bucket(i)

    def _add_bucket(self, i: int) -> None:
        """Add the gradients of bucket `i`, unless it is complete. In the last pass, start all-reduces in order."""
        if i in self.complete_buckets:
            self.buckets[i].clear_pass()
        else:
            self.buckets[i].add_pass()
            self.complete_buckets.add(i)
        while self.is_last and len(self.waits) in self.complete_buckets:
            bucket = self.buckets[len(self.waits)]
            bucket.gradients, wait = self.ranks.start_all_reduce_sum(bucket.gradients)
            self.waits.append(wait)


def make_buckets(parameters: Sequence[nn.Parameter]) -> list[Bucket]:
    """Divide the parameters into buckets, the last ones first, because a backward pass starts at the end."""
    buckets = [Bucket([])]
    for parameter in reversed(parameters):
        if sum(other.nbytes for other in buckets[-1].parameters) >= BUCKET_BYTES:
            buckets.append(Bucket([]))
        buckets[-1].parameters.append(parameter)
    return buckets
