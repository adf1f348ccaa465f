"""Conversion of Moses tokens to plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from sacremoses import MosesDetokenizer
from sacremoses.corpus import NonbreakingPrefixes

from transformer_mt.data.languages import primary_language
from transformer_mt.errors import UserError


def check_moses(language: str) -> None:
    """Raise `UserError` for a language that Moses does not support."""
    if problem := moses_problem(language):
        raise UserError(f"text moses: {problem}")


def moses_problem(language: str) -> str | None:
    """Return an explanation for a language without Moses rules, which sacremoses would silently treat as English."""
    supported = sorted({*NonbreakingPrefixes().available_langs.values(), "ja", "ko"})  # those two by their characters
    if primary_language(language) in supported:
        return None
    return (
        f'Moses has no rules for "{language}", but for {", ".join(supported)}; name the target language '
        "(--tgt-lang; data.tgt_lang of a run), or take the text as raw"
    )


def detokenize(texts: Sequence[str], language: str) -> list[str]:
    """Join Moses tokens, which are separated by spaces, to plain text."""
    detokenizer = MosesDetokenizer(primary_language(language))
    return [cast(str, detokenizer.detokenize(text.split())) for text in texts]
