"""Checks of the training pairs for `tmt check`: the rules of `data.filters` with their defaults, and a few more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_mt.data.blocks import log_progress
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.quality import signals
from transformer_mt.data.quality.alignment import Segment
from transformer_mt.data.quality.corpus_filters import DuplicateFilter, OverlapFilter, UnrelatedFilter
from transformer_mt.data.quality.filtering import MAX_EXAMPLES, SAMPLE_SIZE, EvenSample, describe_pair, read_blocks
from transformer_mt.data.quality.findings import Finding, Histogram
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
from transformer_mt.data.quality.rules import (
    SIDE_NAMES,
    Block,
    Filter,
    FilterContext,
    Judge,
    judge_pairs,
)
from transformer_mt.data.quality.scripts import split_units
from transformer_mt.errors import UserError
from transformer_mt.system.severity import Severity

NEVER = 2.0  # as a share: no number of pairs has this severity
LONGEST, BIN = 100, 5  # words or characters in the histogram of lengths

Fault = Callable[[str, str], str | None]
"""Function that returns what is wrong with a pair, or None."""


class Check(NamedTuple):
    """A kind of fault, and the shares of the pairs from which it is a warning or an error."""

    group: str
    name: str
    message: str  # completes "1,234 pairs ..."
    rule: Filter | Fault
    warning: float
    error: float
    remedy: str = ""
    compares_sides: bool = False  # it says nothing where lines have slid


def _in_sides(find: Callable[[str], object]) -> Fault:
    """Return a function that names the sides in which `find` finds something."""

    def fault(src: str, tgt: str) -> str | None:
        return " and ".join(name for name, text in zip(SIDE_NAMES, (src, tgt), strict=True) if find(text)) or None

    return fault


def _different_brackets(src: str, tgt: str) -> str | None:
    return "brackets differ" if signals.count_brackets(src) != signals.count_brackets(tgt) else None


_HTML = r"regex: {drop: '</?[a-zA-Z][^<>]*>|&#?\w+;'}"

CHECKS = [
    Check("content", "empty", "have an empty side", _in_sides(lambda text: not text.strip()), 0.01, 0.2, "length"),
    Check("content", "unrelated", "have sides that share no meaning", UnrelatedFilter(), 0.02, 0.2, "unrelated", True),
    Check("content", "language", "have a side in another language", LanguageFilter(), 0.005, 0.2, "language"),
    Check("content", "script", "have a side in another script", ScriptFilter(), 0.005, 0.2, "script"),
    Check("content", "copy", "were not translated", CopyFilter(), 0.01, 0.2, "copy"),
    Check("content", "length", "have more than 200 words", LengthFilter(min=0), 0.001, NEVER, "length: {max: 200}"),
    Check("content", "ratio", "have one side much longer than the other", RatioFilter(), 0.01, 0.2, "ratio", True),
    Check("content", "numbers", "have different numbers", NumbersFilter(), 0.01, 0.2, "numbers", True),
    Check("content", "urls", "have an address on one side only", UrlsFilter(), 0.01, NEVER, "urls", True),
    Check("content", "repetition", "repeat words or phrases", RepetitionFilter(), 0.005, NEVER, "repetition"),
    Check("content", "brackets", "have different brackets", _different_brackets, 0.05, NEVER, "", True),
    Check(
        "content",
        "mojibake",
        "were decoded with a wrong encoding",
        _in_sides(signals.has_mojibake),
        0.001,
        0.2,
        "normalize: {mojibake: true}",
    ),
    Check(
        "content",
        "control characters",
        "have control characters",
        _in_sides(signals.find_control_characters),
        0.001,
        NEVER,
        "normalize",
    ),
    Check(
        "content",
        "invisible characters",
        "have characters that draw nothing",
        _in_sides(signals.find_invisible_characters),
        0.01,
        NEVER,
        "normalize",
    ),
    Check(
        "content",
        "line separators",
        "have a character that other programs take for a line end",
        _in_sides(signals.find_line_separators),
        0.001,
        NEVER,
        "normalize",
    ),
    Check("content", "html", "have HTML tags or references", _in_sides(signals.find_html), 0.001, NEVER, _HTML),
    Check("duplicates", "pair", "repeat an earlier pair", DuplicateFilter(), 0.1, NEVER, "duplicate"),
    Check(
        "duplicates",
        "source",
        "repeat an earlier source",
        DuplicateFilter(of="src"),
        0.5,
        NEVER,
        "duplicate: {of: src}",
    ),
    Check(
        "duplicates",
        "target",
        "repeat an earlier target",
        DuplicateFilter(of="tgt"),
        0.5,
        NEVER,
        "duplicate: {of: tgt}",
    ),
    Check("overlap", "held-out text", "are in the validation or a test set", OverlapFilter(), 0.001, 0.1, "overlap"),
]


@dataclass(frozen=True)
class Task:
    """The rows of a corpus that one process checks."""

    corpus: ParallelCorpus
    languages: tuple[str, str]
    held_out: Mapping[str, ParallelCorpus]
    slid: Sequence[Segment]  # rows whose sides do not belong together
    first: int
    end: int

    def context(self) -> FilterContext:
        """Return what a rule may know about the corpus."""
        return FilterContext(
            languages=self.languages,
            n_corpus=len(self.corpus),
            n_pairs=len(self.corpus),
            sample=partial(self.corpus.sample, SAMPLE_SIZE),
            pairs=partial(iter, self.corpus),
            held_out=self.held_out,
            folder=Path(),  # no check needs temporary files
        )

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks that begin in the rows."""
        for block in log_progress(read_blocks(self.corpus), "checked", len(self.corpus)):
            if len(block) and self.first <= block.rows[0] < self.end:
                yield block

    def slid_indices(self, block: Block) -> set[int]:
        """Return the indices of the pairs of a block that lie in a slid segment."""
        inside = [(block.rows >= segment.first) & (block.rows < segment.end) for segment in self.slid]
        return set(np.flatnonzero(np.logical_or.reduce(inside)).tolist()) if inside else set()


