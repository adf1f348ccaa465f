"""Helpers of the tests in tests/cuda, which run on a real GPU or on the fake device."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_mt.system.device import Machine
from transformer_mt.training.train_step import loss_and_gradients
from transformer_mt.training.training_config import LossConfig

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
IS_FAKE = "fake_cuda.device" in sys.modules
real_gpu_only = pytest.mark.skipif(IS_FAKE, reason="needs a real GPU")
fake_device_only = pytest.mark.skipif(not IS_FAKE, reason="needs the fake device")


def list_waits(function: Callable[[], object]) -> list[str]:
    """Call a function, and return file:line of each place where the host waited for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "synchronizing CUDA operation" in str(each.message)]
    return [f"{each.filename}:{each.lineno}" for each in waits]


def count_launches(function: Callable[[], object]) -> int:
    """Call a function, and return the number of kernels that it launched on the fake device."""
    from fake_cuda.device import record

    with record() as trace:
        function()
    return trace.n_launches


def compute(model: Any, batch: Any, device: torch.device, precision: Any) -> list[Tensor]:
    """Return the sums of the loss and the gradients of a batch, on the CPU."""
    torch.manual_seed(7)
    machine = Machine(device, precision, 1)
    result = loss_and_gradients(model, batch, machine=machine, loss=LossConfig())
    return [*(loss.cpu() for loss in result.losses.values()), *(gradient.cpu() for gradient in result.gradients)]


def relative_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the norm of the difference of all tensors, divided by the norm of the expected ones."""
    flat = [torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (found, expected)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())
