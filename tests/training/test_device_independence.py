"""Every configuration computes loss and gradients on tensors without data.

The device `meta` refuses what a GPU should never meet: tensors of another device, and values that the host must wait
for. So these tests find such mistakes on a machine without a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import loss_and_gradients, random_batch
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.batches import Batch
from transformer_mt.model.transformer import Transformer, VocabularySize
from transformer_mt.system.device import Machine
from transformer_mt.training.loss import make_loss
from transformer_mt.training.packing import pack

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NAMES = [str(path.relative_to(CONFIGS)) for path in sorted(CONFIGS.rglob("*.yaml")) if path.name != "reference.yaml"]
META = Machine(torch.device("meta"), "fp32", 1)
N_IDS, PAD = 1003, 1000


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in fp32: PyTorch has no autocast for tensors without data."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)


class OperationCount(TorchDispatchMode):
    """Count the operations that compute something: all except views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.n_operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.n_operations += not (
            func.is_view or name.startswith(("aten::empty", "aten::detach", "aten::_unsafe_view"))
        )
        return func(*args, **(kwargs or {}))


def make_batch(n_pairs: int, src_length: int, tgt_length: int) -> Batch:
    return random_batch(n_pairs, src_length, tgt_length, N_IDS, PAD)


def count_operations(config: Config, batch: Batch) -> int:
    """Compute loss and gradients without data, and return the number of operations."""
    vocabulary = VocabularySize(N_IDS, PAD)
    with torch.device("meta"):
        model = Transformer(config.model, vocabulary, vocabulary)
    with OperationCount() as count:
        result = loss_and_gradients(model, batch, machine=META, loss=make_loss(config.loss))
    assert {gradient.device.type for gradient in result.gradients} == {"meta"}
    return count.n_operations


@pytest.mark.parametrize("name", NAMES)
def test_configuration_computes_without_data(name: str) -> None:
    config = configuration.load(CONFIGS / name)
    batch = make_batch(4, 9, 12)
    assert count_operations(config, batch)
    if config.loss.consistency == "none":
        assert count_operations(config, pack([batch, make_batch(3, 5, 7)], PAD, PAD))


def test_a_packed_pass_needs_a_quarter_of_the_operations_of_four_batches() -> None:
    config = configuration.load(CONFIGS / "papers/wmt14_en_de_base.yaml")
    batches = [make_batch(3, 9, 12) for _ in range(4)]
    padded = sum(count_operations(config, batch) for batch in batches)
    packed = count_operations(config, pack(batches, PAD, PAD))
    assert packed < 0.3 * padded
    assert packed < 1000
