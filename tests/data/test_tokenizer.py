"""The tokenizer gives back any text (trap 31), and no text reaches the symbols that are not text (trap 30)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.data.quickstart.corpus import pairs
from transformer_mt.data.tokenizer import BYTES, CONTROLS, Tokenizer, TokenizerConfig, TokenizerPair, train
from transformer_mt.errors import UserError

RESERVED = [*CONTROLS, *BYTES]
ODD = [
    *"\u2581 \t\n\r\x00\x0b\x0c\x1c\x7f\u0085\u00a0\u00ad\u200b\u200d\u2028\u2029\u202e\ufeff\ufffd\ufffe",
    *"\u0301\u0308\ud7ff\ue000\U0010ffff\U000e0041ß﷽ﬁ①½😀",
    *("🙂‍↔️", "👨‍👩‍👧", "🇩🇪", "  ", " \u2581", "Hello , world !", "e\u0301", "...", "İ", "don't", "１２3"),
    *("<pad>", "<s>", "</s>", "<unk>", "<0x41>", "<0x0A>", "[CLS]", "Ġ", "##"),
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(ODD) | st.text(max_size=3), max_size=9).map("".join))


def learn(texts: Sequence[str], vocab_size: int = 400, min_frequency: int = 2) -> Tokenizer:
    return train(
        TokenizerConfig(vocab_size=vocab_size, min_frequency=min_frequency), [(text, "") for text in texts]
    ).src


def reloaded(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    TokenizerPair(tokenizer, tokenizer).save(folder / "tokenizer.json")
    return TokenizerPair.load(folder / "tokenizer.json").src


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tokens(range(tokenizer.vocab_size))


def round_trip(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    return tokenizer.decode(tokenizer.encode(texts))


@pytest.fixture(scope="module", params=["plain", "odd", "tiny"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """From German text, from text of odd characters, and with nothing but bytes."""
    german = [tgt for _, tgt in pairs("test")[:200]]
    texts = {"plain": german, "odd": [*ODD * 3, *(f" {a}{b}{a} {b} {a}" for a in ODD for b in ODD[::5])], "tiny": [""]}
    return learn(texts[request.param])


# --- any text comes back ----------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_any_text_comes_back(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Trap 31; and no text has control symbols in it (30)."""
    ids = tokenizer.encode(texts)
    assert tokenizer.decode(ids) == texts
    assert not {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id} & set(itertools.chain(*ids))


def test_the_odd_characters_come_back(tokenizer: Tokenizer) -> None:
    """Trap 31: each alone, between words, and at the ends."""
    texts = [text for odd in ODD for text in (odd, f"a{odd}b", f"a {odd} b", f"{odd} a", f"a {odd}", odd * 3)]
    assert round_trip(tokenizer, texts) == texts


@pytest.mark.parametrize("text", ["", " ", "  ", " a", "a ", "  a  b   c  ", "\n", " \n a", "\ta\t"])
def test_spaces_come_back(tokenizer: Tokenizer, text: str) -> None:
    assert round_trip(tokenizer, [text]) == [text]


def test_nothing_is_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode([]) == [] and tokenizer.encode([""]) == [[]]
    assert tokenizer.decode([]) == [] and tokenizer.decode([[]]) == [""]


def test_a_word_has_the_same_pieces_at_the_start_and_inside() -> None:
    tokenizer = learn(["the dog and the cat"] * 9)
    (alone,), (inside,) = tokenizer.encode(["dog"]), tokenizer.encode(["the dog"])
    assert inside[-len(alone) :] == alone


def test_texts_do_not_touch_each_other(tokenizer: Tokenizer) -> None:
    texts = ["one", "", "two three", "語"]
    assert tokenizer.encode(texts) == [ids for text in texts for ids in tokenizer.encode([text])]


def test_a_character_that_was_never_seen_is_its_utf8_bytes() -> None:
    tokenizer = learn(["abc"])
    (ids,) = tokenizer.encode(["語"])
    assert tokenizer.tokens(ids)[-3:] == [f"<0x{byte:02X}>" for byte in "語".encode()]


