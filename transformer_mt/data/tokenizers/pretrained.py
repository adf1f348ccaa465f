"""Loading of existing tokenizers: a Hugging Face `tokenizer.json`, that of a run, or a SentencePiece `.model`.

Only the conversion between text and ids is kept. The loader removes post-processing templates, truncation, padding and
dropout, and special tokens lose their meaning in text. This program adds its own control symbols.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer_mt.data.tokenizers.tokenizer import MAX_TOKENIZER_BYTES, check_content, check_ids, find_kind
from transformer_mt.errors import MissingPackageError, UserError
from transformer_mt.system.files import read_bytes

EXPECTED = "a tokenizer.json (of Hugging Face tokenizers, or of a run) or a SentencePiece .model"
RARE_CHARACTER = "\U00012000"  # a cuneiform sign; some normalizers remove private-use characters
OPEN, CLOSE, MARKER_IN_TEXT = "\ufdd0", "\ufdd1", "\ufdd2"  # noncharacters around unknown text, see `_mark_unknown`

# enumerations of sentencepiece_model.proto
UNIGRAM, BPE = 1, 2  # model types
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # piece types

TEXT_TYPES = (NORMAL, USER_DEFINED)  # pieces that text can encode to


def load(path: Path, key: str, kind: str) -> hf.Tokenizer:
    """Load the file that `tokenizer.<key>` names. Raises `UserError` for a wrong file or another kind of tokenizer."""
    where = f"tokenizer.{key}: {path}"
    if path.is_dir():
        raise UserError(f"{where}: is a directory; set it to {EXPECTED}")
    if not path.exists():
        raise UserError(f"{where}: no such file (looked in {Path.cwd()}); set it to {EXPECTED}")
    if path.suffix in (".model", ".spm"):
        backend = convert_sentencepiece(parse_sentencepiece(path, where))
    else:
        backend = _load_json(path, where, key)
    found = find_kind(backend)
    if found != kind:
        raise UserError(f"{where}: holds {found}, but tokenizer.kind is {kind}; set tokenizer.kind: {found}")
    if not _encode_rare_character(backend, where):
        raise UserError(f"{where}: drops characters that it does not know; it needs an unknown token or byte fallback")
    return backend


def _encode_rare_character(backend: hf.Tokenizer, where: str) -> list[int]:
    """Encode a character that no vocabulary contains. The library detects some broken files only here."""
    try:
        return backend.encode(RARE_CHARACTER, add_special_tokens=False).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is a BaseException
        raise UserError(f"{where}: cannot encode text ({str(error).strip() or type(error).__name__})") from None


# --- tokenizer.json ---------------------------------------------------------------------------------------------------


def _load_json(path: Path, where: str, key: str) -> hf.Tokenizer:
    try:
        content = json.loads(read_bytes(path, MAX_TOKENIZER_BYTES).decode())
        if "format" in content and "src" in content:
            content = _side_of_run(content, where, key)
        return convert_json(content)
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises plain Exceptions, and panics are BaseExceptions
        raise UserError(f"{where}: is not {EXPECTED} ({error})") from None


def convert_json(content: dict[str, Any]) -> hf.Tokenizer:
    """Convert the content of a `tokenizer.json`, which is changed. Any exception means that it is damaged."""
    content.update(truncation=None, padding=None, post_processor=None)
    added = content.get("added_tokens", [])
    content["added_tokens"] = [token for token in added if not token["special"]]
    if content["model"].get("dropout"):
        content["model"]["dropout"] = None
    check_content(content)
    backend = hf.Tokenizer.from_str(json.dumps(content))
    check_ids(backend.get_vocab())
    if content["model"]["type"] == "Unigram":  # its search would use special tokens as text
        before = [backend.pre_tokenizer] if backend.pre_tokenizer else []
        guards = [_guard(token["content"]) for token in added if token["special"]]
        backend.pre_tokenizer = pre_tokenizers.Sequence([*before, *_splits(guards)])
    return backend


def _side_of_run(content: dict[str, Any], where: str, key: str) -> dict[str, Any]:
    """Return the source or target tokenizer out of a run's tokenizer.json."""
    if key == "file" and content["tgt"]:
        raise UserError(f"{where}: holds a vocabulary for each language; set src_file and tgt_file to it")
    return content["tgt"] if key == "tgt_file" and content["tgt"] else content["src"]


# --- SentencePiece ----------------------------------------------------------------------------------------------------


def convert_sentencepiece(proto: Any, vocabulary: Sequence[str] = ()) -> hf.Tokenizer:
    """Convert a `ModelProto`. The ids are those of its pieces, or positions in a `vocabulary`.

    Text is segmented into pieces of the vocabulary, which may have those of another language, too. No text encodes to
    the latter, except that with a unigram model, a run of unknown characters which is such a piece has its id. This is
    how Marian looks up pieces by name. The unknown token decodes to nothing, as in Transformers.
    """
    backend = hf.Tokenizer(_model(proto, vocabulary))
    has_unknown = proto.trainer_spec.model_type == UNIGRAM and not proto.trainer_spec.byte_fallback
    unknown_runs = _mark_unknown(proto) if vocabulary and has_unknown else []
    backend.normalizer = _normalizer(proto.normalizer_spec, unknown_runs)
    user_defined = sorted((piece.piece for piece in proto.pieces if piece.type == USER_DEFINED), key=len, reverse=True)
    guards = [_guard(piece.piece) for piece in proto.pieces if piece.type in (UNKNOWN, CONTROL)]
    byte_guard = r"(?<=<0)(?=x)"  # keeps a literal `<0x41>` in text from encoding to a byte token
    splits = _splits(["|".join(map(re.escape, user_defined)), byte_guard, *guards])
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    strip = [decoders.Strip(" ", 1, 0)] if proto.normalizer_spec.add_dummy_prefix else []
    unknown = next((piece.piece for piece in proto.pieces if piece.type == UNKNOWN), "<unk>")
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(unknown, "" if vocabulary else proto.trainer_spec.unk_surface),
            *([decoders.Replace(hf.Regex(f"[{OPEN}{CLOSE}]"), "")] if vocabulary else []),
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *strip,
        ]
    )
    return backend


