"""Training of each kind of vocabulary, pre-tokenization, normalization, and refused settings."""

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

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import BYTE_TOKENS, Tokenizer, TokenizerConfig
from transformer_mt.data.tokenizers.trainers import build_tokenizers

PAIRS = load_pairs("test")[:200]
TEXTS = [text for pair in PAIRS for text in pair]


def train_on(texts: list[str], **keys: Any) -> Tokenizer:
    config = TokenizerConfig.model_validate({"vocab_size": 400, "min_frequency": 1, **keys})
    return build_tokenizers(config, [(text, "") for text in texts]).src


def entries(tokenizer: Tokenizer) -> list[str]:
    """Return the learned entries, without control symbols and reserved tokens."""
    known = tokenizer.tokens(range(tokenizer.vocab_size - 3))
    return [entry for entry in known if entry not in BYTE_TOKENS and entry != "<unk>"]


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.tokens(tokenizer.encode([text])[0])


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "byte_bpe"])
def test_training_is_deterministic(kind: str, tmp_path: Path) -> None:
    contents = set[bytes]()
    for joint in (True, True, False, False):
        config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 500, "joint": joint})
        build_tokenizers(config, PAIRS).save(tmp_path / "tokenizer.json")
        contents.add((tmp_path / "tokenizer.json").read_bytes())
    assert len(contents) == 2


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_learned_tokens_occur_in_the_training_text(kind: str) -> None:
    """Trap 34."""
    learned = entries(train_on(TEXTS, kind=kind))
    assert len(learned) > 100
    assert all(any(entry in f" {text}" for text in TEXTS) for entry in learned)


@pytest.mark.parametrize("vocab_size", [300, 450])
@pytest.mark.parametrize("kind", ["word", "bpe", "byte_bpe", "unigram"])
def test_vocabulary_has_the_requested_size(kind: str, vocab_size: int) -> None:
    """The size includes control symbols. It is smaller only if the text has too few distinct substrings."""
    found = train_on(TEXTS, kind=kind, vocab_size=vocab_size)
    assert (
        found.vocab_size
        == vocab_size
        == len(entries(found)) + 3 + {"bpe": 256, "unigram": 256, "byte_bpe": 0}.get(kind, 1)
    )
    assert train_on(["ab ab"], kind=kind, vocab_size=vocab_size).vocab_size < 270


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_large_alphabet_keeps_the_most_frequent_characters(kind: str) -> None:
    """The other characters are encoded as bytes and round-trip."""
    rare = [chr(0x4E00 + i) for i in range(1000)]
    texts = [*rare, *["often so often"] * 999]
    tokenizer = train_on(texts, kind=kind, vocab_size=300)
    assert tokenizer.vocab_size == 300
    assert set("often") <= set("".join(entries(tokenizer)))
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


