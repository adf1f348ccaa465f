"""Gradients are summed over passes and ranks while the last backward pass is running (trap 23)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from transformer_mt.training import gradients as gradients_module
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.gradients import GradientSum


class Layers(nn.Module):
    """Three layers, of which the forward pass may skip the second. The backward pass may fail in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def loss(self, x: Tensor, *, skips_second: bool = False, fails: bool = False) -> Tensor:
        first, second, third = self.layers
        hidden = first(x)
        if fails:
            hidden = FailingBackward.apply(hidden)
        return third(hidden.tanh() if skips_second else second(hidden.tanh()).tanh()).square().sum()


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no memory left")


@dataclass(frozen=True)
class TwoEqualRanks(Ranks):
    """Two ranks with the same gradients. Records which tensors are sent, and which sums are waited for."""

    size: int = 2
    events: list[tuple[str, list[torch.Size]]] = field(default_factory=list[tuple[str, list[torch.Size]]])

    def start_all_reduce_sum(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
        self.events.append(("sent", [tensor.shape for tensor in tensors]))
        sums = [tensor.clone() for tensor in tensors]

        def wait() -> None:
            self.events.append(("waited", [tensor.shape for tensor in tensors]))
            for tensor in sums:
                tensor.mul_(2)

        return sums, wait


@pytest.fixture(autouse=True)
def bucket_of_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a bucket after each layer: its bias has 16 bytes, bias and weight have 80."""
    monkeypatch.setattr(gradients_module, "BUCKET_BYTES", 17)


@pytest.fixture
def model() -> Layers:
    torch.manual_seed(1)
    return Layers()


def expected_sum(model: Layers, *losses: Tensor) -> list[Tensor]:
    """Return the gradient of the sum of the losses, for two equal ranks."""
    return [*torch.autograd.grad(2 * torch.stack(losses).sum(), list(model.parameters()), materialize_grads=True)]


def assert_equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_passes_and_ranks_are_summed_in_the_order_of_the_parameters(model: Layers) -> None:
    total, inputs = GradientSum(list(model.parameters()), TwoEqualRanks()), torch.randn(3, 5, 4)
    for _ in range(2):  # the second step starts with zeros
        for i in range(3):
            total.backward(model.loss(inputs[i]), is_last=i == 2, complete_buckets=set())
        assert_equal(total.take_sums(), expected_sum(model, *map(model.loss, inputs)))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_only_the_last_pass_sends_and_it_sends_while_it_is_running(model: Layers) -> None:
    ranks = TwoEqualRanks()
    total, x = GradientSum(list(model.parameters()), ranks), torch.randn(5, 4)
    total.backward(model.loss(x), is_last=False, complete_buckets=set())
    assert not ranks.events
    with pytest.raises(torch.OutOfMemoryError):
        total.backward(model.loss(x, fails=True), is_last=True, complete_buckets=set())
    assert ranks.events == [("sent", [(4,), (4, 4)])] * 2, "the third layer, then the second"


def test_passes_over_two_halves_complete_a_pass_that_ran_out_of_memory(model: Layers) -> None:
    ranks = TwoEqualRanks()
    total, x, complete_buckets = GradientSum(list(model.parameters()), ranks), torch.randn(6, 4), set[int]()
    with pytest.raises(torch.OutOfMemoryError):
        total.backward(model.loss(x, fails=True), is_last=True, complete_buckets=complete_buckets)
    assert complete_buckets == {0, 1}
    for half in (x[:2], x[2:]):
        total.backward(
            model.loss(half), is_last=half.data_ptr() != x.data_ptr(), complete_buckets=set(complete_buckets)
        )
    assert_equal(total.take_sums(), expected_sum(model, model.loss(x)))
    assert [kind for kind, _ in ranks.events] == 3 * ["sent"] + 3 * ["waited"]


def test_a_skipped_layer_has_no_gradient_and_does_not_change_the_order_of_messages(model: Layers) -> None:
    usual, skipping = TwoEqualRanks(), TwoEqualRanks()
    x = torch.randn(5, 4)
    for ranks, skips_second in ((usual, False), (skipping, True)):
        total = GradientSum(list(model.parameters()), ranks)
        total.backward(model.loss(x, skips_second=skips_second), is_last=True, complete_buckets=set())
        assert_equal(total.take_sums(), expected_sum(model, model.loss(x, skips_second=skips_second)))
    assert usual.events == skipping.events


def test_hooks_of_an_earlier_gradient_sum_do_not_affect_a_later_one(model: Layers) -> None:
    """LayerDrop leaves a positive count in the earlier object, which the later pass must not bring to zero."""
    parameters, x = list(model.parameters()), torch.randn(5, 4)
    GradientSum(parameters, Ranks()).backward(model.loss(x, skips_second=True), is_last=True, complete_buckets=set())
    total = GradientSum(parameters, TwoEqualRanks())
    total.backward(model.loss(x), is_last=True, complete_buckets=set())
    assert_equal(total.take_sums(), expected_sum(model, model.loss(x)))
