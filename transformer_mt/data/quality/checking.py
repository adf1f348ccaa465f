"""Apply the checks to the training pairs, on several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from transformer_mt.data.blocks import log_progress
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.quality.alignment import Segment
from transformer_mt.data.quality.checks import CHECKS, CorpusCheck
from transformer_mt.data.quality.filter_base import Block, Filter, FilterContext, FilterFunction, for_each_pair
from transformer_mt.data.quality.filtering import MAX_EXAMPLES, SAMPLE_SIZE, EvenSample, describe_pair, read_blocks
from transformer_mt.data.quality.findings import Finding, Histogram
from transformer_mt.data.quality.scripts import split_units
from transformer_mt.errors import UserError
from transformer_mt.system.severity import Severity

LONGEST, BIN = 100, 5  # words or characters in the histogram of lengths


@dataclass(frozen=True)
class CheckTask:
    """The rows of a corpus that one process checks."""

    corpus: ParallelCorpus
    languages: tuple[str, str]
    held_out: Mapping[str, ParallelCorpus]
    misaligned: Sequence[Segment]  # rows whose sides do not belong together
    first: int
    end: int

    def context(self) -> FilterContext:
        """Return what a filter may know about the corpus."""
        return FilterContext(
            languages=self.languages,
            n_corpus=len(self.corpus),
            n_pairs=len(self.corpus),
            sample=partial(self.corpus.sample, SAMPLE_SIZE),
            blocks=partial(read_blocks, self.corpus),
            describe_line=self.corpus.describe_line,
            held_out=self.held_out,
            folder=Path(),  # no check needs temporary files
        )

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks that begin in the rows."""
        for block in log_progress(read_blocks(self.corpus), "checked", len(self.corpus)):
            if len(block) and self.first <= block.rows[0] < self.end:
                yield block

    def misaligned_indices(self, block: Block) -> set[int]:
        """Return the indices of the pairs of a block that lie in a misaligned segment."""
        inside = [(block.rows >= segment.first) & (block.rows < segment.end) for segment in self.misaligned]
        return set(np.flatnonzero(np.logical_or.reduce(inside)).tolist()) if inside else set()


@dataclass
class CheckCounts:
    """What the checks found in some rows."""

    counts: Counter[str] = field(default_factory=Counter[str])  # by name of the check
    examples: dict[str, EvenSample] = field(default_factory=dict[str, EvenSample])
    lengths: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))  # by bin


def check_pairs(
    corpus: ParallelCorpus,
    languages: tuple[str, str],
    held_out: Mapping[str, ParallelCorpus],
    misaligned: Sequence[Segment],
    workers: int,
) -> tuple[list[Finding], list[Histogram]]:
    """Apply all checks to all pairs, each independently, on several processes.

    In the segments `misaligned`, the checks that compare both sides are left out.
    """
    bounds = np.linspace(0, len(corpus), workers + 1).astype(int).tolist()
    tasks = [CheckTask(corpus, languages, held_out, misaligned, first, end) for first, end in pairwise(bounds)]
    if workers == 1:
        results = [run_checks(tasks[0], CHECKS)]
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:  # forked threads of libraries could hang
            running = pool.map(_run_stateless_checks, tasks)
            stateful = [check for check in CHECKS if check.is_stateful]
            results = [run_checks(replace(tasks[0], end=len(corpus)), stateful, count_lengths=False), *running]
    findings = [finding for check in CHECKS if (finding := summarize_check(check, results, len(corpus)))]
    return findings, [_length_histogram(languages, results)]


def _run_stateless_checks(task: CheckTask) -> CheckCounts:
    return run_checks(task, [check for check in CHECKS if not check.is_stateful])


def run_checks(task: CheckTask, checks: Sequence[CorpusCheck], *, count_lengths: bool = True) -> CheckCounts:
    """Apply checks to the blocks of a task. A filter that does not know the languages is left out."""
    functions = {check: function for check in checks if (function := make_function(check, task.context()))}
    result = CheckCounts(examples={check.name: EvenSample() for check in functions})
    for block in task.blocks():
        misaligned = task.misaligned_indices(block)
        for check, function in functions.items():
            for i, reason in function(block).items():
                if not (check.compares_sides and i in misaligned):
                    result.counts[check.name] += 1
                    result.examples[check.name].add(partial(describe_pair, task.corpus, block, i, reason))
        if count_lengths:
            for counts, texts in zip(result.lengths, (block.src, block.tgt), strict=True):
                counts.update(min(LONGEST, len(split_units(text))) // BIN for text in texts)
    return result


def make_function(check: CorpusCheck, context: FilterContext) -> FilterFunction | None:
    """Return the function of a check, or None if its filter does not know the languages."""
    if not isinstance(check.filter, Filter):
        return for_each_pair(check.filter)
    try:
        return check.filter.make_function(context)
    except UserError:  # language detection or the table of scripts does not know a language
        return None


def summarize_check(check: CorpusCheck, results: Sequence[CheckCounts], total: int) -> Finding | None:
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


def _length_histogram(languages: tuple[str, str], results: Sequence[CheckCounts]) -> Histogram:
    """Return the lengths of the sentences of both languages. The last bin holds all longer ones."""
    counts: dict[str, list[int]] = {}
    for side, language in enumerate(languages):
        totals = sum((result.lengths[side] for result in results), Counter[int]())
        counts[language] = [totals[i] for i in range(LONGEST // BIN + 1)]
    edges = [*range(0, LONGEST + 2 * BIN, BIN)]
    return Histogram(f"words or characters per sentence (the last bar: {LONGEST} or more)", edges, counts)
