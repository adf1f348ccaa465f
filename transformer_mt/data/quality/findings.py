"""Findings about a corpus, as `tmt check` reports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_mt.data.quality.filter_base import PairExample
from transformer_mt.system.severity import Severity

N_SHOWN = 3  # examples for people
LABELS = {Severity.OK: "info", Severity.WARNING: "warning", Severity.ERROR: "error"}
MAX_FOREIGN_SHARE = 0.5  # of the pairs; with more in other languages, the configured languages are wrong
WRONG_LANGUAGES = "not ready to train: data.src_lang and data.tgt_lang do not fit the text; exchange or correct them"
VERDICTS = {
    Severity.OK: "ready to train; findings marked info need no action",
    Severity.WARNING: "ready to train, but look at the warnings first: they may cost quality",
    Severity.ERROR: "not ready to train: repair the errors first, because they spoil the training",
}
OVERLAP_VERDICT = "ready to train, but remove overlap with held-out text first (data.filters): it makes scores too high"
"""In place of the verdict `OK`."""
OVERLAP_ADVICE = "; always remove overlap with held-out text (data.filters): it makes scores too high"


@dataclass(frozen=True)
class Finding:
    """A problem of the corpora, with the number of pairs that have it."""

    group: str  # "alignment", "duplicates", "overlap", "content", "tokenizer"
    name: str  # such as "empty" or "mojibake"
    severity: Severity
    message: str  # completes `1,234 pairs ...`, or describes the lines or tokens that are counted
    count: int  # affected pairs, lines, tokens or characters
    total: int  # of which `count` are affected
    examples: Sequence[PairExample] = ()  # at most 100
    remedy: str = ""  # item of `data.filters` that removes or repairs it, as YAML; or advice

    @property
    def share(self) -> float:
        """Return `count / total`."""
        return self.count / max(1, self.total)

    @property
    def has_wrong_languages(self) -> bool:
        """Return whether the languages of the configuration are wrong, because most pairs are in others."""
        return self.name == "language" and self.share > MAX_FOREIGN_SHARE

    def select_examples(self) -> list[PairExample]:
        """Return at most three examples, spread evenly."""
        rows = np.linspace(0, len(self.examples) - 1, min(N_SHOWN, len(self.examples))).astype(int).tolist()
        return [self.examples[row] for row in rows]


@dataclass(frozen=True)
class Histogram:
    """Counts of a quantity, such as the words of a sentence."""

    title: str
    edges: Sequence[float]  # of the bins, ascending
    counts: Mapping[str, Sequence[int]]  # by series, such as "en" and "de"; one fewer than edges


@dataclass(frozen=True)
class CorpusReport:
    """All findings about the corpora of a configuration."""

    name: str
    sizes: Mapping[str, int]  # pairs of train, validation and the test sets
    findings: Sequence[Finding]  # the most severe first
    histograms: Sequence[Histogram]

    @property
    def severity(self) -> Severity:
        """Return the highest severity."""
        return max((finding.severity for finding in self.findings), default=Severity.OK)

    @property
    def has_wrong_languages(self) -> bool:
        """Return whether the languages of a source are wrong."""
        return any(finding.has_wrong_languages for finding in self.findings)

    @property
    def verdict(self) -> str:
        """Return what the findings mean for a training."""
        if self.has_wrong_languages:
            return WRONG_LANGUAGES
        if not self.findings:
            return "ready to train"
        has_overlap = any(finding.group == "overlap" for finding in self.findings)
        if not has_overlap:
            return VERDICTS[self.severity]
        return OVERLAP_VERDICT if self.severity is Severity.OK else VERDICTS[self.severity] + OVERLAP_ADVICE
