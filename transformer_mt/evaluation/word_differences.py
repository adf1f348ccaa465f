"""Words in which a translation and its reference differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import regex

from transformer_mt.data.languages import primary_language
from transformer_mt.evaluation.metrics import BLEU_TOKENIZERS

_WORDS = regex.compile(r"[\w\p{M}]+|\s+|.", regex.DOTALL)
_CHARACTERS = regex.compile(r"\X")


class TextPart(NamedTuple):
    """Consecutive words of a text that are all in the other text, too, or all missing there."""

    text: str
    is_common: bool


def mark_differences(translation: str, reference: str, language: str) -> tuple[list[TextPart], list[TextPart]]:
    """Split both texts where they begin or cease to agree. The parts of a text, joined, are the text.

    Languages whose BLEU counts characters are compared by character.
    """
    tokens = _CHARACTERS if primary_language(language) in BLEU_TOKENIZERS else _WORDS
    ours, theirs = (tokens.findall(text) for text in (translation, reference))
    our_words, their_words = ([i for i, token in enumerate(text) if not token.isspace()] for text in (ours, theirs))
    matcher = SequenceMatcher(None, [ours[i] for i in our_words], [theirs[i] for i in their_words], autojunk=False)
    blocks = matcher.get_matching_blocks()
    return (
        list(_join(ours, {our_words[block.a + k] for block in blocks for k in range(block.size)})),
        list(_join(theirs, {their_words[block.b + k] for block in blocks for k in range(block.size)})),
    )


def _join(tokens: Sequence[str], common: set[int]) -> Iterator[TextPart]:
    """Yield the tokens as few parts. White space is common unless it is between two different words."""
    part, is_common = "", True
    for i, token in enumerate(tokens):
        now = i in common or (token.isspace() and (is_common or i + 1 in common or i + 1 == len(tokens)))
        if part and now != is_common:
            yield TextPart(part, is_common)
            part = ""
        part, is_common = part + token, now
    if part:
        yield TextPart(part, is_common)
