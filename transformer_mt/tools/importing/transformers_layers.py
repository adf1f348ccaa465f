"""Settings and names of layers that `MarianMTModel` and `M2M100ForConditionalGeneration` share."""

from __future__ import annotations

from pathlib import Path

from transformer_mt.model.model_config import ModelConfig
from transformer_mt.tools.importing.layers import STACKS, LayerNames
from transformer_mt.tools.importing.source_files import ModelSettings, read_optional_json, validate

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
DECODING_KEYS = {
    "num_beams": "beam",
    "length_penalty": "length_penalty_exponent",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "min_length": "min_length",
}
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


def read_decoding(folder: Path, settings: ModelSettings) -> dict[str, object]:
    """Return the search settings of `generation_config.json`, or of `config.json` in older folders."""
    values = {**settings.values, **read_optional_json(folder / "generation_config.json")}
    found: dict[str, object] = {"min_length": 0}
    for theirs, ours in DECODING_KEYS.items():
        value = values.get(theirs)
        if isinstance(value, int | float) and value >= 0:
            found[ours] = value
    return found
