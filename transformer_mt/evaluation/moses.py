"""Moses text: what the papers on Multi30k score, and the way back from Moses tokens to plain text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import cast

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from transformer_mt.data.languages import primary_language
from transformer_mt.errors import UserError

PREPARED = f"lower-cased, with punctuation and tokens by sacremoses {version('sacremoses')}"

MULTI30K = ("en", "de", "fr", "cs")


def check_paper(language: str) -> None:
    """Raise `UserError` for a target language that the papers on Multi30k do not have."""
    if primary_language(language) not in MULTI30K:
        raise UserError(
            f'--paper multi30k: the data set has no "{language}" (but {", ".join(MULTI30K)}); leave it out, or name '
            "the target language (--tgt-lang; data.tgt_lang of a run)"
        )


def check_moses(language: str) -> None:
    """Raise `UserError` for a language that Moses does not know."""
    if problem := moses_problem(language):
        raise UserError(f"text moses: {problem}")


def moses_problem(language: str) -> str | None:
    """What is wrong with a language that sacremoses would silently take for English, or for none."""
    known = sorted({*NonbreakingPrefixes().available_langs.values(), "ja", "ko"})  # whose characters it knows
    if primary_language(language) in known:
        return None
    return (
        f'Moses has no rules for "{language}", but for {", ".join(known)}; name the target language '
        "(--tgt-lang; data.tgt_lang of a run), or take the text as raw"
    )


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
