"""Attention weights of a model, for inspection and word alignment.

`B` batch, `S` source length, `T` target length, `H` heads.
"""

from __future__ import annotations

import copy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from transformer_mt.model.attention import KeysValues, Mask, MultiHeadAttention, explicit_attention
from transformer_mt.model.packing import PackedMask
from transformer_mt.model.transformer import Stack, Transformer

ModuleT = TypeVar("ModuleT", bound=nn.Module)
StackT = TypeVar("StackT", bound=Stack)


class AttentionWeights(NamedTuple):
    """The attention weights of each layer; the last dimension sums to 1."""

    encoder: list[Tensor]  # [B, H, S, S] each
    decoder: list[Tensor]  # [B, H, T, T] each
    cross: list[Tensor]  # [B, H, T, S] each


@torch.no_grad()
def attention_weights(model: Transformer, src: Tensor, tgt_in: Tensor) -> AttentionWeights:
    """Compute all attention weights of one forward pass of a model in evaluation mode. [B, S], [B, T]."""
    encoder, encoder_weights = _record(model.encoder, "self_attention")
    decoder, decoder_weights = _record(model.decoder, "self_attention")
    decoder, cross_weights = _record(decoder, "cross_attention")
    _copy_with(model, encoder=encoder, decoder=decoder)(src, tgt_in)
    return AttentionWeights(encoder_weights, decoder_weights, cross_weights)


@torch.no_grad()
def cross_attention_weights(model: Transformer, src: Tensor, tgt_in: Tensor) -> list[Tensor]:
    """Compute only `AttentionWeights.cross`, which takes less time. [B, S], [B, T] -> n_layers x [B, H, T, S]."""
    decoder, weights = _record(model.decoder, "cross_attention")
    _copy_with(model, decoder=decoder)(src, tgt_in)
    return weights


class _RecordingAttention(MultiHeadAttention):
    """A copy of an attention that shares its tensors, and adds the weights of each call to a list."""

    def __init__(self, attention: MultiHeadAttention, weights: list[Tensor]) -> None:
        vars(self).update(vars(attention))  # in place of super().__init__: shares all tensors, allocates no new ones
        self.weights = weights

    def forward(self, queries: Tensor, keys_values: KeysValues, mask: Mask) -> Tensor:
        """Attend as `MultiHeadAttention.forward`, and record the weights."""
        assert not isinstance(mask, PackedMask)
        context, weights = explicit_attention(queries, keys_values, mask)
        self.weights.append(weights)
        return self.output(context.transpose(1, 2).flatten(2))


def _record(stack: StackT, attention: str) -> tuple[StackT, list[Tensor]]:
    """Return a copy of a stack that records one kind of attention, and the list that gets the weights of each layer."""
    assert not stack.training
    weights: list[Tensor] = []
    layers = [
        _copy_with(layer, **{attention: _RecordingAttention(getattr(layer, attention), weights)})
        for layer in stack.layers
    ]
    return _copy_with(stack, layers=nn.ModuleList(layers)), weights


def _copy_with(module: ModuleT, **children: nn.Module) -> ModuleT:
    """Return a copy of a module that shares everything but some children. Other threads may use the original."""
    twin = copy.copy(module)
    vars(twin)["_modules"] = {**vars(module)["_modules"], **children}
    return twin
