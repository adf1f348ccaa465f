"""Inference without calls of modules: encoding and steps of decoding as functions of the weights.

`InferenceModel` computes the states of `Transformer.forward`, one position after the other. On a CPU, the calls of
modules take longer than the arithmetic of one sentence, so there are few of them here.

`B` sentences, `b` of one slice, `K` hypotheses (beams) per sentence, `S` source length, `L` queries (K or S), `N` rows
(B * L), `C` keys (slots of the cache, allocated in blocks, or source tokens), `D` model width, `H` query heads, `G`
key/value heads, `E` head width, `O` output width, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.attention import KeysValues, MultiHeadAttention, expand_mask, padding_mask
from transformer_mt.model.cpu_kernels import make_product, masked_score, slice_sources
from transformer_mt.model.layers import FeedForward, LayerNorm, PostNorm, PreNorm, Residual, linear
from transformer_mt.model.positions import Positions, PositionTable, Rotation
from transformer_mt.model.transformer import DecoderLayer, EncoderLayer, Stack, Transformer

# --- cache ------------------------------------------------------------------------------------------------------------

BLOCK = 16
"""Keys come in multiples of this number, because softmax over shorter rows is slow on a CPU."""


def round_up(n_slots: int) -> int:
    """Round a number of slots up to whole blocks."""
    return -(-n_slots // BLOCK) * BLOCK


def pad_slots(x: Tensor, n_slots: int) -> Tensor:
    """Append slots of zeros. [B, G, S, E] -> contiguous [B, G, n_slots, E]."""
    return F.pad(x, (0, 0, 0, n_slots - x.size(2))).contiguous()


def pad_mask(mask: Tensor, n_slots: int) -> Tensor:
    """Append slots that no hypothesis attends to. [B, 1, L, S] -> [B, 1, L, n_slots]."""
    missing = n_slots - mask.size(3)
    return F.pad(mask, (0, missing), value=masked_score(mask.dtype)) if missing else mask


class KVCache:
    """State of a step-by-step decoder: the projected source, and the target tokens so far of each hypothesis.

    The K hypotheses of a sentence share prefixes, so the cache is a tree. Each token's keys and values are written
    once, to the next free slot. Each hypothesis has a mask of the slots of its tokens. To reorder hypotheses, beam
    search copies masks; keys and values do not move.

    Its masks are added to the scores: 0 for a key that may be attended, `masked_score` for any other.
    """

    def __init__(self, memory: list[KeysValues], is_source: Tensor) -> None:
        """`memory` has the encoder states as keys and values of each layer, 2 x [B, G, S, E]; mask [B, 1, 1, S]."""
        keys, is_padding, n_slots = memory[0].keys, ~is_source, round_up(is_source.size(3))
        mask = keys.new_zeros(is_source.shape).masked_fill_(is_padding, masked_score(keys.dtype))
        self.memory_mask = pad_mask(mask, n_slots)
        self.memory = [  # values of padding are 0, so that a source without tokens gives 0
            KeysValues(pad_slots(keys, n_slots), pad_slots(values.masked_fill(is_padding.mT, 0), n_slots))
            for keys, values in memory
        ]
        self.mask = mask[..., :0]  # slots of each hypothesis [B, 1, K, C]
        self.slots = [KeysValues(*(each[:, :, :0] for each in layer)) for layer in memory]  # 2 x [B, G, at least C, E]
        self.position = 0  # of the next token, the same for all hypotheses
        self.n_used = 0  # slots

    def append_step(self, n_hypotheses: int) -> tuple[slice, Tensor]:
        """Reserve a slot for the next token of each hypothesis.

        Return the position of that token, and the self-attention mask [B, 1, K, C].
        """
        end = self.n_used + n_hypotheses
        self.mask = pad_mask(self.mask, round_up(end))
        self.mask[..., self.n_used : end].diagonal(dim1=-2, dim2=-1).zero_()
        position = slice(self.position, self.position + 1)
        self.position, self.n_used = self.position + 1, end
        return position, self.mask

    def append(self, layer: int, new: KeysValues) -> KeysValues:
        """Write keys and values to the reserved slots, and return those of all slots. [B, G, K, E] -> [B, G, C, E].

        Slots without a token hold zeros; the mask hides them.
        """
        slots, n_new, n_slots = self.slots[layer], new.keys.size(2), self.mask.size(3)
        n_allocated = slots.keys.size(2)
        if n_slots > n_allocated:
            slots = KeysValues(*(pad_slots(each, max(n_slots, 2 * n_allocated)) for each in slots))
            self.slots[layer] = slots
        for old, each in zip(slots, new, strict=True):
            old.narrow(2, self.n_used - n_new, n_new).copy_(each)
        return KeysValues(*(each.narrow(2, 0, n_slots) for each in slots))

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis k of each sentence by a copy of its hypothesis parents[:, k]. [B, K]."""
        if parents.size(1) > 1:  # a single hypothesis can only continue itself
            index = parents[:, None, :, None].expand(-1, -1, -1, self.mask.size(3))  # [B, 1, K, C]
            self.mask = self.mask.gather(2, index)

    def select(self, rows: Tensor) -> None:
        """Keep only these sentences, in this order. rows: [B']."""
        self.memory, self.slots = (  # indexing would take six times as long as `index_select`
            [KeysValues(*(each.index_select(0, rows) for each in layer)) for layer in layers]
            for layers in (self.memory, self.slots)
        )
        self.memory_mask, self.mask = self.memory_mask[rows], self.mask[rows]


