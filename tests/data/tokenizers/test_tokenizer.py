"""Tokenizers: any text round-trips (trap 31), and no text encodes to a reserved symbol (trap 30)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import (
    BYTE_TOKENS,
    CONTROL_SYMBOLS,
    Tokenizer,
    TokenizerConfig,
    TokenizerPair,
)
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.errors import UserError

ODD = [
    *"\u2581 \t\n\r\x00\x0b\x0c\x1c\x7f\u0085\u00a0\u00ad\u200b\u200d\u2028\u2029\u202e\ufeff\ufffd\ufffe",
    *"\u0301\u0308\ud7ff\ue000\U0010ffff\U000e0041ß﷽ﬁ①½😀",
    *("🙂‍↔️", "👨‍👩‍👧", "🇩🇪", "  ", " \u2581", "Hello , world !", "e\u0301", "...", "İ", "don't", "１２3"),
    *("<pad>", "<s>", "</s>", "<unk>", "<0x41>", "<0x0A>", "[CLS]", "Ġ", "##", "##s", "a##b", " ⁇"),
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(ODD) | st.text(max_size=3), max_size=9).map("".join))
KINDS = ("word", "char", "bpe", "byte_bpe", "unigram")
LOSSLESS = ("char", "bpe", "byte_bpe", "unigram")
GERMAN = [tgt for _, tgt in load_pairs("test")[:200]]


def train_on(texts: Sequence[str], vocab_size: int = 400, min_frequency: int = 2, **keys: Any) -> Tokenizer:
    config = TokenizerConfig(vocab_size=vocab_size, min_frequency=min_frequency, **keys)
    return build_tokenizers(config, [(text, "") for text in texts]).src


def reloaded(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    TokenizerPair(tokenizer, tokenizer).save(folder / "tokenizer.json")
    return TokenizerPair.load(folder / "tokenizer.json").src


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Return all entries except the control symbols."""
    return tokenizer.tokens(range(tokenizer.vocab_size))[: -len(CONTROL_SYMBOLS)]


