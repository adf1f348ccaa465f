"""Import of `MarianMTModel` of Transformers, such as the OPUS-MT models (Tiedemann & Thottingal 2020).

Source and target have a SentencePiece model each. Marian looks up pieces by name in `vocab.json`, which both languages
share, or of which the target has its own. A `>>code<<` at the start of a source selects the target language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_mt.data.data_config import Direction
from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.tools.importing.imported_model import (
    ImportedModel,
    Languages,
    Rows,
    find_missing,
    is_language,
    make_vocabulary,
)
from transformer_mt.tools.importing.layer_tensors import LAYERS, STACKS, make_model_config, read_decoding, read_layers
from transformer_mt.tools.importing.source_files import (
    ModelSettings,
    WeightSource,
    open_weights,
    read_ids,
    read_optional_json,
)

EOS, PAD, UNK, TAG = "</s>", "<pad>", "<unk>", ">>{}<<"
REQUIRED_VALUES = {  # of keys that early versions wrote, the only values that `MarianMTModel` implements
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
POSITIONS = tuple(f"model.{stack}.embed_positions.weight" for stack in STACKS)


def read_marian(folder: Path, settings: ModelSettings, languages: Languages) -> ImportedModel:
    """Read a folder of Transformers. Raises `UserError` if a file is missing, damaged or not supported."""
    recorded = read_optional_json(folder / "tokenizer_config.json")
    pair = languages.src or recorded.get("source_lang"), languages.tgt or recorded.get("target_lang")
    src_lang, tgt_lang = languages.check(folder, *pair)
    for key, value in REQUIRED_VALUES.items():
        settings.choose(key, {value: value}, default=value)
    is_shared = settings.choose("share_encoder_decoder_embeddings", {True: True, False: False}, True)
    is_tied = settings.choose("tie_word_embeddings", {True: True, False: False}, True)
    config = make_model_config(
        settings, norm_position="post", tie_embeddings=("all" if is_shared else "decoder") if is_tied else "none"
    )
    names = [read_vocabulary(folder / "vocab.json", settings.integer("vocab_size"))]
    if not is_shared:
        names.append(read_vocabulary(folder / "target_vocab.json", settings.integer("decoder_vocab_size")))
    protos = [_read_segmenter(folder / f"{side}.spm") for side in ("source", "target")]
    start = settings.integer("decoder_start_token_id", low=0)
    tags = languages.select([name[2:-2] for name in names[0] if name.startswith(">>") and name.endswith("<<")])
    ids = [{name: i for i, name in enumerate(each)} for each in names]
    rows = [[each[PAD], start, each[EOS]] for each in ids]
    rows[0][1] = start if is_shared else ids[0][PAD]  # no source has BOS
    controls, tag_rows = (PAD, EOS, *map(TAG.format, tags)), [ids[0][TAG.format(tag)] for tag in tags]
    missing = find_missing(names[0], protos[0])
    src = make_vocabulary(names[0], protos[0], rows[0], missing, tag_rows, controls=controls, is_target=False)
    further = (missing, tag_rows) if is_shared else ((), ())
    tgt = make_vocabulary(names[-1], protos[1], rows[-1], *further, controls=controls, is_target=True)
    tokenizers = TokenizerPair(src.tokenizer, tgt.tokenizer, shares_ids=is_shared)
    tokenizers = tokenizers.with_tags(tags, is_needed=len(tags) > 1)
    directions = [Direction(src_lang, tag if is_language(tag) else tgt_lang, tag) for tag in tags]
    if not tokenizers.needs_tag:
        directions.insert(0, Direction(src_lang, tgt_lang))
    source = open_weights(folder)
    weights = dict(read_layers(source, config, LAYERS))
    weights |= dict(
        _read_embeddings(source, config.tie_embeddings, [*map(len, names)], src.rows, tgt.rows, config.d_model)
    )
    weights |= dict(_read_positions(source, config.max_positions, config.d_model))
    source.check_all_taken()
    return ImportedModel(
        config,
        weights,
        tokenizers,
        "unigram",
        directions,
        "MarianMTModel",
        source.sha256(),
        read_decoding(folder, settings),
    )


# --- vocabulary -------------------------------------------------------------------------------------------------------


def read_vocabulary(path: Path, size: int) -> list[str]:
    """Return the entries in the order of their ids. Raises `UserError` for holes, or another number of entries."""
    ids = read_ids(path)
    if len(ids) != size:
        raise UserError(f"{path}: has {len(ids):,} entries, but the model of config.json has {size:,}")
    for name in (EOS, PAD, UNK):
        if name not in ids:
            raise UserError(f"{path}: has no entry {name}; download it again")
    return sorted(ids, key=ids.__getitem__)


def _read_segmenter(path: Path) -> Any:
    proto = pretrained.parse_sentencepiece(path, str(path))
    if proto.trainer_spec.model_type != pretrained.UNIGRAM:
        raise UserError(f"{path}: is no unigram model, as MarianMTModel has; it belongs to another model")
    return proto


# --- weights ----------------------------------------------------------------------------------------------------------


def _read_embeddings(
    source: WeightSource, tie: str, sizes: Sequence[int], src: Rows, tgt: Rows, d_model: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield embeddings, output matrix and output bias. `sizes` are those of the vocabularies, one or two."""
    shared, output = "model.shared.weight", "lm_head.weight"
    src_names, tgt_names = ([f"model.{stack}.embed_tokens.weight"] for stack in STACKS)
    if tie == "all":
        tgt_names = [shared, *src_names, *tgt_names, output]
    else:
        source.discard(re.escape(shared))  # a matrix that the model does not use
        yield "encoder.embedding.tokens.weight", src.embeddings(source.take_first(src_names, sizes[0], d_model))
    if tie == "decoder":
        tgt_names = [*tgt_names, output]
    yield "decoder.embedding.tokens.weight", tgt.embeddings(source.take_first(tgt_names, sizes[-1], d_model))
    if tie == "none":
        yield "output.weight", tgt.embeddings(source.take(output, sizes[-1], d_model))
    has_bias = "final_logits_bias" in source
    bias = source.take("final_logits_bias", 1, sizes[-1])[0] if has_bias else torch.zeros(sizes[-1])
    yield "output.bias", tgt.bias(bias)


def _read_positions(source: WeightSource, length: int, d_model: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tables of both stacks: those of the file, or those that `MarianMTModel` computes."""
    for stack, name in zip(STACKS, POSITIONS, strict=True):
        table = source.take(name, length, d_model) if name in source else compute_positions(length, d_model)
        yield f"{stack}.embedding.positions.table", table


def compute_positions(length: int, d_model: int) -> Tensor:
    """Return sines and then cosines of pos / 10000^(2i / D). fp32 [length, D]."""
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000**exponents  # [L, ceil(D / 2)]
    return torch.cat([angles.sin(), angles[:, : d_model // 2].cos()], dim=1).float()