Function = Callable[[Tensor], Tensor]
Append = Callable[[KeysValues], KeysValues]
"""Writes the keys and values of one step to the cache, and returns all. 2 x [B, G, K, E] -> 2 x [B, G, C, E]"""


# --- model ------------------------------------------------------------------------------------------------------------


class StepCache(Protocol):
    """Interface of the cache that a step reads and writes, such as `KVCache`."""

    memory: list[KeysValues]
    memory_mask: Tensor

    def append_step(self, n_hypotheses: int) -> tuple[Positions, Tensor]:
        """Return the position of the next token, and the self-attention mask. [B, 1, K, C]."""
        ...

    def append(self, layer: int, new: KeysValues) -> KeysValues:
        """Write the keys and values of a layer, and return all. 2 x [B, G, K, E] -> 2 x [B, G, C, E]."""
        ...


class InferenceModel:
    """Encodes sources and decodes step by step."""

    def __init__(self, model: Transformer) -> None:
        """`model` is in evaluation mode. Its weights must not change later, because a CPU may use copies."""
        self._src_pad, self._tgt_pad = model.src_pad, model.tgt_pad
        self._encoder, self._decoder = _Stack(model.encoder), _Stack(model.decoder)
        self._encoder_layers = [_EncoderLayer(cast(EncoderLayer, layer)) for layer in model.encoder.layers]
        self._decoder_layers = [_DecoderLayer(cast(DecoderLayer, layer)) for layer in model.decoder.layers]
        self._output = make_projection(*model.output.get_weight_and_bias())
        self.max_positions = model.config.max_sequence_length  # None: without a limit

    def position_tables(self, length: int) -> list[Tensor]:
        """Return the tables that a step at a position below `length` reads."""
        return self._decoder.position_tables(length)

    def start(self, src: Tensor) -> KVCache:
        """Encode the source and return the cache for step-by-step decoding. [B, S]."""
        parts = [
            F.pad(self._encode(part), (0, 0, 0, src.size(1) - part.size(1)))
            for part in slice_sources(src, self._src_pad)
        ]
        states = torch.cat(parts)  # [B, S, D]
        memory = [layer.project_memory(states) for layer in self._decoder_layers]
        return KVCache(memory, padding_mask(src, self._src_pad))

    def _encode(self, src: Tensor) -> Tensor:
        """Encode a slice of the sources. [b, S] -> [b, S, D]."""
        is_source, dtype = padding_mask(src, self._src_pad), self._encoder.dtype  # attention on CUDA demands this dtype
        mask = torch.zeros(is_source.shape, dtype=dtype, device=src.device)
        mask = self._encoder.expand_mask(mask.masked_fill_(~is_source, masked_score(dtype)), src.size(1))
        x, rotation = self._encoder.embed(src, slice(0, src.size(1)))
        for layer in self._encoder_layers:
            x = layer(x, src.shape, mask, rotation)
        return self._encoder.norm(x).view(*src.shape, -1)

    def step(self, tokens: Tensor, cache: StepCache) -> Tensor:
        """Append a token to each hypothesis in the cache, and return its decoder state. [B, K] -> [B, K, D]."""
        shape = tokens.shape
        position, mask = cache.append_step(shape[1])
        x, rotation = self._decoder.embed(tokens, position)
        mask, memory_mask = (self._decoder.expand_mask(each, shape[1]) for each in (mask, cache.memory_mask))
        for i, layer in enumerate(self._decoder_layers):
            x = layer(x, shape, mask, cache.memory[i], memory_mask, partial(cache.append, i), rotation)
        return self._decoder.norm(x).view(*shape, -1)

    def logits(self, states: Tensor) -> Tensor:
        """Project decoder states to fp32 logits; the one of padding is -inf. [B, K, D] -> [B, K, V]."""
        logits = self._output(states.flatten(0, 1)).float().view(*states.shape[:2], -1)
        logits.select(-1, self._tgt_pad).fill_(-math.inf)
        return logits


