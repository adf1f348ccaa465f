"""Settings that CTranslate2 does not support. This module imports neither CTranslate2 nor torch."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.model.model_config import ModelConfig


def find_unsupported_model_keys(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield each key of section `model` that CTranslate2 (4.8) cannot represent, and the reason."""
    if config.norm_position == "sublayer":
        yield (
            "norm_position",
            "sublayer: CTranslate2 normalises the input of a sub-layer, or the sum after it, never its output alone; "
            "choose pre or post",
        )
    if config.qk_norm:
        yield (
            "qk_norm",
            "true: CTranslate2 normalises the queries of cross-attention before they are split into heads, this model "
            "afterwards; choose false",
        )


def find_unsupported_search_keys(config: DecodingConfig) -> Iterator[tuple[str, str]]:
    """Yield each key of section `decoding` that CTranslate2 (4.8) does not support, and the reason."""
    if config.length_penalty == "gnmt":
        yield "length_penalty", "gnmt: CTranslate2 divides log-probabilities by length^A alone; choose average"
    if config.repetition_penalty != 1:
        yield (
            "repetition_penalty",
            f"{config.repetition_penalty:g}: CTranslate2 changes logits, where this program changes log-probabilities; "
            "choose 1",
        )
    if config.markup != "none":
        yield "markup", f"{config.markup}: CTranslate2 cannot guarantee protected elements; choose none"
    if config.glossary is not None:
        yield "glossary", f"{config.glossary}: CTranslate2 cannot search with terms; leave it out"
    if config.sample:
        yield "sample", "true: CTranslate2 has another random number generator; choose false"