def round_trip(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    return tokenizer.decode(tokenizer.encode(texts))


TRAINING_TEXTS = {
    "plain": GERMAN,
    "odd": [*ODD * 3, *(f" {a}{b}{a} {b} {a}" for a in ODD for b in ODD[::5])],
    "tiny": [""],
}


@pytest.fixture(scope="module", params=itertools.product(LOSSLESS, TRAINING_TEXTS), ids="-".join)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """A tokenizer trained on German text, on odd characters, or on no text (bytes only)."""
    kind, text = request.param
    return train_on(TRAINING_TEXTS[text], kind=kind)


# --- round trips ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_any_text_round_trips(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Traps 30 and 31."""
    ids = tokenizer.encode(texts)
    assert tokenizer.decode(ids) == texts
    assert max(itertools.chain(*ids), default=-1) < tokenizer.pad_id


@pytest.mark.parametrize("boundaries", [[], ["whitespace"], ["punctuation"], ["digits"], ["scripts"]], ids=str)
@pytest.mark.parametrize("kind", LOSSLESS)
def test_any_text_round_trips_with_any_boundaries(kind: str, boundaries: list[str]) -> None:
    """Trap 31, also if tokens span words and the training text contains literal special tokens."""
    texts = [text for odd in ODD for text in (odd, f"a{odd}b", f"a {odd} b", f"{odd} a", f"a {odd}", odd * 3)]
    assert round_trip(train_on(texts * 3, 700, kind=kind, pre_tokenization=boundaries), texts) == texts


def test_unknown_words_are_shown_and_known_text_round_trips() -> None:
    """Trap 31, the documented loss: an unknown word becomes ` ⁇`."""
    texts = ["the dog, the cat", "a cat  and a  dog", "(see 2024)", "a ## b##c"] * 3
    tokenizer = train_on(texts, kind="word", min_frequency=1)
    assert round_trip(tokenizer, texts) == texts
    assert round_trip(tokenizer, ["the 猫, the dog", "猫", "(猫)"]) == ["the ⁇, the dog", "⁇", "( ⁇)"]


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(text=TEXTS)
def test_vocabulary_with_unknowns_encodes_any_text(text: str) -> None:
    tokenizer = SMALL_VOCABULARY
    (ids,) = tokenizer.encode([text])
    assert max(ids, default=-1) < tokenizer.pad_id
    assert bool(ids) == bool(text)
    unknown = tokenizer.tokens(ids).count("<unk>")
    assert tokenizer.decode([ids])[0].count("⁇") == unknown + (text.count("⁇") if not unknown else 0)


SMALL_VOCABULARY = train_on(GERMAN, kind="word")


@pytest.mark.parametrize("kind", KINDS)
def test_word_has_the_same_tokens_at_the_start_and_inside(kind: str) -> None:
    tokenizer = train_on(["the dog and the cat"] * 9, kind=kind)
    (alone,), (inside,) = tokenizer.encode(["dog"]), tokenizer.encode(["the dog"])
    assert inside[-len(alone) :] == alone


@pytest.mark.parametrize("kind", KINDS)
def test_decode_skips_control_symbols(kind: str) -> None:
    tokenizer = train_on(["a b"], kind=kind, min_frequency=1)
    (ids,) = tokenizer.encode(["a b"])
    between = [tokenizer.bos_id, *ids, tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode([between]) == ["a b"]
    assert tokenizer.tokens(between[:1] + between[-2:]) == ["<s>", "</s>", "<pad>"]


def test_decode_replaces_invalid_utf8() -> None:
    tokenizer = train_on(["abc"])
    lone_byte = vocabulary(tokenizer).index("<0xE8>")
    assert tokenizer.decode([[lone_byte]]) == ["\ufffd"]


# --- literal special tokens -------------------------------------------------------------------------------------------

LITERAL = ["<pad>", "<s>", "</s>", "<unk>", "<0x41>", "<0x0a>", "a<pad>b", "x </s>", "</s></s>", "<s> <s>", "<<s>>"]
KINDS_AND_BOUNDARIES = [
    (kind, boundaries)
    for kind in KINDS
    for boundaries in (["whitespace", "punctuation", "digits"], ["whitespace"], [])
    if boundaries or kind != "word"  # word requires a boundary
]


@pytest.mark.parametrize("trained_on", ["other text", "the literals"])
@pytest.mark.parametrize(("kind", "boundaries"), KINDS_AND_BOUNDARIES)
def test_literal_special_tokens_encode_as_text(
    kind: str, trained_on: str, boundaries: list[str], tmp_path: Path
) -> None:
    """Trap 30, also after saving and loading, and with training text that contains them."""
    text = ["<p/s>ad unkb0x41a</"] if trained_on == "other text" else LITERAL * 50
    tokenizer = train_on(text, 700, min_frequency=1, kind=kind, pre_tokenization=boundaries)
    for found in (tokenizer, reloaded(tokenizer, tmp_path)):
        ids = found.encode(LITERAL)
        assert max(itertools.chain(*ids)) < found.pad_id
        assert not {*BYTE_TOKENS} & {*found.tokens(itertools.chain(*ids))}
        if kind in LOSSLESS or trained_on == "the literals":
            assert found.decode(ids) == LITERAL


@pytest.mark.parametrize(("kind", "boundaries"), KINDS_AND_BOUNDARIES)
def test_learned_tokens_never_equal_reserved_ones(kind: str, boundaries: list[str]) -> None:
    """Trap 30: every reserved token occurs once, at the start of the vocabulary."""
    text = LITERAL * 50 + [" ".join([*CONTROL_SYMBOLS, *BYTE_TOKENS, "<unk>"])] * 50
    entries = vocabulary(train_on(text, vocab_size=700, kind=kind, pre_tokenization=boundaries))
    reserved = {"byte_bpe": [], "word": ["<unk>"]}.get(kind, [*BYTE_TOKENS])
    assert entries[: len(reserved)] == reserved
    assert len(set(entries)) == len(entries)


@pytest.mark.parametrize("kind", KINDS)
def test_control_symbols_follow_the_vocabulary(kind: str) -> None:
    tokenizer = train_on(GERMAN, kind=kind)
    n = len(vocabulary(tokenizer))
    assert n == tokenizer.backend.get_vocab_size()
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (n, n + 1, n + 2, n + 3)
    assert tokenizer.encode([]) == [] and tokenizer.encode([""]) == [[]]
    assert tokenizer.decode([]) == [] and tokenizer.decode([[]]) == [""]


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_joint_and_separate_vocabularies_know_the_words_of_their_sides(kind: str, tmp_path: Path) -> None:
    texts = [("aaa bbb aaa bbb", "xxx yyy xxx yyy")] * 9
    for joint in (True, False):
        config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 300, "joint": joint, "source_bos": joint})
        build_tokenizers(config, texts).save(tmp_path / "tokenizer.json")
        pair = TokenizerPair.load(tmp_path / "tokenizer.json")
        assert (pair.joint, pair.source_bos) == (joint, joint)
        src, tgt = ("".join(vocabulary(side)[1:]) for side in (pair.src, pair.tgt))
        assert ("b" in src, "y" in src) == (True, joint or kind == "byte_bpe")
        assert ("b" in tgt, "y" in tgt) == (joint or kind == "byte_bpe", True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; the run folder is incomplete"),
        ("{", "not a tokenizer of this program"),
        (json.dumps({"format": 1, "src": {}, "tgt": None}), "format 1"),
    ],
)
def test_wrong_file_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        TokenizerPair.load(path)
    assert str(path) in str(caught.value)
