"""Settings and layers that `MarianMTModel` and `M2M100ForConditionalGeneration` share.

`D` model width, `F` inner width of the feed-forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from transformer_mt.model.model_config import ModelConfig
from transformer_mt.tools.importing.source_files import ModelSettings, WeightSource, read_optional_json, validate

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
DECODING_KEYS = {
    "num_beams": "beam",
    "length_penalty": "length_penalty_exponent",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "min_length": "min_length",
}
"""Keys of `generation_config.json`, and those of section `decoding`."""
STACKS = ("encoder", "decoder")


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


def read_decoding(folder: Path, settings: ModelSettings) -> dict[str, object]:
    """Return the search settings of `generation_config.json`, or of `config.json` in older folders."""
    values = {**settings.values, **read_optional_json(folder / "generation_config.json")}
    found: dict[str, object] = {"min_length": 0}
    for theirs, ours in DECODING_KEYS.items():
        value = values.get(theirs)
        if isinstance(value, int | float) and value >= 0:
            found[ours] = value
    return found


def read_layers(source: WeightSource, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of all layers by the names of `Transformer`."""
    for stack in STACKS:
        stack_config = config.for_stack(getattr(config, stack))
        for i in range(getattr(config, stack).n_layers):
            theirs, ours = f"model.{stack}.layers.{i}", f"{stack}.layers.{i}"
            parts = {"self_attn": "self_attention"}
            if stack == "decoder":
                parts["encoder_attn"] = "cross_attention"
            for number, (part, name) in enumerate(parts.items()):
                yield from _read_attention(source, f"{theirs}.{part}", f"{ours}.{name}", config.d_model)
                yield from read_norm(source, f"{theirs}.{part}_layer_norm", f"{ours}.residuals.{number}.norm", config)
            last = f"{ours}.residuals.{len(parts)}.norm"
            yield from read_norm(source, f"{theirs}.final_layer_norm", last, config)
            shapes = {
                "fc1": ("inner", stack_config.d_ff, config.d_model),
                "fc2": ("outer", config.d_model, stack_config.d_ff),
            }
            for part, (name, *shape) in shapes.items():
                yield f"{ours}.feed_forward.{name}.weight", source.take(f"{theirs}.{part}.weight", *shape)
                yield f"{ours}.feed_forward.{name}.bias", source.take(f"{theirs}.{part}.bias", shape[0])


def read_norm(source: WeightSource, theirs: str, ours: str, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield gain and bias of a layer norm."""
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", source.take(f"{theirs}.{kind}", config.d_model)


def _read_attention(source: WeightSource, theirs: str, ours: str, d_model: int) -> Iterator[tuple[str, Tensor]]:
    for kind, shape in (("weight", (d_model, d_model)), ("bias", (d_model,))):
        fused = [source.take(f"{theirs}.{part}_proj.{kind}", *shape) for part in "qkv"]
        yield f"{ours}.queries_keys_values.{kind}", torch.cat(fused)
        yield f"{ours}.output.{kind}", source.take(f"{theirs}.out_proj.{kind}", *shape)


def half_sinusoids(first: int, length: int, d_model: int) -> Tensor:
    """Return sines and then cosines of pos / 10000^(i / (D / 2 - 1)), for positions from `first`. fp32 [length, D]."""
    n = d_model // 2
    frequencies = torch.exp(torch.arange(n) * -(math.log(10000) / max(1, n - 1)))
    angles = torch.arange(first, first + length)[:, None] * frequencies  # [length, D // 2]
    return torch.cat([angles.sin(), angles.cos(), torch.zeros(length, d_model % 2)], dim=1)
