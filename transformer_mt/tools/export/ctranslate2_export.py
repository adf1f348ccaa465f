"""Export to CTranslate2: its Transformer specification with our weights, tokenizers, metadata and a translation script.

DIR/
  model.bin  config.json  *vocabulary.json   read by CTranslate2
  src_tokenizer.json  tgt_tokenizer.json     read by the tokenizers library
  export.json                                source run, decoding settings and parity check
  translate.py and its modules               translate text; need only ctranslate2 and tokenizers

Keys and values that several heads share are repeated for each head. All positions except rotary ones become a table.
The pad token gets an output bias of minus infinity, which removes it from the softmax.

The vocabularies have the pieces of the tokenizers. CTranslate2 adds the control symbols of a source itself.

`D` model width, `H` heads, `G` key-value heads, `E` head width, `V` vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from transformer_mt.data.tokenizers.tokenizer import BOS, EOS, PAD, TokenizerPair
from transformer_mt.decoding.translator import Translator
from transformer_mt.model.attention import MultiHeadAttention
from transformer_mt.model.layers import FeedForward
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.positions import LearnedPositions, sinusoidal_table
from transformer_mt.model.transformer import Embedding, Stack, Transformer
from transformer_mt.system import files
from transformer_mt.tools.export.ctranslate2_engine import (
    CTranslate2Engine,
    find_length_limits,
    import_ctranslate2,
    list_vocabulary,
)
from transformer_mt.tools.export.exported_folder import (
    check_parity,
    check_parity_on_random_ids,
    describe_parity,
    write_metadata,
    write_texts,
)

Spec = Any  # the specifications of CTranslate2 are only partly typed

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "geglu": "GELU", "swiglu": "SWISH"}
SCRIPT = Path(__file__).with_name("ctranslate2_script.py")


def write_folder(translator: Translator, output: Path, quantization: str, texts: Sequence[str]) -> list[str]:
    """Write the folder atomically, compare its translations of `texts` with ours, and return the lines to print.

    `translator` holds one model in fp32 on the CPU.
    """
    n_positions, _ = find_length_limits(translator.model.config, translator.config, translator.tokenizers)
    with files.atomic_new_folder(output) as folder:
        save_model(translator, n_positions, quantization, folder)
        parity = check_parity(translator, CTranslate2Engine(folder, translator.tokenizers, n_positions), texts)
        write_texts(folder, translator, SCRIPT)
        write_metadata(folder, translator, ["ctranslate2"], quantization, parity)
    return describe_parity(parity, quantization)


def convert(translator: Translator, n_positions: int, quantization: str, folder: Path) -> str:
    """Write only the model. Return how its scores of random sources differ, if by more than rounding in float32.

    `translator` holds one model in fp32 on the CPU.
    """
    save_model(translator, n_positions, "float32", folder)
    parity = check_parity_on_random_ids(translator, CTranslate2Engine(folder, translator.tokenizers, n_positions))
    if quantization != "float32":
        save_model(translator, n_positions, quantization, folder)
    return "" if parity.has_close_scores else str(parity)


# --- model ------------------------------------------------------------------------------------------------------------


def save_model(translator: Translator, n_positions: int, quantization: str, folder: Path) -> None:
    """Convert the model, and write it into a folder. Position tables have `n_positions` rows."""
    spec = make_spec(translator.model, translator.tokenizers, n_positions)
    spec.config.add_source_bos = translator.tokenizers.source_bos
    spec.config.add_source_eos = translator.tokenizers.source_eos
    spec.validate()
    spec.optimize(None if quantization == "float32" else quantization)
    spec.save(str(folder))


def make_spec(model: Transformer, tokenizers: TokenizerPair, n_positions: int) -> Spec:
    """Fill a specification with copies of the weights, because CTranslate2 quantises them in place."""
    config = model.config
    src_config, tgt_config = config.for_stack(config.encoder), config.for_stack(config.decoder)
    specs = import_ctranslate2().specs.transformer_spec
    encoder = _make_stack(specs.TransformerEncoderSpec, src_config, len(model.encoder.layers))
    decoder = _make_stack(specs.TransformerDecoderSpec, tgt_config, len(model.decoder.layers))
    _fill_stack(encoder, encoder.embeddings[0], model.encoder, src_config, n_positions)
    _fill_stack(decoder, decoder.embeddings, model.decoder, tgt_config, n_positions)
    bias = _copy(model.output.bias) if config.output_bias else torch.zeros(model.output.out_features)  # [V]
    bias[model.tgt_pad] = -math.inf
    _fill_linear(decoder.projection, model.output.weight, bias)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(list_vocabulary(tokenizers.src))
    spec.register_target_vocabulary(list_vocabulary(tokenizers.tgt))
    spec.config.bos_token, spec.config.eos_token, spec.config.decoder_start_token = BOS, EOS, BOS
    unknown = {
        list_vocabulary(each)[each.unk_id] if each.unk_id >= 0 else PAD for each in (tokenizers.src, tokenizers.tgt)
    }
    spec.config.unk_token = unknown.pop() if len(unknown) == 1 else PAD  # one is required; PAD is never produced
    spec.config.layer_norm_epsilon = config.norm_eps
    return spec


def _make_stack(kind: Any, config: ModelConfig, n_layers: int) -> Spec:
    return kind(
        n_layers,
        config.n_heads,
        pre_norm=config.norm_position == "pre",
        activation=import_ctranslate2().specs.common_spec.Activation[ACTIVATIONS[config.activation]],
        ffn_glu=config.activation in ("geglu", "swiglu"),
        rms_norm=config.norm == "rmsnorm",
        rotary_dim=config.d_head if config.positions == "rotary" else None,
        rotary_interleave=False,
    )


def _fill_stack(spec: Spec, tokens: Spec, stack: Stack, config: ModelConfig, n_positions: int) -> None:
    embedding = stack.embedding
    tokens.weight = _copy(embedding.tokens.weight)
    spec.scale_embeddings = config.scale_embeddings
    if config.positions != "rotary":
        spec.position_encodings.encodings = _make_position_table(embedding, config, n_positions)
    elif hasattr(spec, "position_encodings"):  # the encoder specification has it even with rotary positions
        del spec.position_encodings
    if config.norm_position == "pre":
        _fill_norm(spec.layer_norm, stack.norm)
    for layer_spec, layer in zip(spec.layer, cast(Any, stack.layers), strict=True):
        _fill_attention(layer_spec.self_attention, layer.self_attention, config)
        sublayers = [layer_spec.self_attention, layer_spec.ffn]
        if hasattr(layer, "cross_attention"):
            _fill_attention(layer_spec.attention, layer.cross_attention, config)
            sublayers.insert(1, layer_spec.attention)
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward)
        for sublayer, residual in zip(sublayers, layer.residuals, strict=True):
            _fill_norm(sublayer.layer_norm, residual.norm)


def _make_position_table(embedding: Embedding, config: ModelConfig, n_positions: int) -> Tensor:
    """Return the embedding that is added at each position. Shape: [n_positions, D]."""
    if isinstance(embedding.positions, LearnedPositions):
        return _copy(embedding.positions.table)
    if config.positions == "sinusoidal":
        return sinusoidal_table(n_positions, config.d_model)
    return torch.zeros(n_positions, config.d_model)


def _fill_attention(spec: Spec, attention: MultiHeadAttention, config: ModelConfig) -> None:
    """Fill attention. CTranslate2 fuses queries, keys and values, but in cross-attention only keys and values."""
    fused = attention.queries_keys_values
    weights, biases = _split_fused(fused.weight, config), _split_fused(fused.bias, config)
    is_self_attention = len(spec.linear) == 2
    groups = [slice(0, 3)] if is_self_attention else [slice(0, 1), slice(1, 3)]
    for linear, group in zip(spec.linear[:-1], groups, strict=True):
        _fill_linear(linear, torch.cat(weights[group]), torch.cat(biases[group]) if biases else None)
    _fill_linear(spec.linear[-1], attention.output.weight, attention.output.bias)


def _split_fused(fused: Tensor | None, config: ModelConfig) -> list[Tensor]:
    """Split into queries, keys and values, and repeat the shared heads. [D + 2 G E, ...] -> 3 x [D, ...]."""
    if fused is None:
        return []
    shared = config.kv_heads * config.d_head
    queries, keys, values = _split(fused, [config.d_model, shared, shared])

    def repeat(x: Tensor) -> Tensor:  # [G * E, ...]
        heads = x.view(config.kv_heads, config.d_head, *x.shape[1:])  # [G, E, ...]
        return heads.repeat_interleave(config.n_heads // config.kv_heads, 0).flatten(0, 1)  # [H * E, ...]

    return [queries, repeat(keys), repeat(values)]


def _fill_feed_forward(spec: Spec, feed_forward: FeedForward) -> None:
    inner = feed_forward.inner
    weights = _split(inner.weight, inner.widths)
    biases = [None for _ in weights] if inner.bias is None else _split(inner.bias, inner.widths)  # pyright: ignore[reportUnnecessaryComparison]
    _fill_linear(spec.linear_0, weights[0], biases[0])
    if len(weights) == 2:
        _fill_linear(spec.linear_0_noact, weights[1], biases[1])
    _fill_linear(spec.linear_1, feed_forward.outer.weight, feed_forward.outer.bias)


def _split(fused: Tensor, widths: list[int]) -> list[Tensor]:
    return cast("list[Tensor]", fused.split_with_sizes(widths))


def _fill_linear(spec: Spec, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _copy(weight)
    if bias is not None:
        spec.bias = _copy(bias)


def _fill_norm(spec: Spec, norm: nn.Module) -> None:
    spec.gamma = _copy(cast(Tensor, norm.weight))
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _copy(norm.bias)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu().clone()