@dataclass
class Result:
    """What the checks found in some rows."""

    counts: Counter[str] = field(default_factory=Counter[str])  # by name of the check
    examples: dict[str, EvenSample] = field(default_factory=dict[str, EvenSample])
    lengths: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))  # by bin


def check_pairs(
    corpus: ParallelCorpus,
    languages: tuple[str, str],
    held_out: Mapping[str, ParallelCorpus],
    slid: Sequence[Segment],
    workers: int,
) -> tuple[list[Finding], list[Histogram]]:
    """Apply all checks to all pairs, each independently, on several processes.

    In the segments `slid`, the checks that compare both sides are left out.
    """
    bounds = np.linspace(0, len(corpus), workers + 1).astype(int).tolist()
    tasks = [Task(corpus, languages, held_out, slid, first, end) for first, end in pairwise(bounds)]
    if workers == 1:
        results = [examine(tasks[0], CHECKS)]
    else:
        is_stateful = [isinstance(check.rule, DuplicateFilter) for check in CHECKS]
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:  # forked threads of libraries could hang
            results = [*pool.map(_examine_stateless, tasks)]
        stateful = [check for check, needs_all in zip(CHECKS, is_stateful, strict=True) if needs_all]
        results.append(examine(replace(tasks[0], end=len(corpus)), stateful, count_lengths=False))
    findings = [finding for check in CHECKS if (finding := summarise(check, results, len(corpus)))]
    return findings, [_length_histogram(languages, results)]


def _examine_stateless(task: Task) -> Result:
    return examine(task, [check for check in CHECKS if not isinstance(check.rule, DuplicateFilter)])


def examine(task: Task, checks: Sequence[Check], *, count_lengths: bool = True) -> Result:
    """Apply checks to the blocks of a task. A rule that does not know the languages is left out."""
    judges = {check: judge for check in checks if (judge := make_judge(check, task.context()))}
    result = Result(examples={check.name: EvenSample() for check in judges})
    for block in task.blocks():
        slid = task.slid_indices(block)
        for check, judge in judges.items():
            for i, reason in judge(block).items():
                if not (check.compares_sides and i in slid):
                    result.counts[check.name] += 1
                    result.examples[check.name].add(partial(describe_pair, task.corpus, block, i, reason))
        if count_lengths:
            for counts, texts in zip(result.lengths, (block.src, block.tgt), strict=True):
                counts.update(min(LONGEST, len(split_units(text))) // BIN for text in texts)
    return result


def make_judge(check: Check, context: FilterContext) -> Judge | None:
    """Return the judge of a check, or None if its rule does not know the languages."""
    if not isinstance(check.rule, Filter):
        return judge_pairs(check.rule)
    try:
        return check.rule.start(context)
    except UserError:  # language detection or the table of scripts does not know a language
        return None


def summarise(check: Check, results: Sequence[Result], total: int) -> Finding | None:
    """Return the finding of a check, or None if no pair has the fault."""
    count = sum(result.counts[check.name] for result in results)
    if not count:
        return None
    found = [
        item for result in results if check.name in result.examples for item in result.examples[check.name].items()
    ]
    share = count / total
    severity = Severity.ERROR if share >= check.error else Severity.WARNING if share >= check.warning else Severity.OK
    return Finding(check.group, check.name, severity, check.message, count, total, found[:MAX_EXAMPLES], check.remedy)


def _length_histogram(languages: tuple[str, str], results: Sequence[Result]) -> Histogram:
    """Return the lengths of the sentences of both languages. The last bin holds all longer ones."""
    counts: dict[str, list[int]] = {}
    for side, language in enumerate(languages):
        totals = sum((result.lengths[side] for result in results), Counter[int]())
        counts[language] = [totals[i] for i in range(LONGEST // BIN + 1)]
    edges = [*range(0, LONGEST + 2 * BIN, BIN)]
    return Histogram(f"words or characters per sentence (the last bar: {LONGEST} or more)", edges, counts)
