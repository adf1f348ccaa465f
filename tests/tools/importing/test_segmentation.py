"""SentencePiece models keep their segmentation when their pieces get other ids."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from importing_helpers import ODD_TEXTS, sentencepiece, train_sentencepiece

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import Tokenizer

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bytes": {"byte_fallback": True},
    "spaces": {"split_by_whitespace": False, "remove_extra_whitespaces": False},
    "symbols": {"user_defined_symbols": ["<url>", "@@"]},
}


def make_texts() -> list[str]:
    """Return sentences, odd texts, and random mixtures of their characters."""
    sentences = [text for pair in load_pairs("test")[:300] for text in pair]
    rng, characters = random.Random(1), "".join([*ODD_TEXTS, *sentences[:40], "<url> @@"])
    mixed = ["".join(rng.choices(characters, k=rng.randrange(1, 40))) for _ in range(1000)]
    return [*sentences, *ODD_TEXTS, *(f"{text} <url>@@x" for text in ODD_TEXTS), *mixed]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_vocabulary_in_another_order_has_the_same_pieces(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "sentencepiece.model"
    lines = [text for pair in load_pairs("train")[:1500] for text in pair]
    train_sentencepiece(path, lines, 520, kind, **OPTIONS[name])
    proto = pretrained.parse_sentencepiece(path, str(path))
    names = [piece.piece for piece in proto.pieces if piece.type != pretrained.CONTROL]
    random.Random(1).shuffle(names)
    tokenizer = Tokenizer(pretrained.convert_sentencepiece(proto, [*names, "Foreign", "▁Foreign"]))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    texts = make_texts()
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        expected = [piece if piece in names else "<unk>" for piece in theirs.encode(text, out_type=str)]
        assert [names[i] for i in ids] == expected, text
    sentences = texts[:600]
    decoded = tokenizer.decode(tokenizer.encode(sentences))
    known = [[i for i in ids if not theirs.is_unknown(i)] for ids in theirs.encode(sentences)]
    assert [text.strip() for text in decoded] == [theirs.decode(ids).strip() for ids in known]


def test_pieces_that_a_vocabulary_lacks_are_not_used(tmp_path: Path) -> None:
    lines = [text for pair in load_pairs("train")[:1500] for text in pair]
    for kind in ("unigram", "bpe"):
        path = tmp_path / f"{kind}.model"
        train_sentencepiece(path, lines, 520, kind, character_coverage=1.0)
        proto = pretrained.parse_sentencepiece(path, str(path))
        names = [piece.piece for piece in proto.pieces if piece.type != pretrained.CONTROL]
        kept = [name for i, name in enumerate(names) if len(name) == 1 or name == "<unk>" or i % 2]
        tokenizer = Tokenizer(pretrained.convert_sentencepiece(proto, kept))
        assert tokenizer.decode(tokenizer.encode(lines[:100])) == lines[:100]
