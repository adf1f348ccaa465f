"""Attention equals closed forms, loops and `torch.nn`: traps 4 (empty rows), 5 (dtypes), 6 (polarity), 15 (order)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_mt.model.attention import (
    KeysValues,
    MultiHeadAttention,
    attend,
    explicit_attention,
    fused_attention,
)
from transformer_mt.model.cpu_kernels import SHORT_KEYS
from transformer_mt.model.model_config import DropoutConfig, ModelConfig

B, H, T, S, E = 2, 3, 4, 5, 8
D = H * E
Attend = Callable[..., Tensor]


def explicit_context(*args: Any) -> Tensor:
    return explicit_attention(*args)[0]


PATHS = pytest.mark.parametrize("path", [fused_attention, explicit_context])


def random_heads(length: int) -> Tensor:
    return torch.randn(B, H, length, E)


def random_mask(*shape: int) -> Tensor:
    """Return a mask that shows two of three keys; some rows show none."""
    mask = torch.rand(shape) < 0.66
    mask[0, ..., 0, :] = False
    return mask


MASKS = {
    "none": lambda: None,
    "keys": lambda: random_mask(B, 1, 1, S),
    "queries and keys": lambda: random_mask(1, 1, T, S),
    "heads": lambda: random_mask(B, H, T, S),
}


def attend_by_loops(queries: Tensor, memory: KeysValues, mask: Tensor | None) -> Tensor:
    """Follow the definition for one query at a time; a query without keys gets zeros."""
    allowed = torch.ones(B, H, T, S, dtype=torch.bool) if mask is None else mask.expand(B, H, T, S)
    context = torch.zeros(B, H, T, E)
    for b, h, t in itertools.product(range(B), range(H), range(T)):
        seen = [s for s in range(S) if allowed[b, h, t, s]]
        powers = [math.exp(float(queries[b, h, t] @ memory.keys[b, h, s]) / math.sqrt(E)) for s in seen]
        for s, power in zip(seen, powers, strict=True):
            context[b, h, t] += power / sum(powers) * memory.values[b, h, s]
    return context


# --- the functions ----------------------------------------------------------------------------------------------------


@PATHS
def test_attention_equals_a_three_key_example_by_hand(path: Attend) -> None:
    """Trap 15: scores ln 1, ln 2, ln 3 give weights 1/6, 2/6, 3/6, and without the last key 1/3, 2/3."""
    keys = torch.zeros(1, 1, 3, 4)
    keys[0, 0, :, 0] = torch.tensor([1.0, 2.0, 3.0]).log()
    values = torch.tensor([6.0, 12.0, 24.0]).view(1, 1, 3, 1).expand(1, 1, 3, 4)
    queries = torch.zeros(1, 1, 2, 4)
    queries[0, 0, :, 0] = torch.tensor([2.0, 4.0])  # sqrt(4) divides by 2; the second query squares the weights
    memory = KeysValues(keys, values)
    torch.testing.assert_close(path(queries, memory, None)[0, 0, :, 0], torch.tensor([102 / 6, 270 / 14]))
    without_last = torch.tensor([True, True, False]).view(1, 1, 1, 3)
    torch.testing.assert_close(path(queries, memory, without_last)[0, 0, :, 0], torch.tensor([30 / 3, 54 / 5]))


@PATHS
@pytest.mark.parametrize("shape", MASKS)
def test_attention_equals_the_definition(path: Attend, shape: str) -> None:
    """Trap 6: True means "may be attended", for each shape of a mask."""
    queries, memory, mask = random_heads(T), KeysValues(random_heads(S), random_heads(S)), MASKS[shape]()
    torch.testing.assert_close(path(queries, memory, mask), attend_by_loops(queries, memory, mask))


@pytest.mark.parametrize("shape", MASKS)
def test_fused_and_explicit_gradients_are_equal(shape: str) -> None:
    inputs = [random_heads(length).requires_grad_() for length in (T, S, S)]
    mask, pull = MASKS[shape](), random_heads(T)
    fused, explicit = (
        torch.autograd.grad((path(inputs[0], KeysValues(*inputs[1:]), mask) * pull).sum(), inputs)
        for path in (fused_attention, explicit_context)
    )
    torch.testing.assert_close(fused, explicit)


@pytest.mark.parametrize("shape", [(B, 1, 1, S), (1, 1, S, S), (B, 1, S, S)])
def test_a_square_mask_is_not_taken_for_a_causal_one(shape: tuple[int, ...]) -> None:
    queries, memory, mask = random_heads(S), KeysValues(random_heads(S), random_heads(S)), random_mask(*shape)
    for allowed in (None, mask):
        torch.testing.assert_close(
            fused_attention(queries, memory, allowed), explicit_context(queries, memory, allowed)
        )


@PATHS
def test_dropout_zeroes_weights_and_rescales_the_others(path: Attend) -> None:
    """With unit vectors as values, the output is the weights."""
    queries, keys = torch.randn(B, H, 200, E), torch.randn(B, H, E, E)
    memory = KeysValues(keys, torch.eye(E).expand(B, H, E, E).contiguous())
    whole, dropped = (path(queries, memory, None, rate) for rate in (0.0, 0.25))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)
    assert kept.float().mean() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("length", [SHORT_KEYS, SHORT_KEYS + 1])
def test_the_choice_by_length_does_not_change_the_result(length: int) -> None:
    queries, memory = random_heads(T), KeysValues(random_heads(length), random_heads(length))
    mask = random_mask(B, 1, 1, length)
    torch.testing.assert_close(attend(queries, memory, mask), fused_attention(queries, memory, mask))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@PATHS
def test_a_query_without_keys_gets_zeros_and_finite_gradients(path: Attend, dtype: torch.dtype, dropout: float) -> None:
    """Trap 4, on every path."""
    inputs = [random_heads(length).to(dtype).requires_grad_() for length in (T, S, S)]
    mask = torch.ones(B, 1, 1, S, dtype=torch.bool)
    mask[0] = False
    context = path(inputs[0], KeysValues(*inputs[1:]), mask, dropout)
    gradients = torch.autograd.grad(context.float().sum(), inputs)
    assert torch.all(context[0] == 0)
    assert context[1].isfinite().all() and context[1].abs().sum() > 0
    for gradient in gradients:
        assert torch.all(gradient[0] == 0)
        assert gradient[1].isfinite().all()


@PATHS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_fp32(path: Attend, dtype: torch.dtype) -> None:
    """Trap 5."""
    queries, keys, values = (random_heads(length).to(dtype) for length in (T, S, S))
    mask = random_mask(B, H, T, S)
    context = path(queries, KeysValues(keys, values), mask)
    assert context.dtype == dtype
    exact = attend_by_loops(queries.float(), KeysValues(keys.float(), values.float()), mask)
    torch.testing.assert_close(context.float(), exact, atol=0.02, rtol=0.02)


# --- the module -------------------------------------------------------------------------------------------------------


@pytest.fixture
def attention() -> MultiHeadAttention:
    """An attention in evaluation mode, with a dropout rate."""
    config = ModelConfig(d_model=D, n_heads=H, dropout=DropoutConfig(attention=0.5))
    attention = MultiHeadAttention(config).eval()
    nn.init.normal_(attention.queries_keys_values.bias)
    return attention


def test_attention_dropout_applies_only_in_training(attention: MultiHeadAttention) -> None:
    queries, memory = attention.project(torch.randn(B, T, D))
    plain = attention(queries, memory, None)
    torch.testing.assert_close(attention(queries, memory, None), plain)
    assert not torch.allclose(attention.train()(queries, memory, None), plain)


# --- fewer key/value heads -----------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_query_attention_equals_multi_head_with_repeated_keys(path: Attend, mask: str, groups: int) -> None:
    heads = 6
    queries = torch.randn(B, heads, T, E)
    few = KeysValues(torch.randn(B, groups, S, E), torch.randn(B, groups, S, E))
    many = KeysValues(*(part.repeat_interleave(heads // groups, dim=1) for part in few))
    allowed = random_mask(B, heads, T, S) if mask == "heads" else MASKS[mask]()
    torch.testing.assert_close(path(queries, few, allowed), path(queries, many, allowed))
