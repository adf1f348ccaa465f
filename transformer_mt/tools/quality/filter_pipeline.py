"""Apply filters to a corpus, block by block, on several processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import groupby, repeat
from pathlib import Path
from typing import NamedTuple

from transformer_mt.data.corpus import FilterReport, PairExample, ParallelCorpus, TableWriter, log_progress
from transformer_mt.data.worker_pool import limit_workers, open_pool
from transformer_mt.system.files import build_cached_folder, temporary_folder
from transformer_mt.tools.quality.filter_base import Block, Filter, FilterContext, FilterFunction

MAX_EXAMPLES = 100  # pairs that a report keeps of each filter

HeldOut = Mapping[str, ParallelCorpus]
Observer = Callable[[int, Block, Sequence[str]], None]
"""Function that gets the number of a filter, the pairs that it removes or has changed (before), and the reasons."""


def apply_filters(
    filters: Sequence[Filter], context: FilterContext, observe: Observer, *, workers: int = 1, removes: bool = True
) -> Iterator[Block]:
    """Yield the pairs of a corpus that filters leave. Every block is yielded, also an empty one.

    A filter that needs all of its pairs at once (`needs_all_pairs`) starts a new stage, which reads an intermediate
    table. The memory is bounded by some blocks, and by what filters keep: 9 bytes per pair for `duplicate`. The result
    does not depend on `workers`, the number of processes. Stateful filters are applied in this process.

    With `removes=False`, the observer is called as usual, but each filter sees all pairs.
    """
    workers = limit_workers(workers, len(context.corpus))
    breaks = [number for number, filter_ in enumerate(filters) if number and filter_.needs_all_pairs and removes]
    for first, end in zip([0, *breaks], [*breaks, len(filters)], strict=True):
        numbered = [*enumerate(filters)][first:end]
        groups = [[*group] for _, group in groupby(numbered, lambda numbered: numbered[1].is_stateful)]
        blocks = _apply_groups(groups, context, observe, workers, removes)
        if end == len(filters):
            yield from blocks
            return
        path = context.folder / f"before-{end}.arrow"
        with TableWriter(path, ["row"]) as table:
            for block in blocks:
                table.write(block.src, block.tgt, block.files, block.lines, block.rows)
        context = replace(context, stored=path, n_stored=table.n_pairs)


Group = Sequence[tuple[int, Filter]]
"""Consecutive filters with their numbers, all of them stateful or none."""


def _apply_groups(
    groups: Sequence[Group], context: FilterContext, observe: Observer, workers: int, removes: bool
) -> Iterator[Block]:
    def record(result: FilteredBlock) -> Block:
        for number, affected, reasons in result.steps:
            observe(number, affected, reasons)
        return result.kept

    blocks = log_progress(context.blocks(), "filtered" if removes else "checked", context.n_pairs)
    local = FilterGroups(groups, context, removes)
    are_stateful = [group[0][1].is_stateful for group in groups]
    with ExitStack() as stack:
        pool = None
        if workers > 1 and not all(are_stateful):
            pool = stack.enter_context(open_pool(workers, FilterGroups, groups, context, removes))
        for index, is_stateful in enumerate(are_stateful):
            items = zip(repeat(index), blocks)
            if pool is None or is_stateful:
                results = map(local.apply, items)
            else:
                results = pool.map_in_order(FilterGroups.apply, items)
            blocks = map(record, results)
        yield from blocks


class FilteredBlock(NamedTuple):
    """A block after some filters."""

    kept: Block
    steps: Sequence[tuple[int, Block, Sequence[str]]]  # arguments of the observer


class FilterGroups:
    """Filters in groups. The function of a filter is made when its first block comes."""

    def __init__(self, groups: Sequence[Group], context: FilterContext, removes: bool) -> None:
        self._groups, self._context, self._removes = groups, context, removes
        self._functions = dict[int, FilterFunction]()

    def apply(self, item: tuple[int, Block]) -> FilteredBlock:
        """Apply the filters of a group, given by its index, to a block."""
        index, block = item
        steps: list[tuple[int, Block, Sequence[str]]] = []
        for number, filter_ in self._groups[index]:
            if number not in self._functions:
                self._functions[number] = filter_.make_function(self._context)
            before = block if filter_.removes else block.copy()
            if reasons := self._functions[number](block):
                steps.append((number, before.take([*reasons]), [*reasons.values()]))
                if filter_.removes and self._removes:
                    block = block.without(reasons)
        return FilteredBlock(block, steps)


class PairSample:
    """Counts pairs, and keeps between half of `MAX_EXAMPLES` and `MAX_EXAMPLES` of them, spread evenly."""

    def __init__(self, corpus: ParallelCorpus) -> None:
        self._corpus, self._stride = corpus, 1
        self.count, self.examples = 0, list[PairExample]()

    def add(self, block: Block, reasons: Sequence[str]) -> None:
        """Count the pairs of a block, which have a reason each, and keep some."""
        for i, reason in enumerate(reasons):
            if self.count % self._stride == 0 and len(self.examples) == MAX_EXAMPLES:
                self.examples, self._stride = self.examples[::2], 2 * self._stride
            if self.count % self._stride == 0:
                self.examples.append(describe_pair(self._corpus, block, i, reason))
            self.count += 1


def describe_pair(corpus: ParallelCorpus, block: Block, i: int, reason: str) -> PairExample:
    """Return pair `i` of a block with its file and line."""
    return PairExample(f"{corpus.files[block.files[i]]}:{block.lines[i]}", block.src[i], block.tgt[i], reason)


FORMAT_VERSION = 3  # of a filtered table and of what the filters do; part of its key


def filter_corpus(
    corpus: ParallelCorpus,
    filters: Sequence[Filter],
    languages: tuple[str, str],
    held_out: HeldOut,
    cache_dir: Path,
    workers: int = 1,
) -> ParallelCorpus:
    """Return the corpus that the filters leave, with their reports. It is cached for unchanged input.

    `languages` are those of source and target, and `held_out` has the configured validation and test sets. The result
    does not depend on `workers`, the number of processes.

    Raises:
        UserError: Nothing is left, or a filter's file or command does not fit; with file, line and key.
    """
    folder = cache_dir / f"filtered-{_cache_key(corpus, filters, languages, held_out)}"

    def fill(temporary: Path) -> None:
        _write_filtered(filters, FilterContext(corpus, languages, held_out, temporary), workers)

    build_cached_folder(folder, fill)
    return _load_filtered(folder)


def iterate_affected(
    corpus: ParallelCorpus,
    filters: Sequence[Filter],
    number: int,
    languages: tuple[str, str],
    held_out: HeldOut,
    cache_dir: Path,
) -> Iterator[PairExample]:
    """Yield the pairs that filter `number` removes or changes, in order. It applies the filters before it again."""
    found: list[PairExample] = []

    def observe(filter_: int, affected: Block, reasons: Sequence[str]) -> None:
        if filter_ == number:
            found.extend(describe_pair(corpus, affected, i, reason) for i, reason in enumerate(reasons))

    with temporary_folder(cache_dir / "affected") as folder:
        context = FilterContext(corpus, languages, held_out, folder)
        for _ in apply_filters(filters[: number + 1], context, observe):
            yield from found
            found.clear()


# --- cached results ---------------------------------------------------------------------------------------------------


def _cache_key(corpus: ParallelCorpus, filters: Sequence[Filter], languages: Sequence[str], held_out: HeldOut) -> str:
    """Hash the corpora, the filters and what they depend on."""
    states = [[filter_.model_dump(mode="json"), filter_.external_state()] for filter_ in filters]
    others = [[name, other.key, other.fingerprint] for name, other in held_out.items()]
    settings = [FORMAT_VERSION, corpus.key, corpus.fingerprint, states, languages, others]
    return sha256(json.dumps(settings).encode()).hexdigest()[:16]


def _write_filtered(filters: Sequence[Filter], context: FilterContext, workers: int) -> None:
    """Write the table, its description and the reports. Raises `UserError` if nothing is left."""
    corpus, folder = context.corpus, context.folder
    affected = [PairSample(corpus) for _ in filters]

    def observe(number: int, block: Block, reasons: Sequence[str]) -> None:
        affected[number].add(block, reasons)

    with TableWriter(folder / "pairs.arrow") as table:
        for block in apply_filters(filters, context, observe, workers=workers):
            if len(block):
                table.write(block.src, block.tgt, block.files, block.lines)
    reports: list[FilterReport] = []
    n_seen = len(corpus)
    for label, filter_, found in zip(_label_filters(filters), filters, affected, strict=True):
        reports.append(FilterReport(label, filter_.removes, n_seen, found.count, tuple(found.examples)))
        n_seen -= found.count if filter_.removes else 0
    if table.n_pairs == 0:
        removing = [number for number, report in enumerate(reports) if report.removes and report.n_affected]
        counts = ", ".join(f"{reports[number].name} {reports[number].n_affected:,}" for number in removing)
        raise filters[removing[-1]].make_error(
            f"no pair of {len(corpus):,} is left (removed: {counts}); loosen this filter or remove it"
        )
    for leftover in set(folder.iterdir()) - {folder / "pairs.arrow"}:
        leftover.unlink()
    info = {"sha256": table.text_hash(), "files": corpus.files}
    (folder / "table.json").write_text(json.dumps(info), encoding="utf-8")
    report = json.dumps([*map(asdict, reports)], ensure_ascii=False, indent=1)
    (folder / "filters.json").write_text(report, encoding="utf-8")


def _label_filters(filters: Sequence[Filter]) -> list[str]:
    """Return the name of each filter, with its number if another one has the same name."""
    names = [filter_.name for filter_ in filters]
    return [f"{name} (data.filters.{i})" if names.count(name) > 1 else name for i, name in enumerate(names)]


def _load_filtered(folder: Path) -> ParallelCorpus:
    from datasets import Dataset

    info = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    reports: list[FilterReport] = []
    for report in json.loads((folder / "filters.json").read_text(encoding="utf-8")):
        examples = tuple(PairExample(*example) for example in report.pop("examples"))
        reports.append(FilterReport(**report, examples=examples))
    table = Dataset.from_file(str(folder / "pairs.arrow"))
    return ParallelCorpus(table, info["files"], folder.name, info["sha256"], filters=tuple(reports))
