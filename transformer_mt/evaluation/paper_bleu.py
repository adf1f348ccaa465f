"""BLEU as in the papers on Multi30k: on lower-cased Moses tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import cast

from sacrebleu.metrics.bleu import BLEU

from transformer_mt.data.languages import primary_language
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import IntervalScore, Scorer, bootstrap

LANGUAGES = ("en", "de", "fr", "cs")
PREPROCESSING = f"lower-cased, normalised and tokenized by sacremoses {version('sacremoses')}"
TEST_2016_FLICKR_PAIRS = 1000
TEST_2016_FLICKR_DE_TOKENS = 12_103  # after the preprocessing of the papers


@dataclass(frozen=True)
class PaperBleu(IntervalScore):
    """BLEU on Moses tokens. The number of reference tokens shows if the text was preprocessed as in the papers."""

    prepared: str
    """Description of the preprocessing, which the signature does not contain."""
    reference_tokens: int
    papers_reference_tokens: int | None
    """Number of reference tokens in the papers, if known for this test set."""

    def explain(self) -> str:
        """Describe the preprocessing, and compare the number of tokens with the papers."""
        text = f"P: BLEU of text {self.prepared}; the references have {self.reference_tokens:,} tokens"
        if self.papers_reference_tokens is None:
            return text
        if self.reference_tokens == self.papers_reference_tokens:
            return f"{text}, as test_2016_flickr.de has in the papers"
        return (
            f"{text}; test_2016_flickr.de has {self.papers_reference_tokens:,} in the papers: if this is that set, it "
            "was prepared differently"
        )


def check_language(language: str) -> None:
    """Raise `UserError` for a target language that Multi30k does not have."""
    if primary_language(language) not in LANGUAGES:
        raise UserError(
            f'--paper multi30k: the data set has no "{language}", only {", ".join(LANGUAGES)}; leave it out, or name '
            "the target language (--tgt-lang; data.tgt_lang of a run)"
        )


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str], scorer: Scorer) -> PaperBleu:
    """Preprocess raw text as in the papers, or lower-case Moses tokens, and compute BLEU."""
    is_raw, language = scorer.text == "raw", scorer.tgt_lang
    hypotheses, references = (
        preprocess(texts, language) if is_raw else [text.lower() for text in texts]
        for texts in (hypotheses, references)
    )
    score = bootstrap({"P": BLEU(tokenize="none", force=True)}, hypotheses, references)["P"]
    is_known = primary_language(language) == "de" and len(references) == TEST_2016_FLICKR_PAIRS
    return PaperBleu(
        score.value,
        score.signature,
        score.interval,
        prepared=PREPROCESSING if is_raw else "given as Moses tokens, lower-cased",
        reference_tokens=sum(len(text.split()) for text in references),
        papers_reference_tokens=TEST_2016_FLICKR_DE_TOKENS if is_known else None,
    )


def preprocess(texts: Sequence[str], language: str) -> list[str]:
    """Lower-case, normalise punctuation, and tokenize with escaped special characters.

    The order is that of Multi30k (lowercase.perl, normalize-punctuation.perl, tokenizer.perl). It matters because the
    tokenizer recognises abbreviations by their case: "Bart." is one, "bart." is a beard and a full stop.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes more than a second

    language = primary_language(language)
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [cast(str, tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True)) for text in texts]
