"""Translation of text with protected elements, which are placed by word alignment."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from document_helpers import has_elements_of

from transformer_mt.data.sources import load_pairs
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.segments import Translation
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.tools.markup.protection import Protector

MARK = Protector().mark
ELEMENTS = ("<b>", "</b>", "<i>", "</i>", "<br/>", "{name}", "%s", "https://a.org", "x.py")
SEARCHES: list[dict[str, Any]] = [{"beam": 1}, {"beam": 4, "n_best": 3}, {"sample": True, "n_best": 2}]


def add_elements(text: str, rng: random.Random, n: int) -> str:
    words = text.split()
    for _ in range(n):
        words.insert(rng.randrange(len(words) + 1), rng.choice(ELEMENTS))
    return " ".join(words)


def assert_has_elements(translation: Translation, text: str) -> None:
    assert has_elements_of(translation.content, MARK(text))


TEXTS = [add_elements(src, random.Random(i), i % 7) for i, (src, _) in enumerate(load_pairs("test")[:24])]


@pytest.fixture(scope="module")
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator(markup="auto")


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "sampling"])
def test_each_translation_has_the_elements_of_its_source(translator: Translator, search: dict[str, Any]) -> None:
    for text, n_best in zip(TEXTS, translator.n_best(TEXTS, **search), strict=True):
        for translation in n_best:
            if MARK(text).elements:
                assert_has_elements(translation, text)


def test_text_without_elements_is_translated_as_without_markup(translator: Translator) -> None:
    texts = [src for src, _ in load_pairs("test")[:8]]
    assert translator.translate(texts) == translator.translate(texts, markup="none")


def test_text_that_consists_of_elements_stays_as_it_is(translator: Translator) -> None:
    texts = ["{name}", " <b> </b> ", "<br/><br/>", ""]
    assert translator.translate(texts) == texts


def test_alignments_of_marked_text_are_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="alignments"):
        translator.n_best(["the {name}"], alignments=True)


def test_parts_keep_elements_across_sentences(translator: Translator) -> None:
    lines = [f"<u>{first} {second}</u>" for first, second in zip(TEXTS[1::2], TEXTS[::2], strict=True)]
    dividing = translator.with_hooks(replace(translator.hooks, split="always"))
    for line, (best, *_) in zip(lines, dividing.n_best(lines), strict=True):
        assert_has_elements(best, line)
        assert best.text.startswith("<u>") and best.text.endswith("</u>")


def test_a_pattern_that_does_not_compile_is_refused() -> None:
    with pytest.raises(UserError, match=r"decoding.protect_patterns: \(: "):
        DecodingConfig().with_options({"protect_patterns": ["("]})
