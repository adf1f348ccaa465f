"""Export to Transformers: a folder for `MarianMTModel` and `MarianTokenizer`, the inverse of its import.

A vocabulary there starts with EOS and PAD, then has the entries for text, and last the tags. PAD has the embedding of
BOS, because a translation starts with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.system import files
from transformer_mt.tools.export.ctranslate2_engine import list_vocabulary
from transformer_mt.tools.export.sentencepiece_model import convert_tokenizer
from transformer_mt.tools.importing.imported_model import UNUSED_BIAS
from transformer_mt.tools.importing.layer_tensors import DECODING_KEYS, LAYERS, STACKS, list_tensors, make_model_config
from transformer_mt.tools.importing.marian import EOS, PAD, TAG, UNK, compute_positions
from transformer_mt.tools.importing.source_files import ModelSettings

IDS = {"eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 1, "forced_eos_token_id": None}
MAX_POSITION_ERROR = 1e-3  # rounding of fp16


def make_settings(config: ModelConfig, tokenizers: TokenizerPair) -> dict[str, Any]:
    """Return the content of `config.json`. Raises `UserError` if there is no such model or tokenizer there."""
    names = [_list_entries(tokenizers.src), _list_entries(tokenizers.tgt)]
    is_shared = tokenizers.joint and config.tie_embeddings != "decoder"
    settings: dict[str, Any] = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        **IDS,
        "vocab_size": len(names[0]),
        "decoder_vocab_size": len(names[1]),
        "share_encoder_decoder_embeddings": is_shared,
        "tie_word_embeddings": config.tie_embeddings != "none",
        "d_model": config.d_model,
        "max_position_embeddings": config.max_positions,
        "scale_embedding": config.scale_embeddings,
        "activation_function": config.activation,
        "dropout": config.dropout.residual,
        "attention_dropout": config.dropout.attention,
        "activation_dropout": config.dropout.activation,
    }
    for stack in STACKS:
        own = config.for_stack(getattr(config, stack))
        sizes = {"layers": getattr(config, stack).n_layers, "attention_heads": own.n_heads, "ffn_dim": own.d_ff}
        settings |= {f"{stack}_{name}": size for name, size in sizes.items()}
    imported = make_model_config(ModelSettings(Path("config.json"), settings), norm_position="post")
    for stack in STACKS:
        ours, theirs = (each.for_stack(getattr(each, stack)) for each in (config, imported))
        for key in type(config).model_fields:
            values = getattr(ours, key), getattr(theirs, key)
            if key not in ("dropout", "freeze", *STACKS, "tie_embeddings") and values[0] != values[1]:
                raise UserError(
                    f"model.{key}: {json.dumps(values[0])}: an imported MarianMTModel has {json.dumps(values[1])}"
                )
    if tokenizers.source_bos or not tokenizers.source_eos or tokenizers.n_target_tags:
        raise UserError("tokenizer: MarianTokenizer ends a source with EOS, has no BOS, and no tags of targets")
    if any(UNK not in each for each in names) or (is_shared and names[0] != names[1]):
        raise UserError(f"tokenizer: MarianTokenizer needs an entry {UNK}, and the same ids on both sides")
    return settings


def write_folder(
    output: Path,
    languages: tuple[str, str],
    config: ModelConfig,
    decoding: DecodingConfig,
    tokenizers: TokenizerPair,
    weights: Mapping[str, Tensor],
) -> None:
    """Write the folder atomically. Raises `UserError` if `MarianMTModel` has no such model or tokenizer."""
    settings = make_settings(config, tokenizers)
    is_shared = settings["share_encoder_decoder_embeddings"]
    search = {theirs: getattr(decoding, ours) for theirs, ours in DECODING_KEYS.items()}
    if search["min_length"]:
        search["min_length"] += 1  # it counts the token that starts a translation
    search["early_stopping"] = decoding.beam > 1  # our search ends with as many finished hypotheses as beams
    separate = {} if is_shared else {"separate_vocabs": True, "target_vocab_file": "target_vocab.json"}
    recorded = {"tokenizer_class": "MarianTokenizer", "model_max_length": config.max_positions, **separate}
    contents = {
        "config.json": settings,
        "generation_config.json": {**IDS, **search, "max_length": config.max_positions},
        "tokenizer_config.json": {"source_lang": languages[0], "target_lang": languages[1], **recorded},
        "vocab.json": {entry: i for i, entry in enumerate(_list_entries(tokenizers.src))},
    }
    if not is_shared:
        contents["target_vocab.json"] = {entry: i for i, entry in enumerate(_list_entries(tokenizers.tgt))}
    tensors = {name: tensor.contiguous() for name, tensor in _list_weights(config, tokenizers, weights, is_shared)}
    segmenters = [convert_tokenizer(each).SerializeToString() for each in (tokenizers.src, tokenizers.tgt)]
    with files.atomic_new_folder(output) as folder:
        for name, content in contents.items():
            files.write_text(folder / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
        for side, segmenter in zip(("source", "target"), segmenters, strict=True):
            (folder / f"{side}.spm").write_bytes(segmenter)
        (folder / "model.safetensors").write_bytes(safetensors.torch.save(tensors, {"format": "pt"}))


def _list_entries(tokenizer: Tokenizer) -> list[str]:
    tags = (TAG.format(symbol) for symbol in tokenizer.tag_symbols)
    return [EOS, PAD, *list_vocabulary(tokenizer)[: tokenizer.pad_id], *tags]


def _list_weights(
    config: ModelConfig, tokenizers: TokenizerPair, weights: Mapping[str, Tensor], is_shared: bool
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by their names in `MarianMTModel`."""
    for ours, parts in list_tensors(config, LAYERS):
        rows = [shape[0] for shape in parts.values()]
        yield from zip(parts, cast("list[Tensor]", weights[ours].split_with_sizes(rows)), strict=True)
    expected = compute_positions(config.max_positions, config.d_model)
    for stack in STACKS:
        if (weights[f"{stack}.embedding.positions.table"] - expected).abs().max() > MAX_POSITION_ERROR:
            raise UserError("model.positions: MarianMTModel has only its sinusoids, not the table of this model")
    src, tgt = (  # our id of each entry, tags last
        torch.tensor([each.eos_id, each.bos_id, *range(each.pad_id), *range(each.eos_id + 1, each.vocab_size)])
        for each in (tokenizers.src, tokenizers.tgt)
    )
    embeddings = weights["decoder.embedding.tokens.weight"][tgt]
    if is_shared:
        yield "model.shared.weight", embeddings
    if config.tie_embeddings != "all":
        yield "model.decoder.embed_tokens.weight", embeddings.clone()
        yield "model.encoder.embed_tokens.weight", weights["encoder.embedding.tokens.weight"][src]
    if config.tie_embeddings == "none":
        yield "lm_head.weight", weights["output.weight"][tgt]
    bias = weights["output.bias"][tgt]
    bias[1] = UNUSED_BIAS
    yield "final_logits_bias", bias[None]
