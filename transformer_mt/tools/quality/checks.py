"""Checks of the training pairs for `tmt check`: the filters of `data.filters` with their defaults, and a few more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from transformer_mt.data.corpus import PairExample
from transformer_mt.system.log import Severity
from transformer_mt.tools.quality import signals
from transformer_mt.tools.quality.corpus_filters import (
    DuplicateFilter,
    NearDuplicateFilter,
    NearOverlapFilter,
    OverlapFilter,
    UnrelatedFilter,
)
from transformer_mt.tools.quality.filter_base import SIDE_NAMES, Filter, FindReason
from transformer_mt.tools.quality.pair_filters import (
    CopyFilter,
    LanguageFilter,
    LengthFilter,
    NumbersFilter,
    RatioFilter,
    RepetitionFilter,
    ScriptFilter,
    UrlsFilter,
)

NEVER = 2.0  # as a share: no number of pairs has this severity


class CorpusCheck(NamedTuple):
    """A problem that pairs can have, and the shares of the pairs from which it is a warning or an error."""

    group: str
    name: str
    message: str  # completes "1,234 pairs ..."
    finder: Filter | FindReason  # finds the pairs
    warning_share: float = NEVER
    error_share: float = NEVER
    remedy: str = ""
    error_advice: str = ""  # appended to the message if the problem is an error
    compares_sides: bool = False  # skipped in misaligned ranges, where it would find every line

    @property
    def is_stateful(self) -> bool:
        """Return whether the check must see all pairs in order."""
        return isinstance(self.finder, Filter) and self.finder.is_stateful


def _in_sides(find: Callable[[str], object]) -> FindReason:
    """Return a function that names the sides in which `find` finds something."""

    def find_reason(src: str, tgt: str) -> str | None:
        return " and ".join(name for name, text in zip(SIDE_NAMES, (src, tgt), strict=True) if find(text)) or None

    return find_reason


def _different_brackets(src: str, tgt: str) -> str | None:
    return "brackets differ" if signals.count_brackets(src) != signals.count_brackets(tgt) else None


_HTML = r"regex: {drop: '</?[a-zA-Z][^<>]*>|&#?\w+;'}"

CHECKS = [
    CorpusCheck(
        "content",
        "empty",
        "have an empty side",
        _in_sides(lambda text: not text.strip()),
        warning_share=0.01,
        error_share=0.2,
        remedy="length",
    ),
    CorpusCheck(
        "content",
        "unrelated",
        "have sides that are not translations of each other",
        UnrelatedFilter(),
        warning_share=0.02,
        error_share=0.2,
        remedy="unrelated",
        compares_sides=True,
    ),
    CorpusCheck(
        "content",
        "language",
        "have a side in another language",
        LanguageFilter(),
        warning_share=0.005,
        error_share=0.2,
        remedy="language",
        error_advice="are data.src_lang and data.tgt_lang right, or exchanged?",
    ),
    CorpusCheck(
        "content",
        "script",
        "have a side in another script",
        ScriptFilter(),
        warning_share=0.005,
        error_share=0.2,
        remedy="script",
    ),
    CorpusCheck(
        "content", "copy", "were not translated", CopyFilter(), warning_share=0.01, error_share=0.2, remedy="copy"
    ),
    CorpusCheck(
        "content",
        "length",
        "have more than 200 words",
        LengthFilter(min=0),
        warning_share=0.001,
        remedy="length: {max: 200}",
    ),
    CorpusCheck(
        "content",
        "ratio",
        "have one side much longer than the other",
        RatioFilter(),
        warning_share=0.01,
        error_share=0.2,
        remedy="ratio",
        compares_sides=True,
    ),
    CorpusCheck(
        "content",
        "numbers",
        "have different numbers",
        NumbersFilter(),
        warning_share=0.01,
        error_share=0.2,
        remedy="numbers",
        compares_sides=True,
    ),
    CorpusCheck(
        "content",
        "urls",
        "have a URL or e-mail address on one side only",
        UrlsFilter(),
        warning_share=0.01,
        remedy="urls",
        compares_sides=True,
    ),
    CorpusCheck(
        "content", "repetition", "repeat words or phrases", RepetitionFilter(), warning_share=0.005, remedy="repetition"
    ),
    CorpusCheck(
        "content", "brackets", "have different brackets", _different_brackets, warning_share=0.05, compares_sides=True
    ),
    CorpusCheck(
        "content",
        "mojibake",
        "were decoded with a wrong encoding",
        _in_sides(signals.has_mojibake),
        warning_share=0.001,
        error_share=0.2,
        remedy="normalize: {mojibake: true}",
    ),
    CorpusCheck(
        "content",
        "control characters",
        "have control characters",
        _in_sides(signals.find_control_characters),
        warning_share=0.001,
        remedy="normalize",
    ),
    CorpusCheck(
        "content",
        "invisible characters",
        "have invisible characters",
        _in_sides(signals.find_invisible_characters),
        warning_share=0.01,
        remedy="normalize",
    ),
    CorpusCheck(
        "content",
        "line separators",
        "have a character that other programs take for a line end",
        _in_sides(signals.find_line_separators),
        warning_share=0.001,
        remedy="normalize",
    ),
    CorpusCheck(
        "content",
        "html",
        "have HTML tags or references",
        _in_sides(signals.find_html),
        warning_share=0.001,
        remedy=_HTML,
    ),
    CorpusCheck(
        "duplicates", "pair", "repeat an earlier pair", DuplicateFilter(), warning_share=0.1, remedy="duplicate"
    ),
    CorpusCheck(
        "duplicates",
        "near pair",
        "are similar to another pair",
        NearDuplicateFilter(),
        warning_share=0.1,
        remedy="near_duplicate",
    ),
    CorpusCheck(
        "duplicates",
        "source",
        "repeat an earlier source",
        DuplicateFilter(of="src"),
        warning_share=0.5,
        remedy="duplicate: {of: src}",
    ),
    CorpusCheck(
        "duplicates",
        "target",
        "repeat an earlier target",
        DuplicateFilter(of="tgt"),
        warning_share=0.5,
        remedy="duplicate: {of: tgt}",
    ),
    CorpusCheck(
        "overlap",
        "held-out text",
        "are in the validation or a test set",
        OverlapFilter(),
        warning_share=0.001,
        error_share=0.1,
        remedy="overlap",
    ),
    CorpusCheck(
        "overlap",
        "near held-out text",
        "are similar to text of the validation or a test set",
        NearOverlapFilter(),
        warning_share=0.01,
        remedy="near_overlap",
    ),
]


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
