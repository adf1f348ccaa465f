"""Checks of the corpora of a configuration -> findings about alignment and pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from transformer_mt.data.corpus import PairExample, ParallelCorpus, choose_evenly, combine_corpora
from transformer_mt.data.data_config import DataConfig, NamedSource, Source
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner
from transformer_mt.data.text_files import DELETE_BLANK_LINES, UnequalLengthError, read_lines, skip_bad_row
from transformer_mt.system.log import Severity
from transformer_mt.tools.languages.detection import SAMPLE_LINES, describe_other_language, describe_swapped_sides
from transformer_mt.tools.quality.checks import SEVERAL_SOURCES_CHECK, CorpusReport, Finding, check_pairs
from transformer_mt.tools.quality.line_alignment import LineRange, align_lines, explain_offset, find_misaligned_ranges

ADD_OR_DELETE_LINES = "add or delete lines, so that line N of one file belongs to line N of the other"
MAX_DIAGNOSED = 1_000_000  # lines of text files of different length in which the first shifted line is looked for


def check_sources(
    name: str, data: DataConfig, load: Callable[[Source], ParallelCorpus], runner: Runner = IN_PROCESS_RUNNER
) -> CorpusReport:
    """Check the unfiltered training pairs, their overlap with the held-out sets, and the alignment of all sets.

    `name` is the title of the report, which lists the most severe findings first. `load` returns the unfiltered text of
    a source. Raises `UserError` if a source cannot be read.
    """
    train = {f"train.{s.name}" if isinstance(s, NamedSource) else "train": s for s in data.train_sources}
    held_out = {
        f"validation.{source.name}" if isinstance(source, NamedSource) else str(keys[-1]): source
        for keys, source in data.iterate_held_out_sources()
    }
    sources = {**train, **held_out}
    corpora: dict[str, ParallelCorpus] = {}
    unequal: list[Finding] = []
    for key, source in sources.items():
        try:
            corpora[key] = load(source)
        except UnequalLengthError:
            if not (found := [*check_line_counts(key, source)]):
                raise
            unequal += [replace(each, can_be_realigned=key in train) for each in found]
    if unequal:
        return CorpusReport(name, {}, unequal)
    cache_dir = Path(data.cache_dir)
    misaligned = {key: find_misaligned_ranges(corpus, cache_dir, runner) for key, corpus in corpora.items()}
    findings = [
        replace(describe_misalignment(key, corpora[key], line_range), can_be_realigned=key in train)
        for key, ranges in misaligned.items()
        for line_range in ranges
    ]
    findings += [
        finding
        for key, source in held_out.items()
        for finding in check_languages(key, corpora[key], source.languages(data.src_lang, data.tgt_lang))
    ]
    held_out_corpora = {key: corpora[key] for key in held_out}
    for key, source in train.items():
        languages = source.languages(data.src_lang, data.tgt_lang)
        found = check_pairs(corpora[key], languages, held_out_corpora, misaligned[key], cache_dir, runner)
        if len(train) > 1:
            found = [replace(one, message=f"{one.message} (in {key})") for one in found]
        findings += found
    if len(train) > 1:
        joined = combine_corpora({key: corpora[key] for key in train})
        languages, checks = (data.src_lang, data.tgt_lang), [SEVERAL_SOURCES_CHECK]
        n_within = sum(found.count for found in findings if (found.group, found.name) == ("duplicates", "pair"))
        found = check_pairs(joined, languages, {}, (), cache_dir, runner, checks)
        findings += [each for each in found if each.count > n_within]  # more than those within each source
    findings.sort(key=lambda finding: -finding.severity)
    return CorpusReport(name, {key: len(corpus) for key, corpus in corpora.items()}, findings)


def check_languages(name: str, corpus: ParallelCorpus, languages: tuple[str, str]) -> Iterator[Finding]:
    """Yield a finding if a side of a held-out corpus is in another language."""
    sample = corpus.select_evenly(SAMPLE_LINES)
    src, tgt = sample.column("src"), sample.column("tgt")
    if problem := describe_swapped_sides(languages, src, tgt):
        severity, remedy = Severity.ERROR, "swap the files or columns"
    else:
        found = map(describe_other_language, ("the source", "the target"), (src, tgt), languages)
        severity, problem = Severity.WARNING, "; ".join(filter(None, found))
        remedy = "correct the files or the languages"
    if problem:
        examples = [sample.example(row, "") for row in choose_evenly(range(len(sample)))]
        message, n = f"{name}: {problem}", len(corpus)
        yield Finding("content", "held-out language", severity, message, n, n, examples, f"{remedy} of {name}")


# --- alignment --------------------------------------------------------------------------------------------------------


def describe_misalignment(name: str, corpus: ParallelCorpus, line_range: LineRange) -> Finding:
    """Return the finding of a range of lines with an offset, or without correspondence."""
    first, last = corpus.describe_line(line_range.first), corpus.describe_line(line_range.end - 1)
    shown_end = min(line_range.end, line_range.first + 10)
    examples = [corpus.example(row, "") for row in choose_evenly(range(line_range.first, shown_end))]
    return _make_finding(f"{name}, {first} to {last}", line_range, len(corpus), examples)


def _make_finding(place: str, line_range: LineRange, total: int, examples: Sequence[PairExample]) -> Finding:
    message, remedy = explain_offset(line_range.offset)
    name = "unaligned" if line_range.offset is None else "shifted"
    n_lines = line_range.end - line_range.first
    return Finding("alignment", name, Severity.ERROR, f"{place}: {message}", n_lines, total, examples, remedy)


def check_line_counts(name: str, source: Source) -> Iterator[Finding]:
    """Yield a finding for each pair of text files with different numbers of lines, and the first shifted lines.

    They are looked for in the first `MAX_DIAGNOSED` lines, which are held in memory.
    """
    read = partial(read_lines, errors="replace", on_bad=skip_bad_row)
    for src, tgt in zip(source.src, source.tgt, strict=True):
        n_src, n_tgt = (sum(1 for _ in read(Path(path))) for path in (src, tgt))
        if n_src == n_tgt:
            continue
        message = f"{name}: {src} has {n_src:,} lines, {tgt} has {n_tgt:,}"
        surplus = islice(read(Path(src if n_src > n_tgt else tgt)), min(n_src, n_tgt), None)
        remedy = ADD_OR_DELETE_LINES if any(map(str.strip, surplus)) else DELETE_BLANK_LINES
        n, total = abs(n_src - n_tgt), max(n_src, n_tgt)
        yield Finding("alignment", "line counts", Severity.ERROR, message, n, total, remedy=remedy)
        pairs = [*islice(zip(read(Path(src)), read(Path(tgt)), strict=False), MAX_DIAGNOSED)]
        if not pairs:
            continue
        ranges = align_lines(lambda start, end, pairs=pairs: pairs[start:end], len(pairs))
        for line_range in [line_range for line_range in ranges if line_range.offset != 0][:1]:
            rows = range(line_range.first, min(line_range.end, line_range.first + 3))
            examples = [PairExample(f"{src}:{row + 1}", *pairs[row], "") for row in rows]
            yield _make_finding(f"{name}, from {src}:{line_range.first + 1} on", line_range, len(pairs), examples)
