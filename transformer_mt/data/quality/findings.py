"""Findings about a corpus, as `tmt check` reports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformer_mt.data.quality.rules import AffectedPair
from transformer_mt.system.severity import Severity


@dataclass(frozen=True)
class Finding:
    """A kind of fault, with the number of pairs that have it."""

    group: str  # "alignment", "duplicates", "overlap", "content", "tokenizer"
    name: str  # such as "empty" or "near duplicates"
    severity: Severity
    message: str  # one sentence
    count: int
    total: int  # pairs that were examined
    examples: Sequence[AffectedPair] = ()
    remedy: str = ""  # rule of `data.filters` that removes or repairs it, as YAML; or advice

    @property
    def share(self) -> float:
        """Return the share of the examined pairs."""
        return self.count / max(1, self.total)


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