class _Stack:
    """Embedding, rotation and final norm of encoder or decoder."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        attention = next(each for each in stack.modules() if isinstance(each, MultiHeadAttention))
        self._n_heads, self._n_kv_heads = attention.n_heads, attention.n_kv_heads
        self.dtype = attention.output.weight.dtype
        self.norm = make_norm_function(stack.norm)

    def position_tables(self, length: int) -> list[Tensor]:
        """Return the tables of sinusoidal and rotary positions, grown to this length."""
        tables = (self._stack.embedding.positions, self._stack.rotary)
        return [table.get(length) for table in tables if isinstance(table, PositionTable)]

    def embed(self, ids: Tensor, positions: Positions) -> tuple[Tensor, Rotation | None]:
        """Embed ids, and return the rotation of their positions. [B, L] -> [N, D]."""
        x = self._stack.embedding(ids, positions).flatten(0, 1)
        return x, self._stack.make_rotation(positions, ids.size(1))

    def expand_mask(self, mask: Tensor, length: int) -> Tensor:
        """Expand a mask to the heads of this stack. [B, 1, 1 or L, C]."""
        return expand_mask(mask, self._n_heads, self._n_kv_heads, length, self.dtype)


class _EncoderLayer:
    """Inference of an `EncoderLayer`."""

    def __init__(self, layer: EncoderLayer) -> None:
        self._residuals = [make_residual_function(cast(Residual, each)) for each in layer.residuals]
        self._attention = _Attention(layer.self_attention, is_self=True)
        self._feed_forward = make_feed_forward_function(layer.feed_forward)

    def __call__(self, x: Tensor, shape: torch.Size, mask: Tensor, rotation: Rotation | None) -> Tensor:
        """Apply both sub-layers. [N, D], shape [B, S], a mask of `_Stack.expand_mask` -> [N, D]."""
        attention_residual, feed_forward_residual = self._residuals
        x = attention_residual(x, lambda h: self._attention.attend_to_self(h, shape, mask, rotation))
        return feed_forward_residual(x, self._feed_forward)


class _DecoderLayer:
    """Inference of a `DecoderLayer`."""

    def __init__(self, layer: DecoderLayer) -> None:
        self._residuals = [make_residual_function(cast(Residual, each)) for each in layer.residuals]
        self._self_attention = _Attention(layer.self_attention, is_self=True)
        self._cross_attention = _Attention(layer.cross_attention, is_self=False)
        self._feed_forward = make_feed_forward_function(layer.feed_forward)
        self.project_memory = layer.cross_attention.project_keys_values

    def __call__(
        self,
        x: Tensor,
        shape: torch.Size,
        mask: Tensor,
        memory: KeysValues,
        memory_mask: Tensor,
        append: Append,
        rotation: Rotation | None,
    ) -> Tensor:
        """Apply the three sub-layers to a new position. [N, D], shape [B, K] -> [N, D]."""
        self_residual, cross_residual, feed_forward_residual = self._residuals
        x = self_residual(x, lambda h: self._self_attention.attend_to_self(h, shape, mask, rotation, append))
        x = cross_residual(x, lambda h: self._cross_attention.attend_to_source(h, shape, memory, memory_mask))
        return feed_forward_residual(x, self._feed_forward)


class _Attention:
    """Inference of a `MultiHeadAttention`: the same attention with faster projections."""

    def __init__(self, attention: MultiHeadAttention, *, is_self: bool) -> None:
        """In cross-attention, only the queries are projected here: the memory has keys and values."""
        self._attention, self._infer = attention, attention.infer
        weight, bias = attention.queries_keys_values.get_weight_and_bias()
        n_projected = len(weight) if is_self else attention.n_heads * attention.d_head
        self._project = make_projection(weight[:n_projected], None if bias is None else bias[:n_projected])
        self._output = make_projection(*attention.output.get_weight_and_bias())

    def attend_to_self(
        self, h: Tensor, shape: torch.Size, mask: Tensor, rotation: Rotation | None, append: Append | None = None
    ) -> Tensor:
        """Attend to `h`, or append it to a cache and attend to all of it. [N, D], shape [B, L] -> [N, D]."""
        queries, keys_values = self._attention.split(self._project(h).view(*shape, -1), rotation)
        return self._attend(queries, keys_values if append is None else append(keys_values), mask)

    def attend_to_source(self, h: Tensor, shape: torch.Size, memory: KeysValues, memory_mask: Tensor) -> Tensor:
        """Attend to the encoded source. [N, D], shape [B, K] -> [N, D]."""
        queries = self._attention.split_heads(self._project(h).view(*shape, -1))  # [B, H, K, E]
        return self._attend(queries, memory, memory_mask)

    def _attend(self, queries: Tensor, keys_values: KeysValues, mask: Tensor) -> Tensor:
        """Attend and project the output. [B, H, L, E], 2 x [B, G, C, E], a mask of `_Stack.expand_mask` -> [N, D]."""
        context = self._infer(queries, keys_values, mask).transpose(1, 2)  # [B, L, H, E]
        return self._output(context.flatten(2).flatten(0, 1))


def make_projection(weight: Tensor, bias: Tensor | None) -> Function:
    """Return the function x -> x W^T + b. [O, D], [O]; [N, D] -> [N, O]."""
    return make_product(weight, bias) if weight.is_cpu else partial(linear, weight=weight, bias=bias)


def make_norm_function(norm: nn.Module) -> Function:
    """Return the function that a norm computes. [..., D] -> [..., D]."""
    if not isinstance(norm, LayerNorm):
        return norm.forward
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.native_layer_norm(x, shape, weight, bias, eps)[0]


def make_residual_function(residual: Residual) -> Callable[[Tensor, Function], Tensor]:
    """Return the function of a residual connection."""
    norm = make_norm_function(residual.norm)
    if isinstance(residual, PreNorm):
        return lambda x, sublayer: x + sublayer(norm(x))
    if isinstance(residual, PostNorm):
        return lambda x, sublayer: norm(x + sublayer(x))
    raise NotImplementedError(type(residual).__name__)


def make_feed_forward_function(feed_forward: FeedForward) -> Function:
    """Return the function of a feed-forward block. [N, D] -> [N, D]."""
    inner, outer = (make_projection(*each.get_weight_and_bias()) for each in (feed_forward.inner, feed_forward.outer))
    activation, widths = feed_forward.activation.forward, feed_forward.inner.widths
    if len(widths) == 1:
        return lambda x: outer(activation(inner(x)))
    return lambda x: outer(activation(*inner(x).split_with_sizes(widths, dim=-1)))
