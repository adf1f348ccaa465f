"""Checks of the training pairs for `tmt check`: the filters of `data.filters` with their defaults, and a few more."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from transformer_mt.data.quality import signals
from transformer_mt.data.quality.corpus_filters import (
    DuplicateFilter,
    NearDuplicateFilter,
    NearOverlapFilter,
    OverlapFilter,
    UnrelatedFilter,
)
from transformer_mt.data.quality.filter_base import SIDE_NAMES, Filter, FindReason
from transformer_mt.data.quality.pair_filters import (
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
