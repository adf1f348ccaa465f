"""Import of `M2M100ForConditionalGeneration` of Transformers: M2M-100 (Fan et al. 2021) and NLLB-200 (2022).

One vocabulary serves all languages. The code of its language is the first token of a source, and of a target.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers as hf
import torch

from transformer_mt.data.data_config import Direction
from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import UNK_SURFACE, Tokenizer, TokenizerKind, TokenizerPair, find_kind
from transformer_mt.errors import UserError
from transformer_mt.tools.importing.imported_model import ImportedModel, Languages, Rows
from transformer_mt.tools.importing.layer_tensors import (
    LAYERS,
    STACKS,
    half_sinusoids,
    make_model_config,
    read_decoding,
    read_layers,
)
from transformer_mt.tools.importing.source_files import (
    ModelSettings,
    open_weights,
    read_ids,
    read_json,
    read_optional_json,
)

EOS, UNK = "</s>", "<unk>"
CONTROLS = ("<s>", "<pad>", EOS, "<mask>")
LANGUAGE = re.compile(r"__(\w+)__|([a-z]{3}_[A-Z][a-z]{3})")
"""Tokens of languages: `__en__` in M2M-100, `eng_Latn` in NLLB."""
SENTENCEPIECE = "sentencepiece.bpe.model"


def read_m2m100(folder: Path, settings: ModelSettings, languages: Languages) -> ImportedModel:
    """Read a folder of Transformers. Raises `UserError` if a file is missing, damaged or not supported."""
    config = make_model_config(settings, norm_position="pre", tie_embeddings="all")
    settings.choose("tie_word_embeddings", {True: True}, True)
    recorded = read_optional_json(folder / "tokenizer_config.json")
    if recorded.get("legacy_behaviour"):
        raise UserError(
            f"{folder / 'tokenizer_config.json'}: legacy_behaviour: true puts languages after the source; "
            "set it to false for a model that was trained with languages before it"
        )
    backend, text_rows, language_rows = _read_vocabulary(folder)
    size, pad = settings.integer("vocab_size"), settings.integer("pad_token_id", low=0)
    if (highest := max(*text_rows, *language_rows.values())) >= size:
        raise UserError(f"{folder}: the tokenizer has the id {highest:,}, but vocab_size in config.json is {size:,}")
    codes = languages.select([*language_rows], languages.src, languages.tgt)
    directions = [Direction(a, b, f"{a}:{b}") for a, b in zip(codes, codes[1:] + codes[:1], strict=True)]
    both = Tokenizer(backend)
    tokenizers = TokenizerPair(both, both).with_tags([each.tag or "" for each in directions], is_needed=True)
    rows = Rows.make(
        text_rows,
        [],
        [pad, settings.integer("decoder_start_token_id", low=0), settings.integer("eos_token_id", low=0)],
        [language_rows[code] for code in codes],
    )
    source = open_weights(folder)
    names = ["model.shared.weight", *(f"model.{stack}.embed_tokens.weight" for stack in STACKS), "lm_head.weight"]
    weights = dict(read_layers(source, config, LAYERS))
    weights["decoder.embedding.tokens.weight"] = rows.embeddings(source.take_first(names, size, config.d_model))
    weights["output.bias"] = rows.bias(torch.zeros(size))
    for stack in STACKS:
        weights[f"{stack}.embedding.positions.table"] = half_sinusoids(pad + 1, config.max_positions, config.d_model)
    source.discard(
        r"model\.(en|de)coder\.embed_positions\.weights?", "final_logits_bias"
    )  # constants of older versions
    source.check_all_taken()
    decoding = read_decoding(folder, settings, n_start_tokens=2)  # the start, and the language
    if languages.src and languages.tgt:
        decoding["tag"] = directions[0].tag
    kind = cast(TokenizerKind, find_kind(both.backend))
    return ImportedModel(
        config, weights, tokenizers, kind, directions, "M2M100ForConditionalGeneration", source.sha256(), decoding
    )


# --- vocabulary -------------------------------------------------------------------------------------------------------


def _read_vocabulary(folder: Path) -> tuple[hf.Tokenizer, list[int], dict[str, int]]:
    """Return the tokenizer of all languages, the rows of its entries in the matrices, and those of the language codes.

    M2M-100 looks up pieces by name; NLLB has one of two forms.
    """
    if (folder / "vocab.json").exists():
        path, ids, content = folder / SENTENCEPIECE, read_ids(folder / "vocab.json"), None
    elif (folder / "tokenizer.json").exists():
        path, content = folder / "tokenizer.json", read_json(folder / "tokenizer.json")
        ids = _find_ids(path, content)
    else:
        path, ids, content = folder / SENTENCEPIECE, {}, None
    proto: Any = None
    if content is None:
        proto = pretrained.parse_sentencepiece(path, str(path))
    if not ids:  # fairseq has four control symbols, where SentencePiece has three
        pieces = [piece.piece for piece in proto.pieces][3:]
        ids = {name: i for i, name in enumerate([*CONTROLS[:3], UNK, *pieces])}
    for name in (EOS, UNK):
        if name not in ids:
            raise UserError(f"{path}: has no entry {name}; download it again")
    languages = _read_languages(folder, ids)
    text = [name for name in sorted(ids, key=ids.__getitem__) if name not in CONTROLS and not _code(name)]
    backend = pretrained.convert_sentencepiece(proto, text) if content is None else _convert(path, content, text)
    return backend, [ids[name] for name in text], languages


def _find_ids(path: Path, content: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids in a `tokenizer.json`, those of special tokens included."""
    try:
        added = {token["content"]: token["id"] for token in content["added_tokens"]}
        ids: dict[str, Any] = {**content["model"]["vocab"], **added}
        if content["model"]["type"] != "BPE" or not all(isinstance(i, int) for i in ids.values()):
            raise TypeError("it is no BPE model")
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: is not the tokenizer of NLLB ({error}); download it again") from None
    return ids


def _convert(path: Path, content: dict[str, Any], text: Sequence[str]) -> hf.Tokenizer:
    """Convert a `tokenizer.json`, whose entries for text get the ids 0, 1, ..."""
    unknown = {"type": "Replace", "pattern": {"String": UNK}, "content": UNK_SURFACE}
    try:
        content["model"]["vocab"] = {name: i for i, name in enumerate(text)}
        content["added_tokens"] = []
        content["decoder"] = {"type": "Sequence", "decoders": [unknown, content["decoder"]]}
        return pretrained.convert_json(content)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises plain Exceptions, and panics are BaseExceptions
        raise UserError(f"{path}: cannot be converted ({error}); download it again") from None


def _code(token: object) -> str:
    """Return the code of a language token, or an empty string for any other token."""
    match = LANGUAGE.fullmatch(str(token))
    return (match[1] or match[2]) if match else ""


def _read_languages(folder: Path, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the row of each language: an entry of the vocabulary, or after it in the order of a list."""
    found = {_code(name): i for name, i in ids.items() if _code(name)}
    if not found:
        tokens: list[object] = []
        for file in ("special_tokens_map.json", "tokenizer_config.json"):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                listed: object = read_optional_json(folder / file).get(key)
                tokens += cast(list[object], listed) if isinstance(listed, list) else []
        codes = [*dict.fromkeys(code for code in map(_code, tokens) if code)]
        found = {code: len(ids) + i for i, code in enumerate(codes)}
    if len(found) < 2:
        raise UserError(
            f"{folder}: its files name no languages; add special_tokens_map.json of the model, with "
            "additional_special_tokens"
        )
    return found
