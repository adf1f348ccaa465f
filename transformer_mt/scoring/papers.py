"""Moses text: what the papers on Multi30k score, and the way back from Moses tokens to plain text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import cast

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

from transformer_mt.scoring.metrics import primary_language

PREPARED = f"lower-cased, with punctuation and tokens by sacremoses {version('sacremoses')}"


def papers_texts(texts: Sequence[str], language: str) -> list[str]:
    """Lower-cased, then with Moses' punctuation, then its tokens, special characters escaped.

    This is how Multi30k itself was prepared (lowercase.perl, normalize-punctuation.perl, tokenizer.perl, each for the
    language). Lower case comes before tokens: Moses knows abbreviations by their case ("Bart." is one, "bart." is
    a beard and a full stop).
    """
    language = primary_language(language)
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [cast(str, tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True)) for text in texts]


def detokenized(texts: Sequence[str], language: str) -> list[str]:
    """Moses tokens with spaces between them, as plain text."""
    detokenizer = MosesDetokenizer(primary_language(language))
    return [cast(str, detokenizer.detokenize(text.split())) for text in texts]
