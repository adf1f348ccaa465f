"""Layers of models of other toolkits: their tensors, which differ in names and in how projections are joined.

The last part has the settings and names that `MarianMTModel` and `M2M100ForConditionalGeneration` share.

`D` model width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_mt.model.model_config import ModelConfig
from transformer_mt.system.log import log
from transformer_mt.tools.importing.source_files import ModelSettings, WeightSource, read_optional_json, validate

STACKS = ("encoder", "decoder")


class LayerNames(NamedTuple):
    """Names of the parts of a layer in a file, before the names of weight and bias.

    Attentions and norms are in the order of a decoder layer; an encoder layer has no cross-attention.
    """

    layer: str
    """Pattern with `stack` and `number`, which starts the names of all parts but `final_norm`."""
    qkv: Sequence[Mapping[str, int]]
    """Query, key and value projections of self- and cross-attention, and how many of the three each one holds."""
    outputs: Sequence[str]
    """Output projections of self- and cross-attention."""
    feed_forward: tuple[str, str]
    norms: tuple[str, str, str]
    final_norm: str
    """Pattern with `stack`, of the norm after the last layer of a pre-norm model."""
    norm_tensors: tuple[str, str] = ("weight", "bias")
    """Names of gain and bias of a norm."""


def read_layers(source: WeightSource, config: ModelConfig, names: LayerNames) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of all layers, and of the norms after them, by the names of `Transformer`."""
    for ours, parts in list_tensors(config, names):
        found = [source.take(name, *shape) for name, shape in parts.items()]
        yield ours, found[0] if len(found) == 1 else torch.cat(found)


Parts = Mapping[str, tuple[int, ...]]
"""Names and shapes of tensors in a file, whose rows one tensor joins."""


def list_tensors(config: ModelConfig, names: LayerNames) -> Iterator[tuple[str, Parts]]:
    """Yield each tensor of all layers, and of the norms after them, by its name in `Transformer`, with its parts."""
    width = config.d_model
    for stack in STACKS:
        inner = config.for_stack(getattr(config, stack)).d_ff
        attentions = ("self_attention", "cross_attention") if stack == "decoder" else ("self_attention",)
        norms = names.norms if stack == "decoder" else (names.norms[0], names.norms[2])
        for number in range(getattr(config, stack).n_layers):
            theirs, ours = names.layer.format(stack=stack, number=number), f"{stack}.layers.{number}"
            for attention, parts, output in zip(attentions, names.qkv, names.outputs, strict=False):
                rows = {f"{theirs}{part}": n * width for part, n in parts.items()}
                yield from _list_linear(rows, width, f"{ours}.{attention}.queries_keys_values")
                yield from _list_linear({f"{theirs}{output}": width}, width, f"{ours}.{attention}.output")
            first, second = (f"{theirs}{part}" for part in names.feed_forward)
            yield from _list_linear({first: inner}, width, f"{ours}.feed_forward.inner")
            yield from _list_linear({second: width}, inner, f"{ours}.feed_forward.outer")
            for i, norm in enumerate(norms):
                yield from _list_norm(f"{theirs}{norm}", names, width, f"{ours}.residuals.{i}.norm")
        if config.norm_position == "pre":
            yield from _list_norm(names.final_norm.format(stack=stack), names, width, f"{stack}.norm")


def _list_linear(rows: Mapping[str, int], n_columns: int, ours: str) -> Iterator[tuple[str, Parts]]:
    """Yield weight and bias of a projection, whose rows may be in several parts."""
    for kind, shape in (("weight", (n_columns,)), ("bias", ())):
        yield f"{ours}.{kind}", {f"{theirs}{kind}": (n_rows, *shape) for theirs, n_rows in rows.items()}


def _list_norm(theirs: str, names: LayerNames, width: int, ours: str) -> Iterator[tuple[str, Parts]]:
    for kind, name in zip(("weight", "bias"), names.norm_tensors, strict=True):
        yield f"{ours}.{kind}", {f"{theirs}{name}": (width,)}


def half_sinusoids(first: int, length: int, d_model: int) -> Tensor:
    """Return sines and then cosines of pos / 10000^(i / (D / 2 - 1)), for positions from `first`. fp32 [length, D]."""
    n = d_model // 2
    frequencies = torch.exp(torch.arange(n) * -(math.log(10000) / max(1, n - 1)))
    angles = torch.arange(first, first + length)[:, None] * frequencies  # [length, D // 2]
    return torch.cat([angles.sin(), angles.cos(), torch.zeros(length, d_model % 2)], dim=1)


# --- Transformers -----------------------------------------------------------------------------------------------------

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
DECODING_KEYS = {"num_beams": "beam", "length_penalty": "length_penalty_exponent", "min_length": "min_length"}
"""Keys of `generation_config.json`, and those of section `decoding`."""
LAYERS = LayerNames(
    layer="model.{stack}.layers.{number}.",
    qkv=tuple({f"{part}.{projection}_proj.": 1 for projection in "qkv"} for part in ("self_attn", "encoder_attn")),
    outputs=("self_attn.out_proj.", "encoder_attn.out_proj."),
    feed_forward=("fc1.", "fc2."),
    norms=("self_attn_layer_norm.", "encoder_attn_layer_norm.", "final_layer_norm."),
    final_norm="model.{stack}.layer_norm.",
)


def make_model_config(settings: ModelSettings, **differences: object) -> ModelConfig:
    """Translate the keys that both architectures share. `differences` are further keys of section `model`."""
    dropout = settings.number("dropout", 0.1)
    stacks: dict[str, dict[str, object]] = {
        stack: {
            "n_layers": settings.integer(f"{stack}_layers"),
            "n_heads": settings.integer(f"{stack}_attention_heads"),
            "d_ff": settings.integer(f"{stack}_ffn_dim"),
        }
        for stack in STACKS
    }
    values: dict[str, object] = {
        "d_model": settings.integer("d_model", low=2),
        **{key: stacks["encoder"][key] for key in ("d_ff", "n_heads")},
        **stacks,
        "positions": "learned",
        "freeze": ("positions",),
        "max_positions": settings.integer("max_position_embeddings", low=2),
        "scale_embeddings": settings.choose("scale_embedding", {True: True, False: False}, False),
        "activation": settings.choose("activation_function", ACTIVATIONS),
        "output_bias": True,
        "dropout": {
            "embedding": dropout,
            "residual": dropout,
            "attention": settings.number("attention_dropout", 0.0),
            "activation": settings.number("activation_dropout", 0.0),
        },
        **differences,
    }
    return validate(ModelConfig, values, settings.path)


def read_decoding(folder: Path, settings: ModelSettings, n_start_tokens: int = 1) -> dict[str, object]:
    """Return the search settings of `generation_config.json`, or of `config.json` in older folders.

    `min_length` counts the `n_start_tokens` start tokens there, which are subtracted.
    """
    values = {**settings.values, **read_optional_json(folder / "generation_config.json")}
    found: dict[str, object] = {"min_length": 0}
    for theirs, ours in DECODING_KEYS.items():
        value = values.get(theirs)
        if isinstance(value, int | float) and value >= 0:
            found[ours] = max(0, value - n_start_tokens) if ours == "min_length" else value
    if n := values.get("no_repeat_ngram_size"):
        log(f"no_repeat_ngram_size {n} of the source is left out: the guard re-decodes translations that loop")
    return found
