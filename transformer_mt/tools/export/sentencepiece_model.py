"""A SentencePiece model that segments text as a tokenizer of a run does."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, cast

from transformer_mt.data.tokenizers.pretrained import (
    BPE,
    CLOSE,
    CONTROL,
    MARKER_IN_TEXT,
    NORMAL,
    OPEN,
    UNIGRAM,
    UNKNOWN,
)
from transformer_mt.data.tokenizers.tokenizer import BOS, BYTE_TOKENS, EOS, UNK, Tokenizer, find_kind
from transformer_mt.errors import UserError

BYTE = 6  # type of a piece in sentencepiece_model.proto
ODD_LINES = [
    *("", " ", "  two  spaces ", "a\tb", "\u00a0a\u00a0b\u3000c", "x" * 200, " " * 40, "1234567 3.14,15", "'' \"“”„«»"),
    *("Привет, мир!", "日本語のテキスト", "ﬁne ﬂag ½ Ⅷ", "naïve e\u0301 é İstanbul ẞ", "👩‍👩‍👧 🇩🇪 👍🏽", "▁meta▁ _x_"),
    *("<unk> </s> <pad> <s> <0x41>", ">>fra<< ##s @@ ⁇", "\x00nul \x1b[0m \x7f", "\ufeffBOM \ufffd \U0010ffff"),
]
ODD_CHARACTERS = (
    "aeiourstnlmABC019  .,!?'-–\"„“()/<>▁_#@&\t\r\x00\x1f\x7f\u00a0\u200b\u200d\u2028\u0301ßäéñçøłжи中の한ע🙂🇪\ufffd"
)
N_ODD_LINES = 200


def make_odd_lines() -> list[str]:
    """Return lines with rare spaces, control characters, emoji and scripts; the same ones at each call."""
    random = Random(1)
    drawn = ("".join(random.choices(ODD_CHARACTERS, k=random.randint(1, 40))) for _ in range(N_ODD_LINES))
    return [*ODD_LINES, *drawn][:N_ODD_LINES]


def convert_tokenizer(tokenizer: Tokenizer) -> Any:
    """Return the `ModelProto` of a tokenizer. Raises `UserError` if SentencePiece lacks its kind or normalization."""
    from sentencepiece import sentencepiece_model_pb2

    kind = find_kind(tokenizer.backend)
    if kind not in ("bpe", "unigram", "char"):
        raise UserError(f"tokenizer.kind: {kind}: SentencePiece has bpe, unigram and char")
    content = json.loads(tokenizer.to_json())
    proto = cast(Any, sentencepiece_model_pb2).ModelProto()
    _fill_normalizer(proto.normalizer_spec, content["normalizer"])
    pieces = dict(_list_pieces(content["model"]))
    unknown = (tokenizer.backend.id_to_token(tokenizer.unk_id) if tokenizer.unk_id >= 0 else None) or UNK
    types = {**dict.fromkeys(BYTE_TOKENS, BYTE), BOS: CONTROL, EOS: CONTROL, unknown: UNKNOWN}
    if clash := {BOS, EOS, *([unknown] if tokenizer.unk_id < 0 else [])} & pieces.keys():
        raise UserError(f"the vocabulary has the piece {min(clash)}, which is a control symbol of SentencePiece")
    for piece, score in ({BOS: 0.0, EOS: 0.0, unknown: 0.0} | pieces).items():
        if not {OPEN, CLOSE} & {*piece}:
            proto.pieces.add(piece=piece, score=score, type=types.get(piece, NORMAL))
    spec = proto.trainer_spec
    spec.model_type = UNIGRAM if kind == "unigram" else BPE
    spec.vocab_size, spec.byte_fallback = len(proto.pieces), bool(content["model"]["byte_fallback"])
    names = [each.piece for each in proto.pieces]
    spec.bos_id, spec.eos_id, spec.unk_id, spec.pad_id = names.index(BOS), names.index(EOS), names.index(unknown), -1
    spec.unk_piece = unknown
    return proto


def _list_pieces(model: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield pieces and scores: log-probabilities, or the negative rank of the first merge that makes a piece."""
    if model["type"] == "Unigram":
        yield from model["vocab"]
        return
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(model["merges"]):
        ranks.setdefault(left + right, rank)
    for piece in sorted(model["vocab"], key=model["vocab"].__getitem__):
        yield piece, -float(ranks.get(piece, len(model["merges"])))


def _fill_normalizer(spec: Any, normalizer: Mapping[str, Any] | None) -> None:
    """Translate the steps of a normalizer. Spaces stay spaces, unless a step makes them ▁."""
    spec.name = "identity"
    spec.add_dummy_prefix = spec.remove_extra_whitespaces = spec.escape_whitespaces = False
    steps: list[Any] = (normalizer or {}).get("normalizers", [normalizer] if normalizer else [])
    for step in steps:
        found, content = step.get("pattern"), step.get("content", step.get("prepend"))
        match step["type"], found, content:
            case "Prepend", _, " ":
                spec.add_dummy_prefix = True
            case "Replace", {"String": " "}, "▁":
                spec.escape_whitespaces = True
            case "Replace", {"Regex": " +" | r"\A | \z"}, " " | "":
                spec.remove_extra_whitespaces = True
            case "Precompiled", _, _:
                spec.name, spec.precompiled_charsmap = "user_defined", b64decode(step["precompiled_charsmap"])
            case "Replace", _, str(mark) if mark and mark in (OPEN, CLOSE, MARKER_IN_TEXT):
                pass  # SentencePiece itself returns runs of unknown characters
            case _:
                raise UserError(
                    f"tokenizer.normalization: SentencePiece has no such step ({step['type']}); train the model with "
                    "tokenizer.normalization: [], and normalise its text with data.filters: [normalize]"
                )


def check_segmentation(model: bytes, tokenizer: Tokenizer, names: Sequence[str], lines: Sequence[str]) -> None:
    """Compare pieces and decoded texts of lines with those of a tokenizer whose ids have `names`.

    Raises `UserError` for the first line that differs. Unknown pieces have the id of the unknown token.
    """
    import sentencepiece

    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids_of = {name: i for i, name in enumerate(names)}
    for line, ids in zip(lines, tokenizer.encode(lines), strict=True):
        pieces: list[str] = processor.encode(line, out_type=str)
        ours = [names[i] for i in ids]
        is_same = [ids_of.get(piece, tokenizer.unk_id) for piece in pieces] == ids
        decoded = processor.decode_pieces(ours).lstrip(" ")
        if not is_same or (tokenizer.unk_id not in ids and decoded != tokenizer.decode([ids])[0].lstrip(" ")):
            raise UserError(
                f"SentencePiece cannot express the tokenizer. A line that it segments in another way: {line!r}\n"
                f"here: {ours[:20]}\nSentencePiece: {pieces[:20]}"
            )
