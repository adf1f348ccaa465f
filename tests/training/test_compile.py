"""Compiled layers compute what plain layers compute, for batches of any size."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import plain_torch, random_batch
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.resolve import resolve_compile, resolve_packing
from transformer_mt.system.device import Machine
from transformer_mt.training.memory_estimate import MemoryPrediction
from transformer_mt.training.packed_batches import pack
from transformer_mt.training.train_step import loss_and_gradients
from transformer_mt.training.training_config import LossConfig

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's compiler triggers deprecation warnings of its own
CPU = Machine(torch.device("cpu"), "fp32", 1)
VOCABULARY, PAD = 23, 0


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def make_batch(n_pairs: int, src_length: int, tgt_length: int) -> Batch:
    return random_batch(n_pairs, src_length, tgt_length, VOCABULARY, PAD)


def gradients(model: Any, batch: Batch) -> list[Tensor]:
    torch.manual_seed(7)
    return loss_and_gradients(model, batch, machine=CPU, loss=LossConfig()).gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "is_packed"),
    [
        ({"norm_position": "post"}, False),
        ({"positions": "rotary", "n_kv_heads": 2, "norm": "rmsnorm", "activation": "swiglu"}, True),
    ],
    ids=["paper padded", "modern packed"],
)
def test_compiled_layers_give_the_same_gradients_with_few_graphs(
    variant: dict[str, Any], is_packed: bool, make_model
) -> None:
    plain = make_model(rough=0.3, dropout={"residual": 0.2}, **variant).train()
    compiled, graphs = copy.deepcopy(plain), list[object]()

    def count_graphs(module: torch.fx.GraphModule, _: object) -> object:
        graphs.append(module)
        return module.forward

    compiled.compile_layers(count_graphs, fullgraph=True)
    with plain_torch():
        for shape in ((4, 7, 9), (5, 12, 8), (3, 20, 31), (9, 6, 6), (2, 17, 5), (1, 8, 8)):
            batch = make_batch(*shape)
            if is_packed:
                batch = pack([batch, make_batch(2, 5, 6)], PAD, PAD)
            for found, expected in zip(gradients(compiled, batch), gradients(plain, batch), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert len(graphs) <= 6, "encoder and decoder: all sizes, the first size, a single pair"


BASE = configuration.load(Path(__file__).resolve().parents[2] / "configs" / "papers" / "wmt14_en_de_base.yaml")
MEMORY = MemoryPrediction(largest_batch=(10, 20, 20), n_bytes=1000, available=4000, device="cuda")


def resolve(mode: str, device: str, n_steps: int | None) -> str:
    config = BASE.model_copy(update={"compile": mode})
    return resolve_compile(config, torch.device(device), n_steps).compile


@pytest.mark.parametrize(
    ("mode", "device", "n_steps", "expected"),
    [
        ("auto", "cuda", 100_000, "layers"),
        ("auto", "cuda", None, "layers"),
        ("auto", "cuda", 200, "off"),
        ("auto", "cpu", 100_000, "off"),
        ("off", "cuda", 100_000, "off"),
        ("layers", "cuda", 1, "layers"),
    ],
)
def test_long_trainings_on_a_gpu_are_compiled(
    mode: str, device: str, n_steps: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.flows.resolve.find_compiler_problem", lambda _: None)
    assert resolve(mode, device, n_steps) == expected


def test_where_pytorch_cannot_compile_auto_trains_without_and_layers_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Tensor) -> Tensor:
        raise RuntimeError("Failed to find C compiler.\nPlease specify it")

    monkeypatch.setattr(torch, "compile", lambda _: fail)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    assert resolve("auto", "cuda", None) == "off"
    assert "because PyTorch cannot compile here (Failed to find C compiler.)" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"compile: layers: .*\(Failed to find C compiler\.\)"):
        resolve("layers", "cuda", None)


def test_the_size_of_a_packed_pass_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest batch has 10 x (20 + 20) positions in a quarter of the memory, of which 90 % are used."""
    monkeypatch.setattr("transformer_mt.flows.resolve.read_gpu_bytes", lambda _: 4000)
    machine = Machine(torch.device("cuda"), "bf16", 1)
    resolved = resolve_packing(BASE, machine, MEMORY)
    assert resolved.batches.packed_positions == 1440
    monkeypatch.setattr("transformer_mt.flows.resolve.read_gpu_bytes", lambda _: 8000)
    assert resolve_packing(resolved, machine, MEMORY) == resolved
