"""What each kind learns, what is done to text before, and settings that cannot be."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from transformer_mt.data.quickstart import load_pairs
from transformer_mt.data.tokenizers.components import BYTE_TOKENS
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, build_tokenizers
from transformer_mt.errors import UserError

KINDS = ("word", "char", "wordpiece", "bpe", "byte_bpe", "unigram")
PAIRS = load_pairs("test")[:200]
TEXTS = [text for pair in PAIRS for text in pair]


def learn(texts: list[str], **keys: Any) -> Tokenizer:
    config = TokenizerConfig.model_validate({"vocab_size": 400, "min_frequency": 1, **keys})
    return build_tokenizers(config, [(text, "") for text in texts]).src


def entries(tokenizer: Tokenizer) -> list[str]:
    """What was learnt: neither control symbols nor what is reserved."""
    known = tokenizer.tokens(range(tokenizer.vocab_size - 3))
    return [entry for entry in known if entry not in BYTE_TOKENS and entry != "<unk>"]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.tokens(tokenizer.encode([text])[0])


# --- what is learnt ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["word", "char", "wordpiece", "bpe", "byte_bpe"])
def test_learning_twice_makes_the_same_file(kind: str, tmp_path: Path) -> None:
    contents = set[bytes]()
    for joint in (True, True, False, False):
        config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 500, "joint": joint})
        build_tokenizers(config, PAIRS).save(tmp_path / "tokenizer.json")
        contents.add((tmp_path / "tokenizer.json").read_bytes())
    assert len(contents) == 2


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_only_the_given_texts_are_learnt(kind: str) -> None:
    """Trap 34: every learnt entry stands in a training text."""
    learnt = entries(learn(TEXTS, kind=kind))
    assert len(learnt) > 100
    assert all(any(entry.removeprefix("##") in f" {text}" for text in TEXTS) for entry in learnt)


@pytest.mark.parametrize("vocab_size", [300, 301, 450])
@pytest.mark.parametrize("kind", ["word", "wordpiece", "bpe", "byte_bpe", "unigram"])
def test_the_size_of_the_vocabulary(kind: str, vocab_size: int) -> None:
    """Never more than asked for, control symbols included; less where the text has no more to give."""
    found = learn(TEXTS, kind=kind, vocab_size=vocab_size)
    assert (
        found.vocab_size
        == vocab_size
        == len(entries(found)) + 3 + {"bpe": 256, "unigram": 256, "byte_bpe": 0}.get(kind, 1)
    )
    assert learn(["ab ab"], kind=kind, vocab_size=vocab_size).vocab_size < 270


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_an_alphabet_larger_than_the_vocabulary(kind: str) -> None:
    """The most frequent characters have entries; the others are bytes, and come back."""
    rare = [chr(0x4E00 + i) for i in range(1000)]
    texts = [*rare, *["often so often"] * 999]
    tokenizer = learn(texts, kind=kind, vocab_size=300)
    assert tokenizer.vocab_size == 300
    assert set("often") <= set("".join(entries(tokenizer)))
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_of_characters_that_are_equally_frequent_the_same_are_learnt(kind: str) -> None:
    texts = [chr(0x4E00 + i) for i in range(1000)]
    assert len({learn(texts, kind=kind, vocab_size=500).to_json() for _ in range(5)}) == 1


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_characters_met_once_take_no_room(kind: str) -> None:
    strays = [chr(0x4E00 + i) for i in range(300)]
    found = learn([*TEXTS, "".join(strays)], kind=kind, vocab_size=600, min_frequency=2)
    assert not {*strays} & {*"".join(entries(found))}
    without = learn(TEXTS, kind=kind, vocab_size=600, min_frequency=2)
    assert len({*entries(found)} & {*entries(without)}) > 0.95 * (600 - 3 - 256)
    assert found.decode(found.encode(strays)) == strays


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_strays_take_a_quarter_of_the_room_at_most(kind: str) -> None:
    """Those that are met more often do, unless they make up more than 0.05 % of the text."""
    strays = [chr(0x4E00 + i) for i in range(200)]
    room = 600 - 3 - 256
    for share, least, most in ((30, 1, room // 4), (1, 150, 200)):
        found = entries(learn([*TEXTS * share, "".join(strays)], kind=kind, vocab_size=600))
        assert least <= len({*strays} & {*found}) <= most


def test_words_are_the_most_frequent_ones() -> None:
    counts = Counter(word for text in TEXTS for word in re.findall(r" ?\w+| ?[^\w\s]", f" {text}"))
    learnt = entries(learn(TEXTS, kind="word", vocab_size=104))
    assert learnt == sorted(counts, key=lambda word: (-counts[word], word))[:100]


def test_characters_are_the_most_frequent_ones() -> None:
    counts = Counter("".join(f" {text}" for text in TEXTS))
    learnt = entries(learn(TEXTS, kind="char", vocab_size=279))
    assert learnt == sorted(counts, key=lambda letter: (-counts[letter], letter))[:20]
    assert set(learnt) >= set(pieces(learn(TEXTS, kind="char"), "the rest")) - {" "}


def test_wordpiece_takes_the_longest_piece_and_marks_what_goes_on() -> None:
    tokenizer = learn(TEXTS, kind="wordpiece", vocab_size=500)
    known, word = set(entries(tokenizer)), " Großmutter"
    expected, rest = list[str](), word
    while rest:
        names = ((end, ("##" if expected else "") + rest[:end]) for end in range(len(rest), 0, -1))
        end, name = next((end, name) for end, name in names if name in known)
        expected.append(name)
        rest = rest[end:]
    assert pieces(tokenizer, "Großmutter") == expected


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
@pytest.mark.parametrize("merges", [0, 1, 50])
def test_a_number_of_merges(kind: str, merges: int) -> None:
    tokenizer = learn(TEXTS, kind=kind, merges=merges)
    alphabet = set("".join(f" {text}" for text in TEXTS))
    reserved = 256 if kind == "byte_bpe" else 256 + len(alphabet)
    assert tokenizer.vocab_size == 3 + reserved + merges
    assert sum(len(entry) > 1 for entry in entries(tokenizer)) == merges
    longer = learn(TEXTS, kind=kind, merges=merges + 20)
    assert [entry for entry in entries(longer) if len(entry) > 1][:merges] == entries(tokenizer)[-merges or 999 :]


def test_more_merges_than_there_are() -> None:
    assert learn(["ab ab"], merges=1000).vocab_size == 3 + 256 + 3 + 2


def test_two_ways_to_one_piece_are_two_merges() -> None:
    """The number is that of merges, of which some may make a piece that is there already."""
    texts = ["aaa aaaaa aaaa aaaaaaa ab aab abab baab"] * 9
    for merges in range(1, 20):
        tokenizer = learn(texts, merges=merges, pre_tokenization=[])
        assert tokenizer.decode(tokenizer.encode(texts)) == texts
        assert tokenizer.vocab_size <= 3 + 256 + 3 + merges


@pytest.mark.parametrize(
    ("kind", "frequent", "rare"), [("word", " ab", " cd"), ("char", "b", "d"), ("bpe", " ab", " cd")]
)
def test_what_is_rare_is_not_learnt(kind: str, frequent: str, rare: str) -> None:
    learnt = entries(learn(["ab ab ab", "cd"], kind=kind, min_frequency=3))
    assert frequent in learnt
    assert rare not in learnt


def test_a_sample_of_the_pairs_is_even_and_always_the_same() -> None:
    """Each pair is as likely as any other, and exactly so many are taken."""
    texts = [(chr(0x4E00 + i), "") for i in range(40)]

    def chosen(seed: int) -> set[str]:
        config = TokenizerConfig(kind="char", vocab_size=400, min_frequency=1, sample_size=10)
        return set(entries(build_tokenizers(config, texts, seed).src)) - {" "}

    assert chosen(1) == chosen(1)
    assert {len(chosen(seed)) for seed in range(200)} == {10}
    met = Counter(character for seed in range(200) for character in chosen(seed))
    assert len(met) == 40
    assert all(20 <= count <= 80 for count in met.values())  # of 50 expected, five standard deviations


# --- pre-tokenisation -------------------------------------------------------------------------------------------------

CASES: list[tuple[list[str], str, list[str]]] = [
    (["whitespace", "punctuation", "digits"], "in 20, don't!", [" in", " 2", "0", ",", " don", "'", "t", "!"]),
    (["whitespace", "punctuation"], "in 2024, don't!", [" in", " 2024", ",", " don", "'", "t", "!"]),
    (["whitespace", "digits"], "in 20, don't!", [" in", " 2", "0", ",", " don't!"]),
    (["whitespace"], "in 2024, don't  go", [" in", " 2024,", " don't", " ", " go"]),
    (["punctuation"], "to go, 24 (now)", [" to go", ",", " 24", " (", "now", ")"]),
    (["digits"], "to go, 24 now", [" to go,", " 2", "4", " now"]),
    (["scripts"], "to go, 24 привет мир 猫ねこ!", [" to go", ", 24", " привет мир", " 猫", "ねこ", "!"]),
    (["whitespace", "scripts"], "a cafe\u0301привет мир", [" a", " cafe\u0301", "привет", " мир"]),
    ([], "to go, 24 now", [" to go, 24 now"]),
]  # fmt: skip


@pytest.mark.parametrize(("cuts", "text", "expected"), CASES)
def test_cuts(cuts: list[str], text: str, expected: list[str]) -> None:
    """A vocabulary that is large enough holds every stretch that is left whole."""
    assert pieces(learn([text] * 9, vocab_size=900, pre_tokenization=cuts), text) == expected


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram", "wordpiece"])
def test_pieces_cross_words_only_where_nothing_is_cut(kind: str) -> None:
    for cuts in ([], ["whitespace"]):
        learnt = entries(learn(["of the cat", "of the dog"] * 9, kind=kind, pre_tokenization=cuts))
        assert any(" " in entry[1:].replace("Ġ", " ") for entry in learnt) == (not cuts)


# --- normalisation ----------------------------------------------------------------------------------------------------

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
LETTERS = st.text(st.sampled_from("aÉe\u0301\u0327ﬁ①Åß İ한글ʼ"), max_size=12)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(text=LETTERS)
def test_normal_forms(form: Any, text: str) -> None:
    assert NORMAL[form].decode(NORMAL[form].encode([text])) == [unicodedata.normalize(form, text)]


NORMAL = {form: learn(["abc"], normalization=[form]) for form in FORMS}

STEPS: list[tuple[list[str], str, str]] = [
    ([], " “Ä\x00”  b ", " “Ä\x00”  b "),
    (["lowercase"], "Straße ÄÖ", "straße äö"),
    (["strip_accents"], "Éte\u0301 für Åse, 한국 में й", "Ete fur Ase, 한국 में и"),
    (["NFC", "strip_accents"], "Éte\u0301", "Ete"),
    (["quotes"], "‘a’ ‚b‛ “c” „d‟ «e» ‹f› l’eau ʼn", "'a' 'b' \"c\" \"d\" \"e\" 'f' l'eau 'n"),
    (["spaces"], "  a \t b\u00a0\u2028c\n", "a b c"),
    (["spaces"], " \t ", ""),
    (["control_characters"], "a\x00b\x1b\tc\nd\x7fe\x85f", "ab\tc\nde\x85f"),
    (["control_characters", "spaces"], " a\x00 \x01 b\t", "a b"),
    (["NFKC", "lowercase"], "①ﬁＡ", "1fia"),
    (["lowercase", "NFKC"], "Ⓐ", "a"),
    (["strip_accents", "NFD", "lowercase"], "É", "e"),
]


@pytest.mark.parametrize(("steps", "text", "expected"), STEPS)
@pytest.mark.parametrize("kind", ["char", "bpe", "byte_bpe", "unigram"])
def test_text_comes_back_as_it_was_normalised(kind: str, steps: list[str], text: str, expected: str) -> None:
    """Trap 31: what is lost is what was asked for, in the order in which it was asked for."""
    tokenizer = learn(["abc"], kind=kind, normalization=steps)
    assert tokenizer.decode(tokenizer.encode([text])) == [expected]


def test_the_order_of_the_steps_counts() -> None:
    both = [learn(["abc"], normalization=steps) for steps in (["NFD", "NFC"], ["NFC", "NFD"])]
    assert [tokenizer.decode(tokenizer.encode(["é"])) for tokenizer in both] == [["é"], ["e\u0301"]]


# --- settings that cannot be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key", "message"),
    [
        ({"kind": "sentencepiece"}, "kind", "'wordpiece'"),
        ({"vocab_size": 259}, "vocab_size", "259 is too small: bpe needs 260 or more"),
        ({"vocab_size": 258, "kind": "byte_bpe"}, "vocab_size", "258 is too small: byte_bpe needs 259 or more"),
        ({"vocab_size": 259, "kind": "char"}, "vocab_size", "259 is too small: char needs 260 or more"),
        ({"vocab_size": 4, "kind": "word"}, "vocab_size", "4 is too small: word needs 5 or more"),
        ({"vocab_size": 99999999999}, "vocab_size", "less than or equal to 10000000"),
        ({"merges": 99999999999}, "merges", "less than or equal to 10000000"),
        ({"merges": 5, "kind": "unigram"}, "merges", "unigram has no merges: leave it null, or set kind: bpe"),
        ({"sampling": 0.1, "kind": "char"}, "sampling", "char cannot sample subwords"),
        ({"sampling": 1.5}, "sampling", "less than or equal to 1"),
        ({"normalization": ["NFX"]}, "normalization", "'strip_accents'"),
        ({"pre_tokenization": ["words"]}, "pre_tokenization", "'punctuation'"),
        ({"pre_tokenization": [], "kind": "word"}, "pre_tokenization", "word needs at least the boundary"),
        ({"file": "a", "merges": 5}, "merges", "is defined by the vocabulary file: leave this out"),
        ({"file": "a", "normalization": ["NFC"]}, "normalization", "is defined by the vocabulary file: leave this out"),
        ({"src_file": "a", "joint": False}, "src_file", "src_file and tgt_file must be set together"),
        ({"file": "a", "src_file": "b", "tgt_file": "c"}, "file", "set either file (for both languages), or"),
        ({"file": "a", "joint": False}, "joint", "one file is one vocabulary: set true"),
        ({"src_file": "b", "tgt_file": "c"}, "joint", "two files are two vocabularies: set false"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(keys: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TokenizerConfig.model_validate(keys)
    (detail,) = caught.value.errors()
    assert (detail.get("ctx", {}).get("key") or detail["loc"][0]) == key
    assert message in detail["msg"]


def test_sizes_at_the_limit_are_learnt() -> None:
    for kind, size in {"word": 5, "char": 260, "bpe": 260, "byte_bpe": 259, "unigram": 260}.items():
        tokenizer = learn(TEXTS, kind=kind, vocab_size=size)
        assert tokenizer.vocab_size == size


def test_wordpiece_knows_every_word_of_characters_that_it_has_met() -> None:
    """Also where a character was met at the start of a word only."""
    texts = ["Really? Yes! Well. (x)", "Really? Yes! Well. (x)"]
    tokenizer = learn(texts, kind="wordpiece", vocab_size=200)
    odd = ["Really??", "Well...", "((x))", "!?!", "sY"]
    assert tokenizer.decode(tokenizer.encode(odd)) == odd


def test_wordpiece_needs_room_for_its_alphabet() -> None:
    with pytest.raises(
        UserError, match=r"tokenizer\.vocab_size: 50 is too small: wordpiece needs at least (\d+) entries"
    ) as caught:
        learn(TEXTS, kind="wordpiece", vocab_size=50)
    least = int(re.findall(r"at least (\d+)", str(caught.value))[0])
    assert learn(TEXTS, kind="wordpiece", vocab_size=least).vocab_size == least
    with pytest.raises(UserError):
        learn(TEXTS, kind="wordpiece", vocab_size=least - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_at_all(kind: str) -> None:
    tokenizer = learn([""], kind=kind)
    assert tokenizer.decode(tokenizer.encode(["a b"])) == ["⁇ ⁇" if kind in ("word", "wordpiece") else "a b"]
