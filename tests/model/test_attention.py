"""Attention against closed forms, loops and `torch.nn`: traps 4 (nothing to attend to), 5 (precision), 6 (polarity) and
15 (order of the steps)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.attention import (
    KeysValues,
    MultiHeadAttention,
    attend,
    causal_mask,
    explicit_attention,
    fused_attention,
    padding_mask,
)
from transformer_mt.model.config import DropoutConfig, ModelConfig
from transformer_mt.model.cpu_kernels import SHORT_KEYS

B, H, T, S, E = 2, 3, 4, 5, 8
D = H * E
Attend = Callable[[Tensor, KeysValues, "Tensor | None"], Tensor]


def explicitly(queries: Tensor, memory: KeysValues, mask: Tensor | None) -> Tensor:
    return explicit_attention(queries, memory, mask)[0]


PATHS = pytest.mark.parametrize("path", [fused_attention, explicitly])


def random_heads(length: int) -> Tensor:
    return torch.randn(B, H, length, E)


def random_mask(*shape: int) -> Tensor:
    """Two of three may be attended; some rows are empty."""
    mask = torch.rand(shape) < 0.66
    mask[0, ..., 0, :] = False
    return mask


MASKS = {
    "none": lambda: None,
    "keys": lambda: random_mask(B, 1, 1, S),
    "queries and keys": lambda: random_mask(1, 1, T, S),
    "heads": lambda: random_mask(B, H, T, S),
}


def by_loops(queries: Tensor, memory: KeysValues, mask: Tensor | None) -> Tensor:
    """The definition, a query at a time; zeros where nothing may be attended."""
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
def test_three_keys_by_hand(path: Attend) -> None:
    """Trap 15: scores ln 1, ln 2, ln 3 make weights 1/6, 2/6, 3/6, and without the last key 1/3, 2/3."""
    keys = torch.zeros(1, 1, 3, 4)
    keys[0, 0, :, 0] = torch.tensor([1.0, 2.0, 3.0]).log()
    values = torch.tensor([6.0, 12.0, 24.0]).view(1, 1, 3, 1).expand(1, 1, 3, 4)
    queries = torch.zeros(1, 1, 2, 4)
    queries[0, 0, :, 0] = torch.tensor([2.0, 4.0])  # sqrt(4) takes a factor of 2; the second squares the weights
    memory = KeysValues(keys, values)
    torch.testing.assert_close(path(queries, memory, None)[0, 0, :, 0], torch.tensor([102 / 6, 270 / 14]))
    without_last = torch.tensor([True, True, False]).view(1, 1, 1, 3)
    torch.testing.assert_close(path(queries, memory, without_last)[0, 0, :, 0], torch.tensor([30 / 3, 54 / 5]))


@PATHS
@pytest.mark.parametrize("shape", MASKS)
def test_both_paths_follow_the_definition(path: Attend, shape: str) -> None:
    """Trap 6: True means "may be attended", in each shape that a mask may have."""
    queries, memory, mask = random_heads(T), KeysValues(random_heads(S), random_heads(S)), MASKS[shape]()
    torch.testing.assert_close(path(queries, memory, mask), by_loops(queries, memory, mask))


@pytest.mark.parametrize("shape", MASKS)
def test_both_paths_have_the_same_gradient(shape: str) -> None:
    inputs = [random_heads(length).requires_grad_() for length in (T, S, S)]
    mask, pull = MASKS[shape](), random_heads(T)
    fused, explicit = (
        torch.autograd.grad((path(inputs[0], KeysValues(*inputs[1:]), mask) * pull).sum(), inputs)
        for path in (fused_attention, explicitly)
    )
    torch.testing.assert_close(fused, explicit)


@pytest.mark.parametrize("shape", [(B, 1, 1, S), (1, 1, S, S), (B, 1, S, S)])
def test_both_paths_with_as_many_queries_as_keys(shape: tuple[int, ...]) -> None:
    """Where the one that is fused could take a mask for a causal one."""
    queries, memory, mask = random_heads(S), KeysValues(random_heads(S), random_heads(S)), random_mask(*shape)
    for allowed in (None, mask):
        torch.testing.assert_close(fused_attention(queries, memory, allowed), explicitly(queries, memory, allowed))


@pytest.mark.parametrize(
    "path", [fused_attention, lambda *given: explicit_attention(*given)[0]], ids=["fused", "steps"]
)
def test_dropout_takes_weights_and_makes_up_for_them(path: Callable[..., Tensor]) -> None:
    """Where the values are the unit vectors, what comes out are the weights."""
    queries, keys = torch.randn(B, H, 200, E), torch.randn(B, H, E, E)
    memory = KeysValues(keys, torch.eye(E).expand(B, H, E, E).contiguous())
    whole, dropped = (path(queries, memory, None, rate) for rate in (0.0, 0.25))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)
    assert kept.float().mean() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("length", [SHORT_KEYS, SHORT_KEYS + 1])
def test_what_is_chosen_by_length_is_the_same(length: int) -> None:
    queries, memory = random_heads(T), KeysValues(random_heads(length), random_heads(length))
    mask = random_mask(B, 1, 1, length)
    torch.testing.assert_close(attend(queries, memory, mask), fused_attention(queries, memory, mask))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "path", [fused_attention, lambda *arguments: explicit_attention(*arguments)[0]], ids=["fused", "steps"]
)
def test_a_query_without_keys_gets_zeros_and_poisons_nothing(
    path: Callable[..., Tensor], dtype: torch.dtype, dropout: float
) -> None:
    """Trap 4, on every path: fused with and without dropout, step by step, and what bf16 takes on a CPU."""
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
def test_half_precision_is_near_fp32(path: Attend, dtype: torch.dtype) -> None:
    """Trap 5."""
    queries, keys, values = (random_heads(length).to(dtype) for length in (T, S, S))
    mask = random_mask(B, H, T, S)
    context = path(queries, KeysValues(keys, values), mask)
    assert context.dtype == dtype
    exact = by_loops(queries.float(), KeysValues(keys.float(), values.float()), mask)
    torch.testing.assert_close(context.float(), exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_of_the_explicit_path(dtype: torch.dtype) -> None:
    """Trap 15: each row sums to 1 over what may be attended, in fp32, and is 0 elsewhere, also with dropout."""
    queries, keys, values = (random_heads(length).to(dtype) for length in (T, S, S))
    mask = random_mask(B, H, T, S)
    _, weights = explicit_attention(queries, KeysValues(keys, values), mask, dropout_rate=0.5)
    assert torch.all(weights[~mask] == 0)
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).float())


def test_padding_mask() -> None:
    mask = padding_mask(torch.tensor([[5, 6, 7], [5, 7, 7]]), pad_id=7)
    assert mask.shape == (2, 1, 1, 3)
    assert mask.flatten(1).tolist() == [[True, True, False], [True, False, False]]


@pytest.mark.parametrize("length", [1, 4])
def test_causal_mask(length: int) -> None:
    mask = causal_mask(length)
    assert mask.shape == (1, 1, length, length)
    assert mask[0, 0].tolist() == [[s <= t for s in range(length)] for t in range(length)]


# --- the module -------------------------------------------------------------------------------------------------------


@pytest.fixture
def attention() -> MultiHeadAttention:
    """Dropout is set, and off."""
    config = ModelConfig(d_model=D, n_heads=H, dropout=DropoutConfig(attention=0.5))
    attention = MultiHeadAttention(config, is_self=True).eval()
    nn.init.normal_(attention.queries_keys_values.bias)
    return attention


def in_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """torch's own attention with the same weights."""
    theirs = nn.MultiheadAttention(D, H, batch_first=True).eval()
    theirs.in_proj_weight.data = ours.queries_keys_values.weight.detach()
    theirs.in_proj_bias.data = ours.queries_keys_values.bias.detach()
    theirs.out_proj.load_state_dict(ours.output.state_dict())
    return theirs


