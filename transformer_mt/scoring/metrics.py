"""BLEU and chrF by sacreBLEU (Post 2018), on raw text, with signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.settings import Section

BleuTokenizer = Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"]

# 13a splits at spaces, which these languages do not put between words. The mecab tokenisers need dictionaries that
# may not be there, and a score must not depend on that: so the default for the others is characters.
_BY_LANGUAGE: dict[str, str] = {"zh": "zh"} | dict.fromkeys(["ja", "ko", "th", "lo", "km", "my", "bo"], "char")


class ScoringConfig(Section):
    """How translations are scored."""

    tokenize: BleuTokenizer = "auto"
    """sacreBLEU's tokeniser for BLEU; auto: zh for Chinese, char for Japanese, Korean, Thai and kin, else 13a"""


@dataclass(frozen=True)
class Score:
    """A corpus score from 0 to 100 and the signature that says how it was made."""

    value: float
    signature: str


@dataclass(frozen=True)
class Scores:
    """The scores of one set of translations."""

    bleu: Score
    chrf: Score

    def lines(self) -> list[str]:
        """For the terminal."""
        return [
            f"BLEU {self.bleu.value:.2f}  {self.bleu.signature}",
            f"chrF {self.chrf.value:.2f}  {self.chrf.signature}",
        ]


def bleu_tokenizer(tokenize: BleuTokenizer, tgt_lang: str) -> str:
    """The tokeniser that fits the target language, where none is named."""
    if tokenize != "auto":
        return tokenize
    return _BY_LANGUAGE.get(tgt_lang.lower().replace("_", "-").partition("-")[0], "13a")


def score(hypotheses: Sequence[str], references: Sequence[str], tokenize: str) -> Scores:
    """Corpus BLEU and chrF of detokenised translations against one reference each."""
    bleu = BLEU(tokenize=tokenize)
    chrf = CHRF()
    values = (metric.corpus_score(list(hypotheses), [list(references)]).score for metric in (bleu, chrf))
    signatures = (str(metric.get_signature()) for metric in (bleu, chrf))
    return Scores(*(Score(value, signature) for value, signature in zip(values, signatures, strict=True)))
