"""Copies of the weights in half precision give the loss and the gradients of autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import groupby
from typing import Any

import pytest
import torch
from helpers import plain_torch, random_batch
from torch import Tensor

from transformer_mt.model.cuda_kernels import WeightCast
from transformer_mt.model.layers import Linear
from transformer_mt.model.transformer import Transformer

PAD, VOCABULARY = 0, 23


@pytest.fixture(autouse=True)
def portable_path() -> Iterator[None]:
    with plain_torch():
        yield


def loss_and_gradients(model: Transformer, cast: Any, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(3)
    batch = random_batch(4, 9, 7, VOCABULARY, PAD)
    with torch.autocast("cpu", dtype), cast():
        loss = model(batch.src, batch.tgt_in).float().square().sum()
    return loss, [*torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "variant",
    [
        {"norm_position": "post"},
        {"n_kv_heads": 1, "activation": "swiglu", "norm": "rmsnorm", "feed_forward_bias": False},
    ],
    ids=["paper", "modern"],
)
def test_loss_and_gradients_are_those_of_autocast(variant: dict[str, Any], dtype: torch.dtype, make_model) -> None:
    model = make_model(rough=0.3, vocab=(VOCABULARY, VOCABULARY), pad=(PAD, PAD), **variant).train()
    expected_loss, expected = loss_and_gradients(model, nullcontext, dtype)
    loss, gradients = loss_and_gradients(model, cast_layers(model, dtype), dtype)
    assert torch.equal(loss, expected_loss)
    for found, gradient in zip(gradients, expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, gradient, rtol=1e-2, atol=1e-4)


def cast_layers(model: Transformer, dtype: torch.dtype) -> WeightCast:
    return WeightCast((*model.encoder.layers, *model.decoder.layers), dtype)


def test_copies_are_used_only_inside_the_block(make_model) -> None:
    model, ids = make_model(), torch.tensor([[3, 4, 5]])
    linears = [module for module in model.encoder.modules() if isinstance(module, Linear)]
    with pytest.raises(ZeroDivisionError), cast_layers(model, torch.bfloat16)():
        model(ids, ids)
        assert {linear.get_weight_and_bias()[0].dtype for linear in linears} == {torch.bfloat16}
        _ = 1 / 0
    assert all(linear.get_weight_and_bias()[0] is linear.weight for linear in linears)


def test_copies_follow_the_weights(make_model) -> None:
    model, ids = make_model(), torch.tensor([[3, 4, 5]])
    first = next(module for module in model.encoder.modules() if isinstance(module, Linear))
    cast_weights = cast_layers(model, torch.bfloat16)
    for is_zero in (False, True):
        with cast_weights():
            model(ids, ids)
            assert bool(first.get_weight_and_bias()[0].any()) is not is_zero
        first.weight.data.zero_()


def test_gradients_of_later_layers_are_complete_first(make_model) -> None:
    """Then they are summed over the ranks while those of earlier layers are computed."""
    model = make_model(vocab=(VOCABULARY, VOCABULARY), pad=(PAD, PAD), encoder={"n_layers": 2}, decoder={"n_layers": 2})
    order: list[str] = []

    def record(name: str) -> Callable[[Tensor], None]:
        return lambda _: order.append(name[: len("decoder.layers.0")])

    for name, parameter in model.named_parameters():
        if ".layers." in name:
            parameter.register_post_accumulate_grad_hook(record(name))
    batch = random_batch(4, 9, 7, VOCABULARY, PAD)
    with torch.autocast("cpu", torch.bfloat16), cast_layers(model.train(), torch.bfloat16)():
        loss = model(batch.src, batch.tgt_in).float().square().sum()
    loss.backward()
    assert [layer for layer, _ in groupby(order)] == [
        f"{stack}.layers.{i}" for stack in ("decoder", "encoder") for i in (1, 0)
    ]