def test_equals_torch_in_cross_attention(attention: MultiHeadAttention) -> None:
    """Also trap 15: queries and keys have lengths of their own."""
    x, states, mask = torch.randn(B, T, D), torch.randn(B, S, D), torch.rand(B, 1, 1, S) < 0.7
    mask[..., 0] = True
    wanted, weights = in_torch(attention)(
        x, states, states, key_padding_mask=~mask[:, 0, 0], average_attn_weights=False
    )
    queries, memory = attention.project_queries(x), attention.project_keys_values(states)
    torch.testing.assert_close(attention(queries, memory, mask), wanted)
    torch.testing.assert_close(explicit_attention(queries, memory, mask)[1], weights)


def test_equals_torch_in_self_attention(attention: MultiHeadAttention) -> None:
    x, mask = torch.randn(B, T, D), causal_mask(T)
    wanted, _ = in_torch(attention)(x, x, x, attn_mask=~mask[0, 0])
    torch.testing.assert_close(attention(*attention.project(x), mask), wanted)


def test_the_packed_projection_is_three_apart(attention: MultiHeadAttention) -> None:
    """Queries, keys, values, each split into heads; and the same alone as together."""
    x, packed = torch.randn(B, S, D), attention.queries_keys_values
    queries, (keys, values) = attention.project(x)
    parts = zip(packed.weight.chunk(3), packed.bias.chunk(3), strict=True)
    for found, (weight, bias) in zip((queries, keys, values), parts, strict=True):
        wanted = F.linear(x, weight, bias)
        for head in range(H):
            torch.testing.assert_close(found[:, head], wanted[..., head * E : (head + 1) * E])
    torch.testing.assert_close(
        (attention.project_queries(x), attention.project_keys_values(x)), (queries, KeysValues(keys, values))
    )


