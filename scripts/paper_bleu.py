"""Compute BLEU as in the papers on Multi30k: on lower-cased Moses tokens.

    python scripts/paper_bleu.py HYPOTHESES REFERENCES LANGUAGE [--moses]

The files have a text per line: raw, or Moses tokens (`--moses`). Not comparable with the BLEU of `tmt evaluate`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from common import run_script
from sacrebleu.metrics.bleu import BLEU
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from transformer_mt.data.text_files import read_aligned_files

LANGUAGES = ("en", "de", "fr", "cs")


class PaperBleu(NamedTuple):
    """BLEU on Moses tokens. `test_2016_flickr.de` has 12,103 reference tokens if it was prepared as in the papers."""

    value: float
    signature: str
    reference_tokens: int


def paper_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, *, is_moses: bool = False
) -> PaperBleu:
    """Preprocess raw text as in the papers, or lower-case Moses tokens, and compute BLEU."""
    hypotheses, references = (
        [text.lower() for text in texts] if is_moses else preprocess(texts, language)
        for texts in (hypotheses, references)
    )
    bleu = BLEU(tokenize="none", force=True)
    value = bleu.corpus_score(hypotheses, [references]).score
    return PaperBleu(value, str(bleu.get_signature()), sum(len(text.split()) for text in references))


def preprocess(texts: Sequence[str], language: str) -> list[str]:
    """Lower-case, normalise punctuation, and tokenize with escaped special characters.

    The order is that of Multi30k (lowercase.perl, normalize-punctuation.perl, tokenizer.perl). It matters because the
    tokenizer recognises abbreviations by their case: "Bart." is one, "bart." is a beard and a full stop.
    """
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [cast(str, tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True)) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hypotheses", type=Path)
    parser.add_argument("references", type=Path)
    parser.add_argument("language", choices=LANGUAGES)
    parser.add_argument("--moses", action="store_true", help="the files contain Moses tokens")
    args = parser.parse_args()
    hypotheses, references = read_aligned_files(args.hypotheses, args.references)
    score = paper_bleu(hypotheses, references, args.language, is_moses=args.moses)
    print(f"P {score.value:.2f}, {score.reference_tokens:,} reference tokens, {score.signature}")


if __name__ == "__main__":
    run_script(main)
