"""Import of `MarianMTModel` of Transformers, such as the OPUS-MT models (Tiedemann & Thottingal 2020).

Source and target have a SentencePiece model each. Marian looks up pieces by name in `vocab.json`, which both languages
share, or of which the target has its own. A `>>code<<` at the start of a source selects the target language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.tools.importing.imported_model import Direction, ImportedModel, Languages, Rows, is_language
from transformer_mt.tools.importing.source_files import (
    ModelSettings,
    WeightSource,
    open_weights,
    read_ids,
    read_optional_json,
)
from transformer_mt.tools.importing.transformers_layers import STACKS, make_model_config, read_decoding, read_layers

EOS, PAD, UNK = "</s>", "<pad>", "<unk>"
UNSUPPORTED = {  # keys of config.json that early versions wrote, and their only values that `MarianMTModel` follows
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
POSITIONS = tuple(f"model.{stack}.embed_positions.weight" for stack in STACKS)


class Vocabulary(NamedTuple):
    """A segmenter with the ids of its language, and where each of them comes from."""

    tokenizer: Tokenizer
    rows: Rows


def read_marian(folder: Path, settings: ModelSettings, languages: Languages) -> ImportedModel:
    """Read a folder of Transformers. Raises `UserError` if a file is missing, damaged or not supported."""
    src_lang, tgt_lang = _find_languages(folder, languages)
    for key, value in UNSUPPORTED.items():
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
    tags = languages.select([name[2:-2] for name in names[0] if _is_tag(name)])
    known = {*names[0]}
    missing = [
        each.piece for each in protos[0].pieces if each.type in pretrained.TEXT_TYPES and each.piece not in known
    ]
    src = _make_vocabulary(names[0], protos[0], start if is_shared else 0, tags, missing, is_target=False)
    if is_shared:
        tgt = _make_vocabulary(names[0], protos[1], start, tags, missing, is_target=True)
    else:
        tgt = _make_vocabulary(names[1], protos[1], start, (), is_target=True)
    tokenizers = TokenizerPair(src.tokenizer, tgt.tokenizer, shares_ids=is_shared)
    tokenizers = tokenizers.with_tags(tags, is_needed=len(tags) > 1)
    directions = [Direction(src_lang, tag if is_language(tag) else tgt_lang, tag) for tag in tags]
    if not tokenizers.needs_tag:
        directions.insert(0, Direction(src_lang, tgt_lang))
    source = open_weights(folder)
    weights = dict(read_layers(source, config))
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


def _find_languages(folder: Path, given: Languages) -> tuple[str, str]:
    """Return the languages: the given ones, or those of `tokenizer_config.json`."""
    recorded = read_optional_json(folder / "tokenizer_config.json")
    src, tgt = given.src or recorded.get("source_lang"), given.tgt or recorded.get("target_lang")
    for option, code in {"--src-lang": src, "--tgt-lang": tgt}.items():
        if not is_language(str(code)):
            raise UserError(f"{folder}: does not name its languages ({code}); pass {option}, such as en")
    return str(src), str(tgt)


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


def _is_tag(name: str) -> bool:
    return name.startswith(">>") and name.endswith("<<")


def _read_segmenter(path: Path) -> Any:
    proto = pretrained.parse_sentencepiece(path, str(path))
    if proto.trainer_spec.model_type != pretrained.UNIGRAM:
        raise UserError(f"{path}: is no unigram model, as MarianMTModel has; it belongs to another model")
    return proto


def _make_vocabulary(
    names: Sequence[str], proto: Any, start: int, tags: Sequence[str], missing: Sequence[str] = (), *, is_target: bool
) -> Vocabulary:
    """Make the tokenizer of a language out of its SentencePiece model and `names`, the entries of a vocabulary file.

    Pieces of sources that are `missing` in the file are unknown in Marian, so they get copies of the row of the unknown
    token. Targets are segmented without them, because no translation contains them. `start` is the row of BOS.
    """
    ids = {name: i for i, name in enumerate(names)}
    text = [name for name in names if name not in (EOS, PAD) and not _is_tag(name)]
    further = [pretrained.mark(name) if is_target else name for name in missing]
    backend = pretrained.convert_sentencepiece(proto, [*text, *further])
    rows = Rows.make(
        [ids[name] for name in text],
        [ids[UNK]] * len(missing),
        [ids[PAD], start, ids[EOS]],
        [ids[f">>{tag}<<"] for tag in tags],
    )
    return Vocabulary(Tokenizer(backend), rows)


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
    """Yield the tables of both stacks: those of the file, or sines and then cosines of pos / 10000^(2i / D)."""
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000**exponents  # [L, ceil(D / 2)]
    computed = torch.cat([angles.sin(), angles[:, : d_model // 2].cos()], dim=1).float()
    for stack, name in zip(STACKS, POSITIONS, strict=True):
        table = source.take(name, length, d_model) if name in source else computed.clone()
        yield f"{stack}.embedding.positions.table", table
