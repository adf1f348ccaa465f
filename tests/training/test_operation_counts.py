"""The number of operations that the updates after a step dispatch: on a GPU, each is at least one kernel launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_mt.model.transformer import Transformer
from transformer_mt.training.ema import ExponentialMovingAverage
from transformer_mt.training.optimizers import OptimizerConfig, make_optimizers

SYNCHRONISING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class OperationCounter(TorchDispatchMode):
    """Records the operations dispatched inside the `with` block, except views, which launch nothing on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[object] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record and run an operation."""
        aliases = [value.alias_info for value in func._schema.returns]
        is_view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
        if func.namespace == "aten" and not is_view and func is not torch.ops.aten._unsafe_view.default:
            self.operations.append(func)
        return func(*args, **(kwargs or {}))


def count(update: Callable[[], object]) -> int:
    """Count the operations of an update that must not wait for a GPU."""
    with OperationCounter() as counter:
        update()
    assert not SYNCHRONISING & set(counter.operations)
    return len(counter.operations)


def make_deep_model(make_model: Callable[..., Transformer], n_layers: int) -> Transformer:
    model = make_model(encoder={"n_layers": n_layers}, decoder={"n_layers": n_layers})
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("n_layers", [1, 6])
def test_average_is_updated_in_few_operations_at_any_depth(
    make_model: Callable[..., Transformer], n_layers: int
) -> None:
    ema = ExponentialMovingAverage(make_deep_model(make_model, n_layers), 0.9)
    is_taken = torch.tensor(True)
    assert count(lambda: ema.update(3, is_taken)) <= 4


@pytest.mark.parametrize("n_layers", [1, 6])
@pytest.mark.parametrize(("kind", "budget"), [("adam", 3), ("adamw", 6), ("muon", 105)])
def test_optimizers_step_in_few_operations_at_any_depth(
    make_model: Callable[..., Transformer], kind: Any, budget: int, n_layers: int
) -> None:
    model = make_deep_model(make_model, n_layers)
    optimizers = make_optimizers(OptimizerConfig(kind=kind, weight_decay=0.1 if kind != "adam" else 0.0), model)
    for optimizer in optimizers:
        optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.zeros(())  # pyright: ignore
        optimizer.step()  # creates the state
    assert count(lambda: [optimizer.step() for optimizer in optimizers]) <= budget
