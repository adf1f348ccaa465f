"""What CTranslate2 does not support, and its import. This module itself imports neither CTranslate2 nor torch."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.model.model_config import ModelConfig

MAX_POSITIONS = 8192  # largest position table of models without learned positions


TRAINING_KEYS = ("dropout", "init", "freeze")  # without effect on a trained model
SIZES = ("d_model", "d_ff", "n_heads", "n_kv_heads", "n_layers", "max_positions", "norm_eps")  # any value
SUPPORTED_MODEL_VALUES: Mapping[str, Sequence[object]] = {
    "positions": ("sinusoidal", "learned", "rotary", "none"),
    "norm": ("layernorm", "rmsnorm"),
    "norm_position": ("pre", "post"),
    "qk_norm": (False,),
    "embedding_norm": (True, False),
    "scale_embeddings": (True, False),
    "tie_embeddings": ("all", "decoder", "none"),
    "activation": ("relu", "gelu", "silu", "geglu", "swiglu"),
    "feed_forward_bias": (True, False),
    "attention_bias": (True, False),
    "attention_output_bias": (True, False),
    "output_bias": (True, False),
}
"""Values of the other keys that CTranslate2 (4.8) can represent. Of a key that is not here, only the default is."""
REASONS = {
    "qk_norm": "CTranslate2 normalises the queries of cross-attention before they are split into heads, this model "
    "afterwards",
}


KNOWN_SEARCH_KEYS = (
    *("engine", "quantization", "beam", "n_best", "length_penalty", "length_penalty_exponent", "min_length"),
    *("max_length_factor", "max_length_offset", "max_source_length", "no_repeat_ngram", "repetition_penalty"),
    *("sample", "temperature", "top_k", "top_p", "seed", "alignment_layer", "tag", "restore_case", "markup"),
    *("protect", "protect_patterns", "glossary", "guard", "batch_tokens"),
)
"""Keys of section `decoding` that CTranslate2 supports, or that are refused below with a reason."""


def find_unsupported_model_keys(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield each key of section `model` that CTranslate2 is not known to support, and the reason."""
    for name, section in (("", config), ("encoder.", config.encoder), ("decoder.", config.decoder)):
        for key, field in type(section).model_fields.items():
            value = getattr(section, key)
            supported = SUPPORTED_MODEL_VALUES.get(key, (field.default,))
            if value not in supported and key not in (*TRAINING_KEYS, *SIZES, "encoder", "decoder"):
                wrong, *choices = (json.dumps(each).strip('"') for each in (value, *supported))  # as in YAML
                reason = REASONS.get(key, "CTranslate2 is not known to support it")
                yield f"{name}{key}", f"{wrong}: {reason}; choose {' or '.join(choices)}"


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
    for key, field in DecodingConfig.model_fields.items():
        if key not in KNOWN_SEARCH_KEYS and (value := getattr(config, key)) != field.default:
            yield key, f"{value}: CTranslate2 is not known to support it; choose {field.default}"


def find_torch_reason(config: DecodingConfig, precision: str, *, has_others: bool) -> str:
    """Return why PyTorch must translate, or an empty text if CTranslate2 can.

    Markup and a glossary do not: PyTorch then does only what CTranslate2 lacks.
    """
    if has_others:
        return "--ensemble: CTranslate2 translates with one model"
    if precision not in ("auto", "fp32"):
        return f"--precision {precision}: CTranslate2 computes a run in fp32"
    for key, reason in find_unsupported_search_keys(config.without_stages()):
        return f"decoding.{key}: {reason}"
    if config.min_length > 1 or config.no_repeat_ngram:
        return "CTranslate2 scores with min_length or no_repeat_ngram in another way"
    return ""


def find_length_limits(model: ModelConfig, config: DecodingConfig, tokenizers: TokenizerPair) -> tuple[int, int]:
    """Return the size of the position table, and the maximum source tokens without control symbols.

    The table fits the longest source with its control symbols, and the longest translation.
    """
    controls = tokenizers.n_source_controls
    needed = max(config.max_source_length + controls, config.max_target_tokens(config.max_source_length))
    positions = model.max_sequence_length or min(MAX_POSITIONS, needed)
    return positions, min(config.max_source_length, positions - controls)


def import_ctranslate2() -> Any:
    """Import CTranslate2 with separate OpenMP threads, and return the module, which is only partly typed.

    torch and CTranslate2 bring a copy of GNU's OpenMP library each. If torch is imported first, the dynamic linker
    binds CTranslate2 to torch's copy. That copy counts the threads of both. Once they exceed the cores, a thread sleeps
    as soon as it waits for others, and CTranslate2 needs ten times as long for one sentence. So its libraries prefer
    the symbols of their own dependencies here. With a preloaded allocator this is impossible: they would free memory of
    one allocator with another one.
    """
    before = sys.getdlopenflags()
    is_bound = sys.platform == "linux" and _is_malloc_of_libc()
    if is_bound:
        sys.setdlopenflags(before | os.RTLD_DEEPBIND)
    try:
        import ctranslate2
    finally:
        if is_bound:
            sys.setdlopenflags(before)
    return ctranslate2


def _is_malloc_of_libc() -> bool:
    """Return whether no preloaded library replaces the allocator of glibc."""
    try:
        functions = [ctypes.CDLL(library).malloc for library in (None, "libc.so.6")]
    except OSError:  # another C library
        return False
    first, second = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    return first == second
