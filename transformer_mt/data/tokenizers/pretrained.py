"""Tokenizers that exist: a `tokenizer.json` of the tokenizers library or of a run, or a SentencePiece `.model`.

What is taken over is text to ids and back. Special tokens are not looked for in text, a template around the ids is not
used, and neither are truncation, padding and dropout: what a sentence begins and ends with is this program's matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer_mt.errors import UserError

WHAT = "a tokenizer.json (of Hugging Face tokenizers, or of a run) or a SentencePiece .model"
KINDS = {"WordLevel": "word", "WordPiece": "wordpiece", "Unigram": "unigram"}
UNHEARD_OF = "\U00012000"  # a cuneiform sign; not one for private use, which some normalise away
UNIGRAM, BPE = 1, 2  # SentencePiece's types of models
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # and of pieces


def load(path: Path, key: str, kind: str) -> hf.Tokenizer:
    """The tokenizer of a file. Raises `UserError` for another file, and where it holds another kind than `kind`."""
    place = f"tokenizer.{key}: {path}"
    if path.is_dir():
        raise UserError(f"{place}: is a directory; name {WHAT}")
    if not path.exists():
        raise UserError(f"{place}: no such file (looked in {Path.cwd()}); name {WHAT}")
    backend = _read_sentencepiece(path, place) if path.suffix in (".model", ".spm") else _read_json(path, place, key)
    found = kind_of(backend)
    if found != kind:
        raise UserError(f"{place}: holds {found}, and tokenizer.kind is {kind}; set tokenizer.kind: {found}")
    if not _try(backend, place):
        raise UserError(f"{place}: leaves out characters that it does not know; it needs an entry for the unknown")
    return backend


def _try(backend: hf.Tokenizer, place: str) -> list[int]:
    """The ids of a character that no vocabulary knows: the library finds some mistakes of a file only now."""
    try:
        return backend.encode(UNHEARD_OF, add_special_tokens=False).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics, too
        raise UserError(f"{place}: cannot encode text ({str(error).strip() or type(error).__name__})") from None


def kind_of(backend: hf.Tokenizer) -> str:
    """The kind that a tokenizer is."""
    content = json.loads(backend.to_str())
    model = content["model"]
    if model["type"] != "BPE":
        return KINDS[model["type"]]
    if "ByteLevel" in json.dumps([content["pre_tokenizer"], content["normalizer"], content["decoder"]]):
        return "byte_bpe"
    return "bpe" if model["merges"] else "char"


# --- tokenizer.json ---------------------------------------------------------------------------------------------------


def _read_json(path: Path, place: str, key: str) -> hf.Tokenizer:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if "format" in content and "src" in content:
            content = _side_of_run(content, place, key)
        content.update(truncation=None, padding=None, post_processor=None)
        added = content.get("added_tokens", [])
        content["added_tokens"] = [token for token in added if not token["special"]]
        if content["model"].get("dropout"):
            content["model"]["dropout"] = None
        backend = hf.Tokenizer.from_str(json.dumps(content))
        if content["model"]["type"] == "Unigram":  # whose search takes whatever piece there is
            before = [backend.pre_tokenizer] if backend.pre_tokenizer else []
            cuts = [_cut(token["content"]) for token in added if token["special"]]
            backend.pre_tokenizer = pre_tokenizers.Sequence([*before, *_splits(cuts)])
        return backend
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics
        raise UserError(f"{place}: is not {WHAT} ({error})") from None


def _side_of_run(content: dict[str, Any], place: str, key: str) -> dict[str, Any]:
    """One side of what a run keeps."""
    if key == "file" and content["tgt"]:
        raise UserError(f"{place}: holds a vocabulary for each language; name it in src_file and in tgt_file")
    return content["tgt"] if key == "tgt_file" and content["tgt"] else content["src"]


# --- SentencePiece ----------------------------------------------------------------------------------------------------


def _read_sentencepiece(path: Path, place: str) -> hf.Tokenizer:
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise UserError(f"{place}: a SentencePiece model needs one more package: pip install sentencepiece") from None
    found = cast(Any, sentencepiece_model_pb2).ModelProto()
    try:
        found.ParseFromString(path.read_bytes())
    except Exception:  # protobuf's own, whose module differs between versions
        raise UserError(f"{place}: is no SentencePiece model; name {WHAT}") from None
    if not found.pieces:
        raise UserError(f"{place}: is no SentencePiece model (it holds no pieces); name {WHAT}")
    if found.trainer_spec.model_type not in (UNIGRAM, BPE) or found.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(f"{place}: is a SentencePiece model of a type that cannot be read; unigram and bpe can")
    backend = hf.Tokenizer(_model(found))
    backend.normalizer = _normalizer(found.normalizer_spec)
    own = sorted((piece.piece for piece in found.pieces if piece.type == USER_DEFINED), key=len, reverse=True)
    reserved = [_cut(piece.piece) for piece in found.pieces if piece.type in (UNKNOWN, CONTROL)]
    bytes_ = r"(?<=<0)(?=x)"  # `<0x41>` in a text spells no byte
    backend.pre_tokenizer = pre_tokenizers.Sequence(_splits(["|".join(map(re.escape, own)), bytes_, *reserved]))
    first_space = [decoders.Strip(" ", 1, 0)] if found.normalizer_spec.add_dummy_prefix else []
    unknown = next((piece.piece for piece in found.pieces if piece.type == UNKNOWN), "<unk>")
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(unknown, found.trainer_spec.unk_surface),
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *first_space,
        ]
    )
    return backend


def _cut(piece: str) -> str:
    """Where a text that spells a piece which no text may become is cut: before its last character."""
    return f"(?<={re.escape(piece[:-1])})(?={re.escape(piece[-1])})" if len(piece) > 1 else ""


def _splits(cuts: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(hf.Regex(cut), "isolated") for cut in cuts if cut]


def _model(found: Any) -> models.Model:
    pieces, fallback = list(found.pieces), found.trainer_spec.byte_fallback
    unknown = next((i for i, piece in enumerate(pieces) if piece.type == UNKNOWN), 0)
    if found.trainer_spec.model_type == UNIGRAM:
        # what no text may become is the last choice of a search for the best score, and `_cut` keeps it apart
        usable = (NORMAL, USER_DEFINED)
        lowest = min((piece.score for piece in pieces if piece.type in usable), default=0.0)
        scores = [(piece.piece, piece.score if piece.type in usable else lowest - 1.0) for piece in pieces]
        return models.Unigram(scores, unk_id=unknown, byte_fallback=fallback)
    vocabulary = {piece.piece: i for i, piece in enumerate(pieces)}
    scores = {piece.piece: piece.score for piece in pieces if piece.type in (NORMAL, UNUSED)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((-score, vocabulary[left], vocabulary[right], left, right))
    ranked = [(left, right) for *_, left, right in sorted(merges)]
    name = pieces[unknown].piece
    whole = any(piece.type == USER_DEFINED for piece in pieces)  # which no merges lead to
    return models.BPE(vocabulary, ranked, unk_token=name, fuse_unk=True, byte_fallback=fallback, ignore_merges=whole)


def _normalizer(spec: Any) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(hf.Regex(" +"), " "), normalizers.Replace(hf.Regex(r"\A | \z"), "")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
