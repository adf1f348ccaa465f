"""Compiled layers compute what plain layers compute, for batches of any size."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import random_batch
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.errors import UserError
from transformer_mt.model.cpu_kernels import plain_torch
from transformer_mt.model.weight_cast import WeightCast
from transformer_mt.system.device import Machine
from transformer_mt.training import compile as compilation
from transformer_mt.training.compile import check_compile, compile_layers, resolve_compile, uncompiled
from transformer_mt.training.loss_config import LossConfig, make_loss
from transformer_mt.training.packed_batches import pack
from transformer_mt.training.train_step import loss_and_gradients

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
    return loss_and_gradients(model, batch, machine=CPU, loss=make_loss(LossConfig())).gradients


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

    compile_layers(compiled, count_graphs, fullgraph=True)
    with plain_torch():
        for shape in ((4, 7, 9), (5, 12, 8), (3, 20, 31), (9, 6, 6), (2, 17, 5), (1, 8, 8)):
            batch = make_batch(*shape)
            if is_packed:
                batch = pack([batch, make_batch(2, 5, 6)], PAD, PAD)
            for found, expected in zip(gradients(compiled, batch), gradients(plain, batch), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert len(graphs) <= 6, "encoder and decoder: all sizes, the first size, a single pair"


@pytest.mark.slow
def test_copies_of_the_weights_add_no_graphs(make_model) -> None:
    """And their sizes are as constant as those of the weights."""
    model, graphs = make_model(dropout={"residual": 0.2}).train(), list[torch.fx.GraphModule]()

    def count_graphs(module: torch.fx.GraphModule, _: object) -> object:
        graphs.append(module)
        return module.forward

    compile_layers(model, count_graphs, fullgraph=True)
    cast_weights = WeightCast(model, torch.bfloat16)
    with plain_torch(), torch.autocast("cpu", torch.bfloat16):
        for shape in ((4, 7, 9), (5, 12, 8), (3, 20, 31), (9, 6, 6), (2, 17, 5)):
            batch = make_batch(*shape)
            with cast_weights():
                model(batch.src, batch.tgt_in).sum().backward()
    assert len(graphs) <= 4, "encoder and decoder: all sizes, and the first size"
    copies = [
        node for graph in graphs for node in graph.graph.nodes if node.op == "placeholder" and "copies" in node.name
    ]
    assert copies
    assert not any(isinstance(n, torch.SymInt) for node in copies for n in node.meta["example_value"].shape)


@pytest.mark.slow
def test_copies_and_validation_run_uncompiled(make_model) -> None:
    calls: list[object] = []

    def watch(module: torch.fx.GraphModule, _: object) -> object:
        calls.append(module)
        return module.forward

    model, batch = make_model(), make_batch(2, 5, 6)
    names = set(model.state_dict())
    compile_layers(model, watch)
    assert set(model.state_dict()) == names
    with torch.no_grad(), uncompiled():
        model(batch.src, batch.tgt_in)
    with torch.no_grad():
        copy.deepcopy(model)(batch.src, batch.tgt_in)
    assert not calls
    with torch.no_grad():
        model(batch.src, batch.tgt_in)
    assert calls


@pytest.mark.parametrize(
    ("mode", "device", "n_steps", "expected"),
    [
        ("auto", "cuda", 100_000, True),
        ("auto", "cuda", None, True),
        ("auto", "cuda", 200, False),
        ("auto", "cpu", 100_000, False),
        ("off", "cuda", 100_000, False),
        ("layers", "cuda", 1, True),
    ],
)
def test_long_trainings_on_a_gpu_are_compiled(
    mode: Any, device: str, n_steps: int | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "find_compiler_problem", lambda _: None)
    assert resolve_compile(mode, torch.device(device), n_steps) is expected


def test_where_pytorch_cannot_compile_auto_trains_without_and_layers_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Tensor) -> Tensor:
        raise RuntimeError("Failed to find C compiler.\nPlease specify it")

    monkeypatch.setattr(torch, "compile", lambda _: fail)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    assert not resolve_compile("auto", torch.device("cuda"), None)
    assert (
        "the layers are not compiled, because PyTorch cannot compile here (Failed to find C" in capsys.readouterr().err
    )
    with pytest.raises(
        UserError, match=r"compile: layers: PyTorch cannot compile here \(Failed to find C compiler\.\)"
    ):
        resolve_compile("layers", torch.device("cuda"), None)


def test_layers_are_refused_on_a_cpu() -> None:
    with pytest.raises(UserError, match="works on CUDA only, and the device is cpu; set compile: auto or off"):
        check_compile("layers", torch.device("cpu"))
    check_compile("layers", torch.device("cuda"))
    check_compile("auto", torch.device("cpu"))
