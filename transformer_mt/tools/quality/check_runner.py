"""Apply the checks to the training pairs, on several processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.data.corpus import PairExample, ParallelCorpus, log_progress
from transformer_mt.data.worker_pool import limit_workers, open_pool
from transformer_mt.errors import UserError
from transformer_mt.system.files import make_once, write_text
from transformer_mt.system.log import Severity
from transformer_mt.tools.languages.detection import EXCHANGE_REMEDY, LanguageDetector, has_exchanged_sides
from transformer_mt.tools.languages.scripts import language_scripts, split_units
from transformer_mt.tools.quality.checks import CHECKS, CorpusCheck, Finding, Histogram
from transformer_mt.tools.quality.corpus_filters import MIN_LEXICON_PAIRS, DuplicateFilter, UnrelatedFilter, hash_side
from transformer_mt.tools.quality.duplicates import ComparedSide, Hashes
from transformer_mt.tools.quality.filter_base import (
    SIDE_NAMES,
    Block,
    Filter,
    FilterContext,
    FilterFunction,
    make_block_function,
)
from transformer_mt.tools.quality.filter_pipeline import (
    SAMPLE_SIZE,
    EvenSample,
    make_block,
    read_blocks,
)
from transformer_mt.tools.quality.lexicon import Lexicon
from transformer_mt.tools.quality.line_alignment import LineRange


def locate_first_occurrences(
    corpus: ParallelCorpus, findings: Mapping[str, Finding], sides: Mapping[str, ComparedSide]
) -> dict[str, Finding]:
    """Return findings about duplicates with examples that name the line which they repeat.

    `sides` has what each finding compares. The corpus is read once more, because a set of hashes knows no lines.
    """
    hashes = {name: _hash_examples(finding.examples, sides[name]) for name, finding in findings.items()}
    missing, lines = dict(hashes), {name: dict[int, str]() for name in findings}
    for block in log_progress(read_blocks(corpus), "searched for first occurrences in", len(corpus)):
        missing = {name: left for name, left in missing.items() if len(left)}
        if not missing:
            break
        for name, left in missing.items():
            of_block = hash_side(block.src, block.tgt, sides[name], normalized=False)
            for i in np.flatnonzero(np.isin(of_block, left)).tolist():
                lines[name].setdefault(int(of_block[i]), f"{corpus.files[block.files[i]]}:{block.lines[i]}")
            missing[name] = np.setdiff1d(left, of_block)
    prefix: dict[ComparedSide, str] = {"pair": "", "src": "the source of ", "tgt": "the target of "}
    located: dict[str, Finding] = {}
    for name, finding in findings.items():
        examples = [
            example._replace(reason=f"repeats {prefix[sides[name]]}{lines[name][hash_]}")
            for example, hash_ in zip(finding.examples, hashes[name].tolist(), strict=True)
        ]
        located[name] = replace(finding, examples=examples)
    return located


def _hash_examples(examples: Sequence[PairExample], side: ComparedSide) -> Hashes:
    return hash_side(
        [example.src for example in examples], [example.tgt for example in examples], side, normalized=False
    )


LONGEST, BIN = 100, 5  # words or characters in the histogram of lengths

Lengths = tuple[Counter[int], Counter[int]]
"""Numbers of sentences of each side by bin of the histogram."""


@dataclass(frozen=True)
class CheckTask:
    """A corpus to check, and what the checks may know about it."""

    corpus: ParallelCorpus
    languages: tuple[str, str]
    held_out: Mapping[str, ParallelCorpus] = field(default_factory=dict[str, ParallelCorpus])
    misaligned: Sequence[LineRange] = ()  # rows whose sides do not belong together

    def make_functions(self, checks: Sequence[CorpusCheck]) -> dict[CorpusCheck, FilterFunction]:
        """Return the functions of some checks, without those for which the corpus is too small."""
        context = FilterContext(
            languages=self.languages,
            n_corpus=len(self.corpus),
            n_pairs=len(self.corpus),
            sample=partial(self.corpus.sample, SAMPLE_SIZE),
            blocks=partial(read_blocks, self.corpus),
            describe_line=self.corpus.describe_line,
            held_out=self.held_out,
            folder=Path(),  # no check needs temporary files
            skip_unknown_languages=True,
        )
        return {
            check: check.finder.make_function(context)
            if isinstance(check.finder, Filter)
            else make_block_function(check.finder)
            for check in checks
            if not (isinstance(check.finder, UnrelatedFilter) and len(self.corpus) < MIN_LEXICON_PAIRS)
        }

    def misaligned_indices(self, block: Block) -> set[int]:
        """Return the indices of the pairs of a block that lie in a misaligned range."""
        inside = [(block.rows >= line_range.first) & (block.rows < line_range.end) for line_range in self.misaligned]
        return set(np.flatnonzero(np.logical_or.reduce(inside)).tolist()) if inside else set()


@dataclass(frozen=True)
class BlockResult:
    """What the checks found in a block."""

    n_pairs: int
    reasons: dict[str, dict[int, str]]  # name of the check -> row -> reason
    lengths: Lengths | None

    def __len__(self) -> int:
        return self.n_pairs


class BlockChecker:
    """Applies some checks to blocks of a corpus, in order if one of the checks is stateful."""

    def __init__(self, task: CheckTask, checks: Sequence[CorpusCheck], *, count_lengths: bool = True) -> None:
        self._task, self._functions, self._count_lengths = task, task.make_functions(checks), count_lengths

    def __call__(self, block: Block) -> BlockResult:
        """Return the reasons that the checks find, and the lengths of the sentences."""
        misaligned = self._task.misaligned_indices(block)
        reasons = {
            check.name: {
                int(block.rows[i]): reason
                for i, reason in function(block).items()
                if not (check.compares_sides and i in misaligned)
            }
            for check, function in self._functions.items()
        }
        lengths = (_count_lengths(block.src), _count_lengths(block.tgt)) if self._count_lengths else None
        return BlockResult(len(block), reasons, lengths)


def _count_lengths(texts: Sequence[str]) -> Counter[int]:
    return Counter(min(LONGEST, len(split_units(text))) // BIN for text in texts)


@dataclass
class CheckCounts:
    """What the checks found in a corpus."""

    counts: Counter[str] = field(default_factory=Counter[str])  # by name of the check
    examples: dict[str, EvenSample] = field(default_factory=dict[str, EvenSample])
    lengths: Lengths = field(default_factory=lambda: (Counter(), Counter()))

    @classmethod
    def collect(cls, corpus: ParallelCorpus, results: Iterable[BlockResult]) -> CheckCounts:
        """Sum the results of the blocks of a corpus, which must come in order."""
        found = cls()
        for result in results:
            for name, reasons in result.reasons.items():
                found.counts[name] += len(reasons)
                examples = found.examples.setdefault(name, EvenSample())
                for row, reason in reasons.items():
                    examples.add(partial(corpus.example, row, reason))
            for counts, new in zip(found.lengths, result.lengths or (), strict=False):
                counts.update(new)
        return found


def check_pairs(
    corpus: ParallelCorpus,
    languages: tuple[str, str],
    held_out: Mapping[str, ParallelCorpus],
    misaligned: Sequence[LineRange],
    workers: int,
) -> tuple[list[Finding], list[Histogram]]:
    """Apply all checks to all pairs, each independently, on several processes. The result does not depend on them.

    In the ranges `misaligned`, the checks that compare both sides are left out.

    Raises:
        UserError: A process was killed, or could not start.
    """
    task = CheckTask(corpus, languages, held_out, misaligned)
    workers = limit_workers(workers, len(corpus))
    if workers == 1:
        found = run_checks(task, CHECKS)
    else:
        with open_pool(workers, _CheckWorker, task) as pool:
            stateful = pool.submit(_CheckWorker.run_stateful_checks, "compared")
            blocks = pool.map_in_order(_CheckWorker.check_block, _read_batches(corpus))
            found = CheckCounts.collect(corpus, log_progress(blocks, "checked", len(corpus)))
            others = stateful.result()
        found.counts.update(others.counts)
        found.examples |= others.examples
    findings = {
        check.name: finding for check in CHECKS if (finding := make_finding(check, found, len(corpus))) is not None
    }
    repeated: dict[str, ComparedSide] = {
        check.name: check.finder.of
        for check in CHECKS
        if isinstance(check.finder, DuplicateFilter) and check.name in findings
    }
    if "language" in findings:
        findings["language"] = explain_wrong_languages(findings["language"], corpus, languages)
    findings |= locate_first_occurrences(corpus, {name: findings[name] for name in repeated}, repeated)
    return [*findings.values(), *_unknown_languages(languages, len(corpus))], [
        _length_histogram(languages, found.lengths)
    ]


def run_checks(
    task: CheckTask, checks: Sequence[CorpusCheck], verb: str = "checked", *, count_lengths: bool = True
) -> CheckCounts:
    """Apply checks to a corpus in this process, and log the progress."""
    check_block = BlockChecker(task, checks, count_lengths=count_lengths)
    blocks = log_progress(read_blocks(task.corpus), verb, len(task.corpus))
    return CheckCounts.collect(task.corpus, map(check_block, blocks))


# --- worker processes -------------------------------------------------------------------------------------------------


class _CheckWorker:
    """Checks a corpus in a process of a pool."""

    def __init__(self, task: CheckTask) -> None:
        self.task = task

    @cached_property
    def _checker(self) -> BlockChecker:
        return BlockChecker(self.task, [check for check in CHECKS if not check.is_stateful])

    def check_block(self, item: tuple[int, Any]) -> BlockResult:
        """Apply the checks that look at each pair on its own to a record batch with a first row."""
        first, batch = item
        return self._checker(make_block(batch, np.arange(first, first + len(batch))))

    def run_stateful_checks(self, verb: str) -> CheckCounts:
        """Apply the checks that need all pairs in order. The progress is logged with `verb`."""
        return run_checks(self.task, [check for check in CHECKS if check.is_stateful], verb, count_lengths=False)


def _read_batches(corpus: ParallelCorpus) -> Iterator[tuple[int, Any]]:
    """Yield the record batches of a corpus with their first rows."""
    first = 0
    for batch in corpus.batches():
        yield first, batch
        first += len(batch)


# --- findings ---------------------------------------------------------------------------------------------------------


def make_finding(check: CorpusCheck, found: CheckCounts, total: int) -> Finding | None:
    """Return the finding of a check, or None if no pair has the fault."""
    count = found.counts[check.name]
    if not count:
        return None
    share, examples = count / total, found.examples[check.name].items()
    severity = (
        Severity.ERROR
        if share >= check.error_share
        else Severity.WARNING
        if share >= check.warning_share
        else Severity.OK
    )
    message = check.message
    if severity is Severity.ERROR and check.error_advice:
        message = f"{message}; {check.error_advice}"
    return Finding(check.group, check.name, severity, message, count, total, examples, check.remedy)


def explain_wrong_languages(finding: Finding, corpus: ParallelCorpus, languages: tuple[str, str]) -> Finding:
    """Return the finding about other languages. If most pairs have them, its remedy is to correct the languages."""
    if not finding.has_wrong_languages:
        return finding
    is_exchanged = has_exchanged_sides(corpus, languages)
    return replace(finding, remedy=EXCHANGE_REMEDY if is_exchanged else "correct src_lang and tgt_lang")


def _unknown_languages(languages: tuple[str, str], total: int) -> Iterator[Finding]:
    """Yield a note about each side whose language or script cannot be checked."""
    for side, language in zip(SIDE_NAMES, languages, strict=True):
        if not LanguageDetector.load().knows(language):
            message = f"have a {side} whose language is not checked: language detection does not know {language}"
            remedy = "correct the code, if it is a mistake"
            yield Finding("content", f"language of the {side}", Severity.OK, message, total, total, remedy=remedy)
        if language_scripts(language) is None:
            message = f"have a {side} whose script is not checked: that of {language} is not known"
            yield Finding("content", f"script of the {side}", Severity.OK, message, total, total)


def _length_histogram(languages: tuple[str, str], lengths: Lengths) -> Histogram:
    """Return the lengths of the sentences of both languages. The last bin holds all longer ones."""
    counts = {
        language: [of_side[i] for i in range(LONGEST // BIN + 1)]
        for language, of_side in zip(languages, lengths, strict=True)
    }
    edges = [*range(0, LONGEST + 2 * BIN, BIN)]
    return Histogram(f"words or characters per sentence (the last bar: {LONGEST} or more)", edges, counts)


FORMAT_VERSION = 4  # of the cached lines and of what the checks do; part of their key
N_PAIRS = 2000  # whose text is checked
MIN_AFFECTED = 10  # affected pairs of the sample; fewer may be chance
N_WINDOWS, CHECK_WINDOW = 100, 20  # windows of consecutive lines whose sides are compared
LEARNED_LENGTH = 80  # lines after each window from which the lexicon is learned
MAX_UNRELATED = 0.05  # share of the compared pairs
SAMPLE_CHECKS = [
    check for check in CHECKS if check.group == "content" and not isinstance(check.finder, UnrelatedFilter)
]


def check_sample(corpus: ParallelCorpus, languages: tuple[str, str], cache_dir: Path) -> list[str]:
    """Return a line for each warning about a sample of the pairs. The lines are cached for an unchanged corpus.

    Raises:
        UserError: Most pairs are in the languages of the other side.
    """
    key = json.dumps([FORMAT_VERSION, corpus.key, corpus.fingerprint, languages])
    path = cache_dir / f"check-{sha256(key.encode()).hexdigest()[:16]}.json"
    make_once(path, lambda: write_text(path, json.dumps([*_check_text(corpus, languages), *_check_alignment(corpus)])))
    return json.loads(path.read_text(encoding="utf-8"))


def _check_text(corpus: ParallelCorpus, languages: tuple[str, str]) -> Iterator[str]:
    sample = corpus.select_evenly(N_PAIRS)
    found = run_checks(CheckTask(sample, languages), SAMPLE_CHECKS, count_lengths=False)
    for check in SAMPLE_CHECKS:
        finding = make_finding(check, found, len(sample))
        if finding is not None and finding.count >= MIN_AFFECTED and finding.severity > Severity.OK:
            first = finding.examples[0]
            if finding.has_wrong_languages and has_exchanged_sides(sample, languages):
                raise UserError(
                    f"data.train: the source seems to be in {languages[1]} and the target in {languages[0]}, such as "
                    f"{first.location} ({first.reason});\n"
                    f"{EXCHANGE_REMEDY}; reverse: true exchanges both sides of a source"
                )
            yield (
                f"warning: {finding.share:.1%} of a sample of pairs {check.message}, such as {first.location} "
                f"({first.reason}); run tmt check"
            )


def _check_alignment(corpus: ParallelCorpus) -> Iterator[str]:
    if len(corpus) < MIN_LEXICON_PAIRS:
        return
    n_windows = min(N_WINDOWS, len(corpus) // (2 * CHECK_WINDOW))
    starts = np.linspace(0, len(corpus), n_windows, endpoint=False).astype(np.int64).tolist()
    learned: list[tuple[str, str]] = []  # lines after each window, because a lexicon knows its own training pairs
    for start, end in pairwise([*starts, len(corpus)]):
        learned += corpus.rows(start + CHECK_WINDOW, min(end, start + CHECK_WINDOW + LEARNED_LENGTH))
    lexicon = Lexicon.learn(learned)
    ratios = [
        [
            lexicon.log_likelihood_ratio(lexicon.encode(src, is_src=True), lexicon.encode(tgt, is_src=False))
            for src, tgt in corpus.rows(start, start + CHECK_WINDOW)
        ]
        for start in starts
    ]
    is_related = np.array(ratios) > 0  # [windows, lines]
    share = 1 - float(is_related.mean())
    if share > MAX_UNRELATED:
        worst = starts[int(is_related.mean(1).argmin())]
        where = corpus.describe_line(worst)
        yield f"warning: {share:.1%} of the sampled pairs are not translations, for example near {where}; run tmt check"
