"""BLEU and chrF by sacreBLEU (Post 2018), on plain text, with signatures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.config.section import Section
from transformer_mt.data.languages import primary_language
from transformer_mt.evaluation.bleu_tokenizers import BLEU_TOKENIZERS

BleuTokenizer = Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"]
TextKind = Literal["raw", "moses"]


class ScoringConfig(Section):
    """How translations are scored."""

    tokenize: BleuTokenizer = "auto"
    """sacreBLEU's tokeniser for BLEU; auto: zh for Chinese, char for Japanese, Korean, Thai and kin, else 13a"""
    text: TextKind = "raw"
    """what the texts of all sets are: raw, or moses: Moses tokens, detokenised first, and scored without case"""

    def problems(self, tgt_lang: str) -> Iterator[tuple[str, str]]:
        """Which key does not fit the language, or what is installed, and what to do."""
        if self.text == "moses":
            from transformer_mt.evaluation.moses import moses_problem

            if what := moses_problem(tgt_lang):
                yield "text", what
        try:
            BLEU(tokenize=bleu_tokenizer(self.tokenize, tgt_lang))
        except (ImportError, RuntimeError):  # without MeCab
            yield "tokenize", f"{self.tokenize} needs one more package: pip install 'sacrebleu[{self.tokenize[:2]}]'"


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


@dataclass(frozen=True)
class Scorer:
    """By what translations into a language are judged: sacreBLEU's tokeniser, and what kind of text they are."""

    tokenize: str
    tgt_lang: str
    text: TextKind = "raw"

    @classmethod
    def of(cls, config: ScoringConfig, tgt_lang: str) -> Scorer:
        """As a configuration has it. Raises `UserError` for Moses text in a language of which Moses knows no rules."""
        if config.text == "moses":
            from transformer_mt.evaluation import moses

            moses.check_moses(tgt_lang)
        return cls(bleu_tokenizer(config.tokenize, tgt_lang), tgt_lang, config.text)

    @property
    def lowercase(self) -> bool:
        """Moses text is lower-cased as a rule, so case is not looked at, and signatures say `case:lc`."""
        return self.text == "moses"

    def plain(self, texts: Sequence[str]) -> list[str]:
        """As a reader would have them."""
        if self.text == "raw":
            return list(texts)
        from transformer_mt.evaluation.moses import detokenized

        return detokenized(texts, self.tgt_lang)

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
        """BLEU and chrF: what is cheap enough to be looked at again and again."""
        return score(self.plain(hypotheses), self.plain(references), self.tokenize, self.lowercase)


def bleu_tokenizer(tokenize: BleuTokenizer, tgt_lang: str) -> str:
    """The tokeniser that fits the target language, where none is named."""
    return BLEU_TOKENIZERS.get(primary_language(tgt_lang), "13a") if tokenize == "auto" else tokenize


def score(hypotheses: Sequence[str], references: Sequence[str], tokenize: str, lowercase: bool = False) -> Scores:
    """Corpus BLEU and chrF of detokenised translations against one reference each."""
    bleu, chrf = BLEU(tokenize=tokenize, lowercase=lowercase), CHRF(lowercase=lowercase)
    values = (metric.corpus_score(list(hypotheses), [list(references)]).score for metric in (bleu, chrf))
    signatures = (str(metric.get_signature()) for metric in (bleu, chrf))
    return Scores(*(Score(value, signature) for value, signature in zip(values, signatures, strict=True)))