def test_dropout_is_for_training_only(attention: MultiHeadAttention) -> None:
    queries, memory = attention.project(torch.randn(B, T, D))
    plain = attention(queries, memory, None)
    torch.testing.assert_close(attention(queries, memory, None), plain)
    assert not torch.allclose(attention.train()(queries, memory, None), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_stay_as_they_are(attention: MultiHeadAttention, dtype: torch.dtype) -> None:
    """Trap 16, on both paths."""
    attention.to(dtype).train()
    x, mask = torch.randn(B, T, D, dtype=dtype), causal_mask(T)
    queries, memory = attention.project(x)
    before = [part.clone() for part in (x, queries, *memory, mask)]
    attention(queries, memory, mask)
    explicit_attention(queries, memory, mask)
    assert all(map(torch.equal, (x, queries, *memory, mask), before))


# --- fewer heads of keys and values -----------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_queries_are_multi_head_with_repeated_keys(path: Attend, mask: str, groups: int) -> None:
    heads = 6
    queries = torch.randn(B, heads, T, E)
    few = KeysValues(torch.randn(B, groups, S, E), torch.randn(B, groups, S, E))
    many = KeysValues(*(part.repeat_interleave(heads // groups, dim=1) for part in few))
    allowed = random_mask(B, heads, T, S) if mask == "heads" else MASKS[mask]()
    torch.testing.assert_close(path(queries, few, allowed), path(queries, many, allowed))


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_a_grouped_module_is_a_multi_head_one_with_repeated_projections(n_kv_heads: int) -> None:
    few = MultiHeadAttention(ModelConfig(d_model=32, n_heads=4, n_kv_heads=n_kv_heads), is_self=True)
    many = MultiHeadAttention(ModelConfig(d_model=32, n_heads=4), is_self=True)
    for name in ("weight", "bias"):
        parts = getattr(few.queries_keys_values, name).detach().split(few.queries_keys_values.widths)
        repeated = [part.unflatten(0, (n_kv_heads, 8)).repeat_interleave(4 // n_kv_heads, 0) for part in parts[1:]]
        getattr(many.queries_keys_values, name).data = torch.cat([parts[0], *(part.flatten(0, 1) for part in repeated)])
    many.output.load_state_dict(few.output.state_dict())
    x, mask = torch.randn(B, T, 32), causal_mask(T)
    torch.testing.assert_close(few(*few.project(x), mask), many(*many.project(x), mask))


def test_queries_and_keys_are_normalised_in_each_head() -> None:
    config = ModelConfig(d_model=32, n_heads=4, qk_norm=True, norm="rmsnorm")
    queries, memory = MultiHeadAttention(config, is_self=True).project(7 * torch.randn(B, T, 32))
    for heads in (queries, memory.keys):
        torch.testing.assert_close(heads.square().mean(-1), torch.ones(B, 4, T), atol=1e-4, rtol=0)
    assert not torch.allclose(memory.values.square().mean(-1), torch.ones(B, 4, T), atol=0.1)