def test_rare_characters_take_at_most_a_quarter_of_the_vocabulary() -> None:
    """They take more if they make up more than 0.05 % of the text, or if min_frequency asks for all."""
    rare = [chr(0x4E00 + i) for i in range(100)]
    room = 600 - 3 - 256
    for min_frequency, share, least, most in ((2, 30, 1, room // 4), (2, 1, 90, 100), (1, 30, 100, 100)):
        texts = [*TEXTS * share, *["".join(rare)] * 2]
        found = entries(train_on(texts, vocab_size=600, min_frequency=min_frequency))
        assert least <= len({*rare} & {*found}) <= most


def test_word_vocabulary_has_the_most_frequent_words() -> None:
    counts = Counter(word for text in TEXTS for word in re.findall(r" ?\w+| ?[^\w\s]", f" {text}"))
    learned = entries(train_on(TEXTS, kind="word", vocab_size=104))
    assert learned == sorted(counts, key=lambda word: (-counts[word], word))[:100]


def test_char_vocabulary_has_the_most_frequent_characters() -> None:
    counts = Counter("".join(f" {text}" for text in TEXTS))
    learned = entries(train_on(TEXTS, kind="char", vocab_size=279))
    assert learned == sorted(counts, key=lambda letter: (-counts[letter], letter))[:20]
    assert set(learned) >= set(tokens(train_on(TEXTS, kind="char"), "the rest")) - {" "}


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
@pytest.mark.parametrize("merges", [0, 50])
def test_merges_sets_the_number_of_merges(kind: str, merges: int) -> None:
    tokenizer = train_on(TEXTS, kind=kind, merges=merges)
    alphabet = set("".join(f" {text}" for text in TEXTS))
    reserved = 256 if kind == "byte_bpe" else 256 + len(alphabet)
    assert tokenizer.vocab_size == 3 + reserved + merges
    assert sum(len(entry) > 1 for entry in entries(tokenizer)) == merges
    longer = train_on(TEXTS, kind=kind, merges=merges + 20)
    assert [entry for entry in entries(longer) if len(entry) > 1][:merges] == entries(tokenizer)[-merges or 999 :]


def test_merges_that_produce_the_same_token_count_separately() -> None:
    """`merges` counts merges, not new tokens."""
    texts = ["aaa aaaaa aaaa aaaaaaa ab aab abab baab"] * 9
    for merges in range(1, 20):
        tokenizer = train_on(texts, merges=merges, pre_tokenization=[])
        assert tokenizer.decode(tokenizer.encode(texts)) == texts
        assert tokenizer.vocab_size <= 3 + 256 + 3 + merges


@pytest.mark.parametrize(
    ("kind", "frequent", "rare"), [("word", " ab", " cd"), ("char", "b", "d"), ("bpe", " ab", " cd")]
)
def test_min_frequency_excludes_rare_entries(kind: str, frequent: str, rare: str) -> None:
    learned = entries(train_on(["ab ab ab", "cd"], kind=kind, min_frequency=3))
    assert frequent in learned
    assert rare not in learned


def test_sample_is_uniform_deterministic_and_of_exact_size() -> None:
    texts = [(chr(0x4E00 + i), "") for i in range(40)]

    def chosen(seed: int) -> set[str]:
        config = TokenizerConfig(kind="char", vocab_size=400, min_frequency=1, sample_size=10)
        return set(entries(build_tokenizers(config, texts, seed).src)) - {" "}

    assert chosen(1) == chosen(1)
    assert {len(chosen(seed)) for seed in range(100)} == {10}
    met = Counter(character for seed in range(100) for character in chosen(seed))
    assert len(met) == 40
    assert all(5 <= count <= 45 for count in met.values())  # of 25 expected, almost five standard deviations


# --- pre-tokenization -------------------------------------------------------------------------------------------------

BOUNDARY_CASES: list[tuple[list[str], str, list[str]]] = [
    (["whitespace", "punctuation", "digits"], "in 20, don't!", [" in", " 2", "0", ",", " don", "'", "t", "!"]),
    (["whitespace", "punctuation"], "in 2024, don't!", [" in", " 2024", ",", " don", "'", "t", "!"]),
    (["whitespace"], "in 2024, don't  go", [" in", " 2024,", " don't", " ", " go"]),
    (["punctuation"], "to go, 24 (now)", [" to go", ",", " 24", " (", "now", ")"]),
    (["scripts"], "to go, 24 привет мир 猫ねこ!", [" to go", ", 24", " привет мир", " 猫", "ねこ", "!"]),
    (["whitespace", "scripts"], "a cafe\u0301привет мир", [" a", " cafe\u0301", "привет", " мир"]),
    ([], "to go, 24 now", [" to go, 24 now"]),
]  # fmt: skip


@pytest.mark.parametrize(("boundaries", "text", "expected"), BOUNDARY_CASES)
def test_boundaries_split_text(boundaries: list[str], text: str, expected: list[str]) -> None:
    """A vocabulary that is large enough contains every unsplit run."""
    assert tokens(train_on([text] * 9, vocab_size=900, pre_tokenization=boundaries), text) == expected


# --- normalization ----------------------------------------------------------------------------------------------------

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
COMPOSED_TEXT = st.text(st.sampled_from("aÉe\u0301\u0327ﬁ①Åß İ한글ʼ"), max_size=12)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(text=COMPOSED_TEXT)
def test_unicode_normal_forms_match_unicodedata(form: Any, text: str) -> None:
    assert NORMAL[form].decode(NORMAL[form].encode([text])) == [unicodedata.normalize(form, text)]


NORMAL = {form: train_on(["abc"], normalization=[form]) for form in FORMS}

STEPS: list[tuple[list[str], str, str]] = [
    ([], " “Ä\x00”  b ", " “Ä\x00”  b "),
    (["lowercase"], "Straße ÄÖ", "straße äö"),
    (["strip_accents"], "Éte\u0301 für Åse, 한국 में й", "Ete fur Ase, 한국 में и"),
    (["quotes"], "‘a’ ‚b‛ “c” „d‟ «e» ‹f› l’eau ʼn", "'a' 'b' \"c\" \"d\" \"e\" 'f' l'eau 'n"),
    (["spaces"], "  a \t b\u00a0\u2028c\n", "a b c"),
    (["control_characters"], "a\x00b\x1b\tc\nd\x7fe\x85f", "ab\tc\nde\x85f"),
    (["control_characters"], "\ufeffso\u00adft\u200b\u200e می\u200cخ 👩\u200d🚀", "soft می\u200cخ 👩\u200d🚀"),
    (["NFC", "control_characters", "spaces"], "e\u0301\u202f\u200b ! ", "é !"),
    (["NFKC", "lowercase"], "①ﬁＡ", "1fia"),
    (["lowercase", "NFKC"], "Ⓐ", "a"),
]


@pytest.mark.parametrize(("steps", "text", "expected"), STEPS)
@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_text_round_trips_up_to_normalization(kind: str, steps: list[str], text: str, expected: str) -> None:
    """Trap 31."""
    tokenizer = train_on(["abc"], kind=kind, normalization=steps)
    assert tokenizer.decode(tokenizer.encode([text])) == [expected]


def test_unigram_learns_a_frequent_word_that_is_in_no_other_word() -> None:
    tokenizer = train_on(["house"] * 20 + ["tree"] * 10, kind="unigram")
    assert tokens(tokenizer, "house") == [" house"]


# --- refused settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key", "message"),
    [
        ({"vocab_size": 259}, "vocab_size", "259 is too small: bpe needs 260 or more"),
        ({"vocab_size": 4, "kind": "word"}, "vocab_size", "4 is too small: word needs 5 or more"),
        ({"merges": 5, "kind": "unigram"}, "merges", "unigram has no merges: leave it null, or set kind: bpe"),
        ({"sampling": 0.1, "kind": "char"}, "sampling", "char cannot sample subwords"),
        ({"pre_tokenization": [], "kind": "word"}, "pre_tokenization", "word needs at least the boundary"),
        ({"file": "a", "merges": 5}, "merges", "is defined by the vocabulary file: leave this out"),
        ({"src_file": "a", "joint": False}, "src_file", "src_file and tgt_file must be set together"),
        ({"file": "a", "joint": False}, "joint", "one file is one vocabulary: set true"),
    ],
)  # fmt: skip
def test_contradicting_settings_are_refused(keys: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TokenizerConfig.model_validate(keys)
    (detail,) = caught.value.errors()
    assert (detail.get("ctx", {}).get("key") or detail["loc"][0]) == key
    assert message in detail["msg"]


@pytest.mark.parametrize(("kind", "size"), [("bpe", 260), ("word", 5)])
def test_smallest_vocabulary_is_accepted(kind: str, size: int) -> None:
    assert TokenizerConfig.model_validate({"kind": kind, "vocab_size": size}).vocab_size == size


def test_a_vocabulary_of_words_may_be_learned_from_empty_text() -> None:
    tokenizer = train_on([""], kind="word")
    assert tokenizer.decode(tokenizer.encode(["a b"])) == ["⁇ ⁇"]
