"""Inference without calls of modules: encoding and steps of decoding as functions of the weights.

`InferenceModel` computes what `Transformer.start`, `step` and `logits` compute, which are its reference in the tests.
On a CPU, the calls of modules take longer than the arithmetic of one sentence, so there are few of them here.

`B` sentences, `b` of one slice, `K` hypotheses per sentence, `S` source length, `L` queries (K or S), `N` rows (B * L),
`C` keys (slots of the cache or source tokens), `D` model width, `H` query heads, `G` key/value heads, `R` = H / G, `E`
head width, `O` output width, `V` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from transformer_mt.model.attention import KeysValues, MultiHeadAttention, fused_attention, padding_mask
from transformer_mt.model.cpu_kernels import SHORT_KEYS, make_product, masked_score, slice_sources
from transformer_mt.model.kv_cache import KVCache
from transformer_mt.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm, Residual
from transformer_mt.model.modules import LayerNorm, linear
from transformer_mt.model.positions import Positions, PositionTable, Rotary, table_rows
from transformer_mt.model.transformer import Stack, Transformer

Function = Callable[[Tensor], Tensor]
Rotation = tuple[Tensor, Tensor] | None
"""Cosines and sines of the positions. [L or 1, 1, E] each"""


class LayerCache(Protocol):
    """Keys and values of the target so far, of one layer."""

    def append_stacked(self, new: Tensor) -> Tensor:
        """Write those of one step, and return all. [2, B, G, K, E] -> [2, B, G, C, E]."""
        ...


class StepCache(Protocol):
    """Interface of the cache that a step reads and writes, such as `KVCache`."""

    memory: list[KeysValues]
    memory_mask: Tensor

    @property
    def layers(self) -> Sequence[LayerCache]:
        """The cache of each layer."""
        ...

    def append_step(self, n_hypotheses: int) -> tuple[Positions, Tensor]:
        """Return the position of the next token, and the self-attention mask. [B, 1, K, C]."""
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
        caches: list[KVCache] = []
        dtype = self._encoder.dtype  # which the CUDA kernel of attention demands of the mask
        for part in slice_sources(src, self._src_pad):
            is_source = padding_mask(part, self._src_pad)  # [b, 1, 1, S]
            mask = torch.zeros(is_source.shape, dtype=dtype, device=src.device)
            mask.masked_fill_(~is_source, masked_score(dtype))
            x, rotation = self._encoder.embed(part, slice(0, part.size(1)))
            mask = self._encoder.expand_mask(mask, part.size(1))
            for layer in self._encoder_layers:
                x = layer(x, part.shape, mask, rotation)
            states = self._encoder.norm(x).view(*part.shape, -1)  # [b, S, D]
            caches.append(KVCache([layer.project_memory(states) for layer in self._decoder_layers], is_source))
        return KVCache.cat(caches)

    def step(self, tokens: Tensor, cache: StepCache) -> Tensor:
        """Append a token to each hypothesis in the cache, and return its decoder state. [B, K] -> [B, K, D]."""
        shape = tokens.shape
        position, mask = cache.append_step(shape[1])
        x, rotation = self._decoder.embed(tokens, position)
        mask, memory_mask = (
            self._decoder.expand_mask(mask, shape[1]),
            self._decoder.expand_mask(cache.memory_mask, shape[1]),
        )
        for layer, memory, slots in zip(self._decoder_layers, cache.memory, cache.layers, strict=True):
            x = layer(x, shape, mask, memory, memory_mask, slots, rotation)
        return self._decoder.norm(x).view(*shape, -1)

    def logits(self, states: Tensor) -> Tensor:
        """Project decoder states to fp32 logits; the one of padding is -inf. [B, K, D] -> [B, K, V]."""
        logits = self._output(states.flatten(0, 1)).float().view(*states.shape[:2], -1)
        logits.select(-1, self._tgt_pad).fill_(-math.inf)
        return logits


class _Stack:
    """Embedding, rotation and final norm of encoder or decoder."""

    def __init__(self, stack: Stack) -> None:
        self._embedding = stack.embedding
        attention = next(each for each in stack.modules() if isinstance(each, MultiHeadAttention))
        self._n_heads, self._n_kv_heads = attention.n_heads, attention.n_kv_heads
        self.dtype = attention.output.weight.dtype
        self._rotary = next((each for each in stack.layers.modules() if isinstance(each, Rotary)), None)
        self.norm = make_norm_function(stack.norm)

    def position_tables(self, length: int) -> list[Tensor]:
        """Return the tables of sinusoidal and rotary positions, grown to this length."""
        tables = (self._embedding.positions, self._rotary)
        return [table.get(length) for table in tables if isinstance(table, PositionTable)]

    def embed(self, ids: Tensor, positions: Positions) -> tuple[Tensor, Rotation]:
        """Embed ids, and return the rotation of their positions, the same in all layers. [B, L] -> [N, D]."""
        embedding = self._embedding
        x = torch.embedding(embedding.tokens.weight, ids) * embedding.scale
        x = embedding.norm.forward(embedding.positions.forward(x, positions)).flatten(0, 1)
        if self._rotary is None:
            return x, None
        end, index = table_rows(positions, ids.size(1))
        cos, sin = self._rotary.get(end)[:, index, None].unbind()
        return x, (cos, sin)

    def expand_mask(self, mask: Tensor, length: int) -> Tensor:
        """Expand a mask to the shape of the scores in `attend_with_products`. [B, 1, 1 or L, C] -> [B * G, R * L, C].

        PyTorch's fused attention is faster on a GPU and for many keys of many queries, and gets the mask as it is.
        """
        batch, _, _, n_keys = mask.shape
        if not mask.is_cpu or (self.dtype == torch.float32 and min(length, n_keys) > SHORT_KEYS):
            return mask
        expanded = mask.expand(batch, self._n_heads, length, n_keys)
        return expanded.reshape(batch * self._n_kv_heads, -1, n_keys)


class _EncoderLayer:
    """Inference of an `EncoderLayer`."""

    def __init__(self, layer: EncoderLayer) -> None:
        self._residuals = [make_residual_function(cast(Residual, each)) for each in layer.residuals]
        self._attention = _Attention(layer.self_attention, is_self=True)
        self._feed_forward = make_feed_forward_function(layer.feed_forward)

    def __call__(self, x: Tensor, shape: torch.Size, mask: Tensor, rotation: Rotation) -> Tensor:
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
        slots: LayerCache,
        rotation: Rotation,
    ) -> Tensor:
        """Apply the three sub-layers to a new position. [N, D], shape [B, K] -> [N, D]."""
        self_residual, cross_residual, feed_forward_residual = self._residuals
        x = self_residual(x, lambda h: self._self_attention.attend_to_self(h, shape, mask, rotation, slots))
        x = cross_residual(x, lambda h: self._cross_attention.attend_to_source(h, shape, memory, memory_mask))
        return feed_forward_residual(x, self._feed_forward)


class _Attention:
    """Inference of a `MultiHeadAttention`."""

    def __init__(self, attention: MultiHeadAttention, *, is_self: bool) -> None:
        """In cross-attention, only the queries are projected here: the memory has keys and values."""
        self._n_heads, self._n_kv_heads, self._d_head = attention.n_heads, attention.n_kv_heads, attention.d_head
        weight, bias = attention.queries_keys_values.get_weight_and_bias()
        n_projected = len(weight) if is_self else self._n_heads * self._d_head
        self._project = make_projection(weight[:n_projected], None if bias is None else bias[:n_projected])
        self._output = make_projection(*attention.output.get_weight_and_bias())
        self._has_norms = attention.has_norms
        self._query_norm, self._key_norm = map(make_norm_function, (attention.query_norm, attention.key_norm))

    def attend_to_self(
        self, h: Tensor, shape: torch.Size, mask: Tensor, rotation: Rotation, slots: LayerCache | None = None
    ) -> Tensor:
        """Attend to `h`, or append it to `slots` and attend to all of them. [N, D], shape [B, L] -> [N, D]."""
        heads = self._project(h).view(*shape, -1, self._d_head)  # [B, L, H + 2 G, E]
        if self._has_norms or rotation is not None:
            heads = self._normalize_and_rotate(heads, rotation)
        queries, new = heads.narrow(2, 0, self._n_heads), heads.narrow(2, self._n_heads, 2 * self._n_kv_heads)
        new = new.view(*shape, 2, self._n_kv_heads, self._d_head).permute(2, 0, 3, 1, 4)  # [2, B, G, L, E]
        keys, values = (new if slots is None else slots.append_stacked(new)).unbind()
        return self._attend(queries, keys, values, mask)

    def attend_to_source(self, h: Tensor, shape: torch.Size, memory: KeysValues, memory_mask: Tensor) -> Tensor:
        """Attend to the encoded source. [N, D], shape [B, K] -> [N, D]."""
        queries = self._project(h).view(*shape, -1, self._d_head)  # [B, K, H, E]
        if self._has_norms:
            queries = self._query_norm(queries).to(memory.keys.dtype)
        return self._attend(queries, *memory, memory_mask)

    def _normalize_and_rotate(self, heads: Tensor, rotation: Rotation) -> Tensor:
        """Normalise and rotate queries and keys. [B, L, H + 2 G, E] -> [B, L, H + 2 G, E]."""
        queries, keys, values = heads.split_with_sizes([self._n_heads, self._n_kv_heads, self._n_kv_heads], dim=2)
        if self._has_norms:
            queries, keys = self._query_norm(queries), self._key_norm(keys)
        transformed = torch.cat([queries, keys], dim=2).to(values.dtype)
        if rotation is not None:
            cos, sin = (each.to(values.dtype) for each in rotation)
            transformed = transformed * cos + transformed.roll(self._d_head // 2, -1) * sin
        return torch.cat([transformed, values], dim=2)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend and project the output. [B, L, H, E], 2 x [B, G, C, E], a mask of `_Stack.expand_mask` -> [N, D]."""
        if mask.dim() == 3:
            context = attend_with_products(queries.transpose(1, 2), keys, values, mask)
        else:
            context = fused_attention(queries.transpose(1, 2), KeysValues(keys, values), mask)
        if queries.size(1) > 1:
            context = context.transpose(1, 2)  # [B, L, H, E]
        return self._output(context.reshape(-1, self._n_heads * self._d_head))


