"""Attention weights of a model, for inspection.

`B` batch, `S` source length, `T` target length, `H` heads.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from transformer_mt.model.attention import MultiHeadAttention, explicit_attention
from transformer_mt.model.transformer import Transformer


class AttentionWeights(NamedTuple):
    """The attention weights of each layer; the last dimension sums to 1."""

    encoder: list[Tensor]  # [B, H, S, S] each
    decoder: list[Tensor]  # [B, H, T, T] each
    cross: list[Tensor]  # [B, H, T, S] each


@torch.no_grad()
def attention_weights(model: Transformer, src: Tensor, tgt_in: Tensor) -> AttentionWeights:
    """Compute the attention weights of one forward pass without dropout. [B, S], [B, T].

    The hooks are registered on a copy that shares the model's tensors, because other threads may use the model.
    """
    tensors = (*model.parameters(), *model.buffers())
    model_copy = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()
    weights: dict[MultiHeadAttention, Tensor] = {}

    def record(attention: Any, inputs: Any) -> None:
        queries, keys_values, mask = inputs
        weights[attention] = explicit_attention(queries, keys_values, mask)[1]

    for module in model_copy.modules():
        if isinstance(module, MultiHeadAttention):
            module.register_forward_pre_hook(record)
    model_copy(src, tgt_in)
    encoder_layers, decoder_layers = cast(Any, (model_copy.encoder.layers, model_copy.decoder.layers))
    return AttentionWeights(
        encoder=[weights[layer.self_attention] for layer in encoder_layers],
        decoder=[weights[layer.self_attention] for layer in decoder_layers],
        cross=[weights[layer.cross_attention] for layer in decoder_layers],
    )
