"""Layers equal their formulas: traps 8 (layer normalisation) and 16 (residual connections)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.attention import MultiHeadAttention, causal_mask
from transformer_mt.model.layers import FeedForward, PreNorm, Residual, make_final_norm, make_residual
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import DecoderLayer, EncoderLayer

B, L, D = 2, 5, 16
NORMS = pytest.mark.parametrize("norm_position", ["pre", "post"])
NO_DROPOUT = dict.fromkeys(["embedding", "residual", "attention", "activation"], 0.0)


def config(**settings: Any) -> ModelConfig:
    return ModelConfig.model_validate({"d_model": D, "d_ff": 24, "n_heads": 2, "dropout": NO_DROPOUT, **settings})


@pytest.fixture
def x() -> Tensor:
    return torch.randn(B, L, D)


def layer_norm(x: Tensor, eps: float) -> Tensor:
    """Normalise with the biased variance and eps under the root."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) / (variance + eps).sqrt()


def double(h: Tensor) -> Tensor:
    return 2 * h


# --- residual connections ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm_uses_biased_variance_and_eps_under_the_root(x: Tensor, eps: float) -> None:
    """Trap 8: with a large eps, its place matters."""
    settings = config(norm_eps=eps, norm_position="post")
    wanted = layer_norm(3 * x, eps)
    torch.testing.assert_close(make_residual(settings)(x, double), wanted)
    torch.testing.assert_close(F.layer_norm(3 * x, (D,), eps=eps), wanted)
    torch.testing.assert_close(make_final_norm(config(norm_eps=eps))(x), layer_norm(x, eps))


@pytest.mark.parametrize(
    ("norm_position", "formula"),
    [
        ("pre", lambda x: x + 2 * layer_norm(x, 1e-5)),
        ("post", lambda x: layer_norm(x + 2 * x, 1e-5)),
    ],
)
def test_residual_connections_equal_their_formulas(
    x: Tensor, norm_position: str, formula: Callable[[Tensor], Tensor]
) -> None:
    torch.testing.assert_close(make_residual(config(norm_position=norm_position))(x, double), formula(x))


def test_residual_dropout_applies_only_to_the_sublayer(x: Tensor) -> None:
    """The residual stream is not dropped; what remains of the sub-layer is rescaled."""
    added = PreNorm(config(dropout={**NO_DROPOUT, "residual": 0.5}))(x, torch.ones_like) - x
    assert set(added.round(decimals=4).unique().tolist()) == {0.0, 2.0}


# --- layers -----------------------------------------------------------------------------------------------------------


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda h: h.clamp(min=0),
    "gelu": lambda h: h * 0.5 * (1 + torch.erf(h / 2**0.5)),
    "silu": lambda h: h / (1 + torch.exp(-h)),
}


@pytest.mark.parametrize(
    ("name", "function"),
    [("relu", "relu"), ("gelu", "gelu"), ("silu", "silu"), ("geglu", "gelu"), ("swiglu", "silu")],
)
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_equals_its_formula(x: Tensor, name: str, function: str, bias: bool) -> None:
    layer = FeedForward(config(activation=name, feed_forward_bias=bias))
    assert sum(1 for _ in layer.parameters()) == (4 if bias else 2)
    hidden = F.linear(x, layer.inner.weight, layer.inner.bias)
    if name.endswith("glu"):
        gate, value = hidden.chunk(2, dim=-1)
        hidden = ACTIVATIONS[function](gate) * value
    else:
        hidden = ACTIVATIONS[function](hidden)
    torch.testing.assert_close(layer(x), F.linear(hidden, layer.outer.weight, layer.outer.bias))


def run_encoder(x: Tensor, **settings: Any) -> Tensor:
    return EncoderLayer(config(**settings))(x, torch.ones(B, 1, 1, L, dtype=torch.bool))


def zero_outputs(layer: nn.Module) -> None:
    """Make every sub-layer return zero."""
    for module in layer.modules():
        if isinstance(module, MultiHeadAttention | FeedForward):
            last = module.output if isinstance(module, MultiHeadAttention) else module.outer
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)


def run_decoder(layer: DecoderLayer, x: Tensor) -> Tensor:
    src_states = torch.linspace(-1, 1, B * 3 * D).view(B, 3, D)
    src_mask = torch.tensor([[True, True, False], [True, True, True]])[:, None, None]
    return layer(x, causal_mask(x.size(1)), src_states, src_mask)


def test_zero_sublayers_are_the_identity_with_pre_norm(x: Tensor) -> None:
    """Trap 16: the residual is the layer's input, not the sub-layer's output."""
    encoder, decoder = EncoderLayer(config()), DecoderLayer(config())
    zero_outputs(encoder)
    zero_outputs(decoder)
    assert torch.equal(encoder(x, torch.ones(B, 1, 1, L, dtype=torch.bool)), x)
    assert torch.equal(run_decoder(decoder, x), x)


@pytest.mark.parametrize("name", ["residual", "attention", "activation"])
def test_each_dropout_rate_applies_to_its_module(name: str) -> None:
    settings = config(dropout={**NO_DROPOUT, name: 0.25})
    layer = DecoderLayer(settings)
    rates = {
        "residual": {cast(Residual, residual).dropout.p for residual in layer.residuals},
        "attention": {layer.self_attention.dropout, layer.cross_attention.dropout},
        "activation": {layer.feed_forward.dropout.p},
    }
    assert rates == {place: {0.25 if place == name else 0.0} for place in rates}
    encoder = EncoderLayer(settings)
    assert encoder.self_attention.dropout == (0.25 if name == "attention" else 0.0)
    assert encoder.feed_forward.dropout.p == (0.25 if name == "activation" else 0.0)