def attend_with_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Compute softmax(Q K^T / sqrt(E) + mask) V. [B, H, L, E], 2 x [B, G, C, E], [B * G, R * L, C] -> [B, H, L, E]."""
    shape, scale = queries.shape, queries.size(3) ** -0.5
    keys, values = keys.flatten(0, 1).mT, values.flatten(0, 1)  # [B * G, E, C], [B * G, C, E]
    queries = queries.reshape(mask.size(0), -1, shape[3])  # [B * G, R * L, E]
    if queries.dtype == torch.float32:
        weights = torch.baddbmm(mask, queries, keys, alpha=scale).softmax(-1)  # [B * G, R * L, C]
    else:
        weights = torch.add(mask, torch.bmm(queries, keys).float(), alpha=scale).softmax(-1).to(values.dtype)
    return torch.bmm(weights, values).view(shape)


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
    return lambda x, sublayer: x + norm(sublayer(x).to(x.dtype))


def make_feed_forward_function(feed_forward: FeedForward) -> Function:
    """Return the function of a feed-forward block. [N, D] -> [N, D]."""
    inner, outer = (make_projection(*each.get_weight_and_bias()) for each in (feed_forward.inner, feed_forward.outer))
    activation, widths = feed_forward.activation.forward, feed_forward.inner.widths
    if len(widths) == 1:
        return lambda x: outer(activation(inner(x)))
    return lambda x: outer(activation(*inner(x).split_with_sizes(widths, dim=-1)))
