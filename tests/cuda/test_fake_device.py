"""The fake device: what a GPU refuses, it refuses; where a GPU makes the host wait, it says so."""

# pyright: reportPrivateImportUsage=false
# `torch._foreach_*` has no public name

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cuda_helpers import CUDA, count_launches, fake_device_only, list_waits
from torch import Tensor

pytestmark = fake_device_only


@pytest.fixture
def x() -> Tensor:
    return torch.arange(-6.0, 6.0).view(3, 4).to(CUDA)


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "copy to the CPU": lambda x: x.cpu(),
    "asynchronous copy to pageable memory": lambda x: torch.empty(3, 4).copy_(x, non_blocking=True),
    "copy to the GPU": lambda x: torch.ones(3).to(CUDA),
    "nonzero": lambda x: x.nonzero(),
    "selection by a mask": lambda x: x[x > 0],
    "assignment by a mask": lambda x: x.index_put_((x[:, 0] > 0,), torch.ones(1, 4, device=CUDA)),
    "index on the CPU": lambda x: x[torch.tensor([0, 2])],
}
NO_WAITS: dict[str, Callable[[Tensor], object]] = {
    "asynchronous copy of pinned memory": lambda x: torch.ones(3).pin_memory().to(CUDA, non_blocking=True),
    "number into a mask": lambda x: x.masked_fill_(x > 0, 1.0),
    "assignment of a number by a mask": lambda x: x.index_put_((x > 0,), torch.ones(())),
    "index on the GPU": lambda x: x[torch.arange(2, device=CUDA)],
}


@pytest.mark.parametrize("function", WAITS.values(), ids=WAITS)
def test_the_host_waits(function: Callable[[Tensor], object], x: Tensor) -> None:
    (wait,) = list_waits(lambda: function(x))
    assert "test_fake_device.py:" in wait


@pytest.mark.parametrize("function", NO_WAITS.values(), ids=NO_WAITS)
def test_the_host_does_not_wait(function: Callable[[Tensor], object], x: Tensor) -> None:
    assert list_waits(lambda: function(x)) == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.ones(3, 4),
        lambda x: torch.ones(3, 4).add_(x),
        lambda x: x @ torch.ones(4, 2),
        lambda x: torch._foreach_add([x, x], [torch.ones(3, 4), x]),
    ],
)
def test_devices_do_not_mix(function: Callable[[Tensor], object], x: Tensor) -> None:
    with pytest.raises((RuntimeError, TypeError), match="device"):
        function(x)
    with pytest.raises(TypeError):
        x.numpy()


def test_layer_norm_refuses_a_weight_of_another_dtype(x: Tensor) -> None:
    with pytest.raises(RuntimeError, match="dtype"):
        F.layer_norm(x.bfloat16(), (4,), torch.ones(4, device=CUDA))


def test_views_and_allocations_are_no_launches(x: Tensor) -> None:
    assert count_launches(lambda: [x.T, x[1:], x.view(12), torch.empty(3, device=CUDA), x.detach()]) == 0
    assert count_launches(lambda: x.bfloat16() + 1) == 2
    assert count_launches(lambda: torch._foreach_mul_([x, x, x], 2.0)) == 1


def test_memory_is_counted() -> None:
    before = torch.cuda.memory_allocated()
    block = torch.zeros(1000, device=CUDA)
    assert torch.cuda.memory_allocated() == before + 4000
    torch.cuda.reset_peak_memory_stats()
    (block + 1).sum()
    assert torch.cuda.max_memory_allocated() >= before + 8000
    del block
    assert torch.cuda.memory_allocated() == before
