"""Conversion of Moses tokens to plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from transformer_mt.data.languages import primary_language


def unsupported_language(language: str) -> str | None:
    """Return an error message for a language without Moses rules, which sacremoses would treat as English, or None."""
    from sacremoses.corpus import NonbreakingPrefixes  # importing sacremoses takes more than a second

    # Japanese and Korean have no list of prefixes, but the detokenizer recognises their characters.
    supported = sorted({*NonbreakingPrefixes().available_langs.values(), "ja", "ko"})
    if primary_language(language) in supported:
        return None
    return (
        f'Moses has no rules for "{language}", only for {", ".join(supported)}; set the target language '
        "(--tgt-lang; data.tgt_lang of a run), or take the text as raw"
    )


def detokenize(texts: Sequence[str], language: str) -> list[str]:
    """Join Moses tokens, which are separated by spaces, to plain text."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(primary_language(language))
    return [cast(str, detokenizer.detokenize(text.split())) for text in texts]