def test_decoding_leaves_control_symbols_out(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(["a b"])
    between = [tokenizer.bos_id, *ids, tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode([between]) == ["a b"]


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    tokenizer = learn(["abc"])
    lone_byte = vocabulary(tokenizer).index("<0xE8>")
    assert tokenizer.decode([[lone_byte]]) == ["\ufffd"]


# --- literal special tokens -------------------------------------------------------------------------------------------

LITERAL = ["<pad>", "<s>", "</s>", "<unk>", "<0x41>", "<0x0a>", "a<pad>b", "x </s>", "</s></s>", "<s> <s>", "<<s>>"]


@pytest.mark.parametrize("trained_on", ["other text", "the literals"])
@pytest.mark.parametrize("saved", [False, True])
def test_literal_special_tokens_are_text(trained_on: str, saved: bool, tmp_path: Path) -> None:
    """Trap 30: also after saving and loading, and though the training text is full of them."""
    tokenizer = learn(["<p/s>ad unkb0x41a</"] if trained_on == "other text" else LITERAL * 50, min_frequency=1)
    if saved:
        tokenizer = reloaded(tokenizer, tmp_path)
    coded = tokenizer.encode(LITERAL)
    assert not set(RESERVED) & set(tokenizer.tokens(itertools.chain(*coded)))
    assert tokenizer.decode(coded) == LITERAL


def test_no_merge_makes_a_reserved_entry() -> None:
    """Trap 30, at its root: reserved entries stand once, at the head of the vocabulary."""
    entries = vocabulary(learn(LITERAL * 50 + [" ".join(RESERVED)] * 50, vocab_size=700))
    assert entries[: len(RESERVED)] == RESERVED
    assert len(set(entries)) == len(entries)


# --- training ---------------------------------------------------------------------------------------------------------


def test_training_twice_makes_the_same_file(tmp_path: Path) -> None:
    contents = set[bytes]()
    for joint in (True, True, False, False):
        train(TokenizerConfig(vocab_size=500, joint=joint), pairs("test")[:200]).save(tmp_path / "tokenizer.json")
        contents.add((tmp_path / "tokenizer.json").read_bytes())
    assert len(contents) == 2


def test_one_vocabulary_or_two(tmp_path: Path) -> None:
    texts = [("aaa bbb aaa bbb", "xxx yyy xxx yyy")] * 9
    for joint in (True, False):
        train(TokenizerConfig(vocab_size=300, joint=joint), texts).save(tmp_path / "tokenizer.json")
        pair = TokenizerPair.load(tmp_path / "tokenizer.json")
        assert pair.joint is joint
        assert (" aaa" in vocabulary(pair.src), " yyy" in vocabulary(pair.src)) == (True, joint)
        assert (" aaa" in vocabulary(pair.tgt), " yyy" in vocabulary(pair.tgt)) == (joint, True)


def test_only_the_given_texts_are_learnt() -> None:
    """Trap 34: every learnt entry stands in a training text."""
    texts = [src for src, _ in pairs("test")[:100]]
    learnt = vocabulary(learn(texts))[len(RESERVED) :]
    assert len(learnt) > 100
    assert all(any(entry in f" {text}" for text in texts) for entry in learnt)


def test_merges_stay_inside_words_and_digits_stand_alone() -> None:
    texts = ["in 2024, in 2024. (in 2024)"] * 9
    pieces = re.compile(r" ?([^\W\d]+|\d|[^\w\s]+)| ")
    assert all(pieces.fullmatch(entry) for entry in vocabulary(learn(texts))[len(RESERVED) :])


@pytest.mark.parametrize("vocab_size", [300, 301, 450])
def test_the_size_of_the_vocabulary(vocab_size: int) -> None:
    """Never more than asked for; less where the text has no more to merge."""
    texts = [text for pair in pairs("test")[:200] for text in pair]
    assert learn(texts, vocab_size).vocab_size == len(vocabulary(learn(texts, vocab_size))) == vocab_size
    assert learn(["ab ab"], vocab_size).vocab_size < 270


def test_an_alphabet_larger_than_the_vocabulary() -> None:
    """The most frequent characters have entries; the others are bytes, and come back."""
    rare = [chr(0x4E00 + i) for i in range(1000)]
    texts = ["".join(rare), *["often"] * 99]
    tokenizer = learn(texts, vocab_size=300)
    assert tokenizer.vocab_size == 300
    assert set(" often") <= set(vocabulary(tokenizer))
    assert round_trip(tokenizer, texts) == texts


def test_rare_pairs_are_not_merged() -> None:
    texts = ["ab ab ab", "cd"]
    assert {" ab", "ab"} & set(vocabulary(learn(texts, min_frequency=3)))
    assert not {" cd", "cd"} & set(vocabulary(learn(texts, min_frequency=2)))


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_loaded_tokenizer_is_the_one_that_was_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    again = reloaded(tokenizer, tmp_path)
    texts = [*ODD, *LITERAL, "Der Hund schläft."]
    assert again.encode(texts) == tokenizer.encode(texts)
    assert again.to_json() == tokenizer.to_json()
    assert [again.pad_id, again.bos_id, again.eos_id] == [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; the run folder is incomplete"),
        ("{", "not a tokenizer of this program"),
        ("[]", "not a tokenizer of this program"),
        (json.dumps({"format": 2, "src": {}, "tgt": None}), "format 2"),
        (json.dumps({"format": 1, "src": {"model": 7}, "tgt": None}), "not a tokenizer of this program"),
    ],
)
def test_another_file_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        TokenizerPair.load(path)
    assert str(path) in str(caught.value)


def test_a_vocabulary_without_control_symbols_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps({"format": 1, "tgt": None, "src": json.loads(tokenizer.to_json().replace(r"</s>", "?"))})
    )
    with pytest.raises(UserError, match="the vocabulary lacks </s>"):
        TokenizerPair.load(path)
