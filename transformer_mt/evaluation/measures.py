"""What a finished translation is measured by: BLEU, chrF, chrF++ and TER, and the BLEU of the papers on Multi30k.

Each is sacreBLEU's, with its signature and its 95 % interval. Validation while training takes the two of `metrics.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from transformer_mt.data.languages import primary_language
from transformer_mt.evaluation.bleu_tokenizers import TER_OF_CHARACTERS, TER_OF_NO_WORDS
from transformer_mt.evaluation.metrics import Score, Scorer

RESAMPLES = 1000  # of the test set, drawn with replacement; from them the interval
MOST_PAIRS = 10_000  # with an interval: of so many, the resamples of chrF++ take 1 GB at once
NO_TER = "TER is left out: it counts words, and the text has no spaces between them"
PAPERS_TOKENS = 12_103  # of the references test_2016_flickr.de, as the papers on Multi30k have them
PAPERS_PAIRS = 1000


@dataclass(frozen=True)
class Measure(Score):
    """A score and where it would lie in 95 % of test sets like this one (the percentile interval, Efron 1979); None:
    too many pairs to draw them again."""

    interval: tuple[float, float] | None

    def line(self, name: str) -> str:
        """For the terminal."""
        interval = "{:.2f} to {:.2f}".format(*self.interval) if self.interval else "-"
        return f"{name:<6} {self.value:6.2f}  {interval:<16}  {self.signature}"


@dataclass(frozen=True)
class PapersMeasure(Measure):
    """Metric P. Whether its references are those of the papers can be told by the number of their tokens."""

    prepared: str  # how the text was, of which the signature knows nothing
    reference_tokens: int
    papers_reference_tokens: int | None  # where it is known

    def account(self) -> str:
        """What the number of tokens says."""
        said = f"P: BLEU of text {self.prepared}; the references have {self.reference_tokens:,} tokens"
        if self.papers_reference_tokens is None:
            return said
        if self.reference_tokens == self.papers_reference_tokens:
            return f"{said}, as test_2016_flickr.de has in the papers"
        return (
            f"{said}; test_2016_flickr.de has {self.papers_reference_tokens:,} in the papers: if that is your set, it "
            "was prepared otherwise"
        )


def make_metrics(standard: Scorer) -> dict[str, Metric]:
    """sacreBLEU's metrics by name, as they fit the language and the text."""
    lowercase, language = standard.lowercase, primary_language(standard.tgt_lang)
    metrics: dict[str, Metric] = {
        "BLEU": BLEU(tokenize=standard.tokenize, lowercase=lowercase),
        "chrF": CHRF(lowercase=lowercase),
        "chrF++": CHRF(word_order=2, lowercase=lowercase),
    }
    if language not in TER_OF_NO_WORDS:
        is_cut = language in TER_OF_CHARACTERS
        metrics["TER"] = TER(normalized=is_cut, asian_support=is_cut)
    return metrics


def measure(hypotheses: Sequence[str], references: Sequence[str], standard: Scorer) -> dict[str, Measure]:
    """All but P, by name."""
    metrics = make_metrics(standard)
    hypotheses, references = standard.plain(hypotheses), standard.plain(references)
    return {name: _take(metric, hypotheses, references) for name, metric in metrics.items()}


def measure_as_papers(hypotheses: Sequence[str], references: Sequence[str], standard: Scorer) -> PapersMeasure:
    """P: BLEU of the papers' text, whose tokens are taken as they are. Moses text is only lower-cased."""
    from transformer_mt.evaluation import moses

    is_raw, language = standard.text == "raw", standard.tgt_lang
    hypotheses, references = (
        moses.papers_texts(texts, language) if is_raw else [text.lower() for text in texts]
        for texts in (hypotheses, references)
    )
    found = _take(BLEU(tokenize="none", force=True), hypotheses, references)
    is_known = primary_language(language) == "de" and len(references) == PAPERS_PAIRS
    return PapersMeasure(
        found.value,
        found.signature,
        found.interval,
        prepared=moses.PREPARED if is_raw else "given as Moses tokens, lower-cased",
        reference_tokens=sum(len(text.split()) for text in references),
        papers_reference_tokens=PAPERS_TOKENS if is_known else None,
    )


def _take(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Measure:
    has_interval = len(hypotheses) <= MOST_PAIRS
    resampled = _remember_resamples(metric)
    found = metric.corpus_score(hypotheses, [references], n_bootstrap=RESAMPLES if has_interval else 1)
    return Measure(found.score, str(metric.get_signature()), _middle(resampled) if has_interval else None)


def _remember_resamples(metric: Any) -> list[float]:
    """Will hold the score of each; sacreBLEU itself gives out only their mean, and half of how far they spread.

    It scores most resamples as numpy's floats, hopeless ones as Python's, and fails at the mean of both (2.6.0): so all
    of them become numpy's.
    """
    compute, scores = metric._compute_score_from_stats, list[float]()

    def remember(stats: Any) -> Any:
        found = compute(stats)
        if isinstance(stats, np.ndarray):  # a resample
            found.score = np.float32(found.score)
            scores.append(float(found.score))
        return found

    metric._compute_score_from_stats = remember
    return scores


def _middle(scores: Sequence[float]) -> tuple[float, float]:
    """Where 95 % of them lie, with as many below as above."""
    outside = len(scores) // 40
    return sorted(scores)[outside], sorted(scores, reverse=True)[outside]