def parse_sentencepiece(path: Path, where: str) -> Any:
    """Return the `ModelProto` of a SentencePiece file. Raises `UserError` if it cannot be converted."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise MissingPackageError(where, "transformer_mt[sentencepiece]") from None
    if not path.exists():
        raise UserError(f"{where}: no such file")
    proto, content = cast(Any, sentencepiece_model_pb2).ModelProto(), read_bytes(path, MAX_TOKENIZER_BYTES)
    try:
        proto.ParseFromString(content)
    except Exception:  # protobuf's error class is in a module that differs between versions
        raise UserError(f"{where}: is not a SentencePiece model; set it to {EXPECTED}") from None
    if not proto.pieces:
        raise UserError(f"{where}: is not a SentencePiece model (it holds no pieces); set it to {EXPECTED}")
    if proto.trainer_spec.model_type not in (UNIGRAM, BPE) or proto.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(f"{where}: is a SentencePiece model of an unsupported type; only unigram and bpe are supported")
    if any(piece.type == UNUSED for piece in proto.pieces):  # text must be encoded as if they did not exist
        raise UserError(f"{where}: has pieces that are marked as unused; set it to a model with its full vocabulary")
    return proto


def mark(piece: str) -> str:
    """Return the entry for a piece that no text encodes to, except a run of unknown characters."""
    return f"{OPEN}{piece}{CLOSE}"


def _guard(piece: str) -> str:
    """Return a pattern that splits a literal `piece` in text before its last character, so that it encodes as text."""
    return f"(?<={re.escape(piece[:-1])})(?={re.escape(piece[-1])})" if len(piece) > 1 else ""


def _splits(patterns: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(hf.Regex(pattern), "isolated") for pattern in patterns if pattern]


def _model(proto: Any, names: Sequence[str]) -> models.Model:
    pieces, fallback = list(proto.pieces), proto.trainer_spec.byte_fallback
    unknown = next((i for i, piece in enumerate(pieces) if piece.type == UNKNOWN), 0)
    if proto.trainer_spec.model_type == UNIGRAM:
        # `_guard` keeps reserved pieces out of the search; a lower score of theirs would lower that of unknown text
        lowest = min((piece.score for piece in pieces if piece.type == NORMAL), default=0.0)
        found = {p.piece: p.score if p.type in TEXT_TYPES else lowest for p in pieces}
        if not names:
            return models.Unigram([*found.items()], unk_id=unknown, byte_fallback=fallback)
        entries = [(name, found[name]) if name in found else (mark(name), lowest) for name in names]
        return models.Unigram(entries, unk_id=[*names].index(pieces[unknown].piece), byte_fallback=fallback)
    order = {piece.piece: i for i, piece in enumerate(pieces)}
    vocabulary = {name if name in order else mark(name): i for i, name in enumerate(names)} or order
    usable = (piece for piece in pieces if piece.type == NORMAL and piece.piece in vocabulary)
    scores = {piece.piece: piece.score for piece in usable}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in scores.items():
        for middle in range(1, len(piece)):
            left, right = piece[:middle], piece[middle:]
            if left in scores and right in scores:
                merges.append((-score, order[left], order[right], left, right))
    ranked = [(left, right) for *_, left, right in sorted(merges)]
    return models.BPE(
        vocabulary,
        ranked,
        unk_token=pieces[unknown].piece,
        fuse_unk=True,
        byte_fallback=fallback,
        ignore_merges=any(piece.type == USER_DEFINED for piece in pieces),  # no merges produce user-defined pieces
    )


def _mark_unknown(proto: Any) -> list[normalizers.Normalizer]:
    """Return steps that put markers around each run of characters that no piece contains."""
    alphabet = {character for piece in proto.pieces if piece.type in TEXT_TYPES for character in piece.piece}
    known = "".join(re.escape(character) for character in sorted(alphabet))
    return [
        normalizers.Replace(hf.Regex(f"[{OPEN}{CLOSE}]"), MARKER_IN_TEXT),
        normalizers.Replace(hf.Regex(f"(?<![^{known}])(?=[^{known}])"), OPEN),
        normalizers.Replace(hf.Regex(f"(?<=[^{known}{OPEN}])(?![^{known}])"), CLOSE),
    ]


def _normalizer(spec: Any, last_steps: Sequence[normalizers.Normalizer] = ()) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(hf.Regex(" +"), " "), normalizers.Replace(hf.Regex(r"\A | \z"), "")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁"), *last_steps])
