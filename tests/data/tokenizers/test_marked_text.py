"""Encoding of text with protected elements."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from transformer_mt.data.tokenizers.marked_text import decode_marked, encode_marked
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair, build_tokenizers
from transformer_mt.data.tokenizers.tokenizer_config import TokenizerConfig, TokenizerKind
from transformer_mt.tools.markup.elements import (
    Element,
    MarkedText,
    Role,
    Span,
    mark,
)
from transformer_mt.tools.markup.placement import arrange_spaces
from transformer_mt.tools.markup.symbols import SLOTS, SYMBOL_NAMES, assign_symbol_numbers

TEXT = "The old dog sleeps (in the house), and the cat is unbelievable!"
KINDS: tuple[TokenizerKind, ...] = ("word", "char", "wordpiece", "bpe", "byte_bpe", "unigram")


def build(kind: TokenizerKind) -> TokenizerPair:
    pairs = [(TEXT, TEXT.replace("the", "der"))] * 3
    return build_tokenizers(TokenizerConfig(kind=kind, vocab_size=400), pairs).with_symbols()


def mark_words(*words: str) -> MarkedText:
    """Put a pair of tags around some words of the text."""
    text, spans = TEXT, []
    for name, word in enumerate(words):
        text = text.replace(word, f"<{name}>{word}</{name}>", 1)
    for name in range(len(words)):
        start = text.index(f"<{name}>")
        end = text.index(f"</{name}>")
        spans += [Span(start, start + 3, Role.OPENING, str(name)), Span(end, end + 4, Role.CLOSING, str(name))]
    return mark(text, sorted(spans, key=lambda span: span.start))


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_undoes_encoding(kind: TokenizerKind) -> None:
    tokenizer = build(kind).src
    texts = [
        mark_words("old dog"),
        mark_words("The", "sleeps", "unbelievable"),
        mark(TEXT, [Span(4, 7)]),
        mark(TEXT, []),
    ]
    numbers = [assign_symbol_numbers(text.elements) or [] for text in texts]
    ids = encode_marked(tokenizer, texts, numbers)
    for text, parts in zip(texts, decode_marked(tokenizer, ids, numbers), strict=True):
        assert arrange_spaces(parts, text) == text


@pytest.mark.parametrize("kind", KINDS)
def test_tags_do_not_change_the_tokens_of_whole_words(kind: TokenizerKind) -> None:
    tokenizer = build(kind).src
    text = mark_words("old dog", "sleeps")
    (ids,) = encode_marked(tokenizer, [text], [assign_symbol_numbers(text.elements) or []])
    assert [i for i in ids if i < tokenizer.pad_id] == tokenizer.encode([TEXT])[0]


def test_no_text_encodes_to_a_symbol() -> None:
    tokenizer = build("bpe").src
    for name in SYMBOL_NAMES:
        (ids,) = tokenizer.encode([name])
        assert max(ids) < tokenizer.pad_id
        assert tokenizer.decode([ids]) == [name]


def test_symbols_follow_tags_and_survive_saving() -> None:
    pair = build("bpe").with_tags(("news", "talk"), is_needed=False)
    loaded = TokenizerPair.from_dict(pair.to_dict())
    assert loaded.has_symbols
    for tokenizer in (pair.src, loaded.src):
        assert tokenizer.first_symbol_id == tokenizer.tag_id("talk") + 1
        assert tokenizer.vocab_size == tokenizer.first_symbol_id + len(SYMBOL_NAMES)
        assert tokenizer.tokens([tokenizer.first_symbol_id]) == [SYMBOL_NAMES[0]]
        assert not tokenizer.is_tag(tokenizer.first_symbol_id)


def test_a_vocabulary_without_symbols_is_stored_as_before() -> None:
    pair = build_tokenizers(TokenizerConfig(kind="char", vocab_size=300), [(TEXT, TEXT)])
    assert "has_symbols" not in pair.to_dict()
    assert pair.src.vocab_size == Tokenizer(pair.src.backend).first_symbol_id


def test_random_slots_are_all_used_and_the_first_ones_most() -> None:
    elements = [Element("x")] * 4
    counts = Counter(number for seed in range(500) for number in assign_symbol_numbers(elements, Random(seed)) or [])
    assert counts.keys() == set(range(SLOTS)) and sum(counts.values()) == 2000
    assert counts[0] > 2 * counts[SLOTS - 1]
