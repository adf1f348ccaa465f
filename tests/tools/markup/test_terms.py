"""Inline annotation of a source with translations of its terms."""

from __future__ import annotations

import pytest

from transformer_mt.data.tokenizers.marked_text import encode_marked
from transformer_mt.data.tokenizers.tokenizer import build_tokenizers
from transformer_mt.data.tokenizers.tokenizer_config import TokenizerConfig, TokenizerKind
from transformer_mt.tools.markup.elements import Role, Span, mark
from transformer_mt.tools.markup.symbols import SYMBOL_NAMES, TERM_SYMBOL_NAMES, assign_symbol_numbers
from transformer_mt.tools.markup.terms import TermAnnotation, annotate_terms

TEXT = "An old dog sleeps in the house."


def find(term: str, translation: str, text: str = TEXT) -> TermAnnotation:
    return TermAnnotation(text.index(term), text.index(term) + len(term), translation)


def test_terms_are_annotated_inside_and_outside_tags() -> None:
    marked = mark(
        "An <b>old dog</b> sleeps in {place}.",
        [Span(3, 6, Role.OPENING, "b"), Span(13, 17, Role.CLOSING, "b"), Span(28, 35)],
    )
    dog, sleeps = find("dog", "Hund", marked.text_only), find("sleeps", "schläft", marked.text_only)
    text, numbers = annotate_terms(marked, assign_symbol_numbers(marked.elements) or [], [dog, sleeps])
    assert text.surface == (
        "An <b>old <term>dog<translation> Hund</term></b> <term>sleeps<translation> schläft</term> in {place}."
    )
    assert text.elements[: len(marked.elements)] == marked.elements
    assert [SYMBOL_NAMES[numbers[i]] for i in text.order if i >= len(marked.elements)] == [*TERM_SYMBOL_NAMES] * 2


def test_a_term_that_contains_an_element_is_left_out() -> None:
    marked = mark("An old<br/> dog", [Span(6, 11)])
    text, numbers = annotate_terms(marked, [0], [find("old dog", "alter Hund", marked.text_only)])
    assert (text, numbers) == (marked, [0])


@pytest.mark.parametrize("kind", ["char", "bpe", "byte_bpe", "unigram"])
def test_an_annotation_adds_only_the_tokens_of_its_symbols_and_translations(kind: TokenizerKind) -> None:
    tokenizer = build_tokenizers(TokenizerConfig(kind=kind, vocab_size=400), [(TEXT, TEXT)] * 3).with_symbols().src
    terms = [find("An", "Ein"), find("old dog", "alter Hund"), find("house", "Haus")]
    text, numbers = annotate_terms(mark(TEXT, []), [], terms)
    (ids,) = encode_marked(tokenizer, [text], [numbers])
    start, translation, end = (tokenizer.first_symbol_id + SYMBOL_NAMES.index(name) for name in TERM_SYMBOL_NAMES)
    source: list[int] = []
    translations: list[list[int]] = []
    in_translation = False
    for i in ids:
        if i in (start, translation, end):
            in_translation = i == translation
            translations += [[]] if in_translation else []
        else:
            (translations[-1] if in_translation else source).append(i)
    assert source == tokenizer.encode([TEXT])[0]
    assert translations == tokenizer.encode([term.translation for term in terms])
