"""The attention weights of a model at work, to look at.

`B` batch, `S` source length, `T` target length, `H` heads.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from transformer_mt.model.attention import MultiHeadAttention, attend_explicitly
from transformer_mt.model.transformer import Transformer


class AttentionWeights(NamedTuple):
    """What attends to what, layer by layer. A row of the last two dimensions sums to 1."""

    encoder: list[Tensor]  # [B, H, S, S] each
    decoder: list[Tensor]  # [B, H, T, T]
    cross: list[Tensor]  # [B, H, T, S]


@torch.no_grad()
def attention_weights(model: Transformer, src: Tensor, tgt_in: Tensor) -> AttentionWeights:
    """The weights with which a model reads these ids, without dropout. [B, S], [B, T]

    What is watched is a twin that shares the model's tensors, so the model itself may be at work in other threads.
    """
    tensors = (*model.parameters(), *model.buffers())
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()
    found: dict[MultiHeadAttention, Tensor] = {}

    def watch(attention: Any, inputs: Any) -> None:
        queries, memory, mask = inputs
        found[attention] = attend_explicitly(queries, memory, mask)[1]

    for module in twin.modules():
        if isinstance(module, MultiHeadAttention):
            module.register_forward_pre_hook(watch)
    twin(src, tgt_in)
    layers = cast(Any, twin.decoder.layers)
    return AttentionWeights(
        encoder=[found[layer.self_attention] for layer in cast(Any, twin.encoder.layers)],
        decoder=[found[layer.self_attention] for layer in layers],
        cross=[found[layer.cross_attention] for layer in layers],
    )
