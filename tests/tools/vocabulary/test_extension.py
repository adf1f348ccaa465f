"""Extended vocabularies: old text keeps its segmentation, and new rows are means of old ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.pretrained import convert_sentencepiece, parse_sentencepiece
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig, TokenizerKind, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.tools.vocabulary.extension import NEW_BIAS, extend_vocabulary

PAIRS = load_pairs("train")[:1500]
SRC, TGT = ([pair[side] for pair in PAIRS] for side in (0, 1))
LETTERS = str.maketrans("aeioustrn", "àéîôûşţřñ")


def translate(text: str) -> str:
    """Return the text in a language of its own, with letters that the old vocabulary lacks."""
    return text.translate(LETTERS)


NEW = [translate(text) for text in TGT]


def make_pair(kind: TokenizerKind, *, joint: bool) -> TokenizerPair:
    config = TokenizerConfig(kind=kind, vocab_size=400, joint=joint, min_frequency=1)
    return build_tokenizers(config, PAIRS)


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    return sum(map(len, tokenizer.encode(texts)))


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram"])
def test_old_text_keeps_its_ids_and_new_text_takes_fewer(kind: TokenizerKind, joint: bool) -> None:
    pair = make_pair(kind, joint=joint)
    extended = extend_vocabulary(pair, ([], NEW), (SRC, TGT), 150, "xx").tokenizers
    assert extended.src.encode(SRC) == pair.src.encode(SRC) and extended.tgt.encode(TGT) == pair.tgt.encode(TGT)
    assert count_tokens(extended.tgt, NEW) < 0.6 * count_tokens(pair.tgt, NEW)
    assert extended.tgt.decode(extended.tgt.encode(NEW)) == NEW
    assert 0 < extended.tgt.pad_id - pair.tgt.pad_id <= 150
    assert (
        extended.joint == joint
        and extended.tags == ("xx",)
        and extended.tag_ids("xx") == ([extended.src.tag_symbol_id("xx")], [])
    )
    assert TokenizerPair.from_dict(extended.to_dict()).to_dict() == extended.to_dict()


def test_a_joint_vocabulary_learns_both_sides_of_a_new_domain() -> None:
    pair = make_pair("bpe", joint=True)
    new_src = [translate(text) for text in SRC]
    extended = extend_vocabulary(pair, (new_src, NEW), (SRC, TGT), 150).tokenizers
    assert extended.src is extended.tgt and extended.tags == ()
    assert extended.src.encode(SRC) == pair.src.encode(SRC) and extended.tgt.encode(TGT) == pair.tgt.encode(TGT)
    assert count_tokens(extended.src, new_src) < 0.7 * count_tokens(pair.src, new_src)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_new_rows_are_means_of_the_rows_of_their_parts(tie: str, has_bias: bool) -> None:
    pair = make_pair("unigram", joint=tie == "all")
    config = ModelConfig.model_validate({"d_model": 16, "d_ff": 16, "tie_embeddings": tie, "output_bias": has_bias})
    old = Transformer(config, pair.src, pair.tgt).eval()
    if has_bias:
        torch.nn.init.normal_(old.output.bias)
    extended = extend_vocabulary(pair, ([], NEW), (SRC, TGT), 80, "xx")
    new, tokenizers = extended.extend_model(old).eval(), extended.tokenizers
    states = torch.randn(5, 16)
    before, after = old.logits(states), new.logits(states)
    n_old = pair.tgt.pad_id
    torch.testing.assert_close(after[:, :n_old], before[:, :n_old])
    torch.testing.assert_close(after[:, tokenizers.tgt.eos_id], before[:, pair.tgt.eos_id])
    for i, piece in enumerate(tokenizers.tgt.tokens(range(n_old, tokenizers.tgt.pad_id)), start=n_old):
        parts = [token.id for token in pair.tgt.backend.model.tokenize(piece)]
        torch.testing.assert_close(after[:, i], before[:, parts].mean(1) + NEW_BIAS)
    if tie == "all":  # the target knows the symbol of the tag only in a joint vocabulary
        tag = tokenizers.tgt.tag_symbol_id("xx")
        torch.testing.assert_close(after[:, tag], before[:, :n_old].mean(1) + NEW_BIAS)
    assert (before[:, :n_old].argmax(1) == after.argmax(1)).logical_or(before.argmax(1) >= n_old).all()
    src = torch.tensor(pair.src.encode(SRC[:1]))
    torch.testing.assert_close(new.encoder.embedding(src), old.encoder.embedding(src))


@pytest.mark.parametrize("kind", ["word", "char"])
def test_a_vocabulary_that_cannot_grow_is_refused_by_name(kind: TokenizerKind) -> None:
    with pytest.raises(UserError, match=f"kind {kind}"):
        extend_vocabulary(make_pair(kind, joint=True), ([], NEW), (SRC, TGT), 50)


def test_two_imported_segmenters_of_shared_ids_are_extended(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    from importing_helpers import list_pieces, train_sentencepiece

    files = [tmp_path / "source.spm", tmp_path / "target.spm"]
    for file, texts in zip(files, (SRC, TGT), strict=True):
        train_sentencepiece(file, texts, 200)
    names = ["<unk>", *dict.fromkeys([*list_pieces(files[0]), *list_pieces(files[1])])]
    src, tgt = (Tokenizer(convert_sentencepiece(parse_sentencepiece(file, ""), names)) for file in files)
    pair = TokenizerPair(src, tgt, shares_ids=True)
    reversed_words = [" ".join(word[::-1] for word in text.split()) for text in TGT]
    unknown = 50 * ["Привет 日本 ок", "x Привет y"]
    found = extend_vocabulary(pair, ([], reversed_words + unknown), (SRC, TGT), 100)
    extended = found.tokenizers
    assert all(found.src_origins) and all(found.tgt_origins), "each new row has old ones to start from"
    pieces = extended.tgt.tokens(range(pair.tgt.pad_id, extended.tgt.pad_id))
    assert not [piece for piece in pieces if {*piece} - {*"▁", *"".join(names)}], "new characters stay unknown"
    assert extended.shares_ids and extended.src.vocab_size == extended.tgt.vocab_size > pair.src.vocab_size
    assert extended.src.encode(SRC) == pair.src.encode(SRC) and extended.tgt.encode(TGT) == pair.tgt.encode(TGT)
    assert count_tokens(extended.tgt, reversed_words) < 0.8 * count_tokens(pair.tgt, reversed_words)
    assert extended.tgt.decode(extended.tgt.encode(reversed_words)) == pair.tgt.decode(pair.tgt.encode(reversed_words))


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram"])
def test_a_second_extension_learns_a_new_script(kind: TokenizerKind, joint: bool) -> None:
    first = extend_vocabulary(make_pair(kind, joint=joint), ([], NEW), (SRC, TGT), 100, "xx").tokenizers
    first = TokenizerPair.from_dict(first.to_dict())
    cyrillic = [text.lower().translate({i: i + 0x3CF for i in range(ord("a"), ord("z") + 1)}) for text in TGT]
    found = extend_vocabulary(first, ([], cyrillic), (SRC, TGT + NEW), 300, "yy")
    second = found.tokenizers
    assert all(found.src_origins) and all(found.tgt_origins) and second.tags == ("xx", "yy")
    assert second.tgt.decode(second.tgt.encode(cyrillic)) == cyrillic
    assert count_tokens(second.tgt, cyrillic) < 1.5 * count_tokens(second.tgt, TGT)
    for old in (SRC, TGT, NEW):
        assert second.src.encode(old) == first.src.encode(old) and second.tgt.encode(old) == first.tgt.encode(old)
