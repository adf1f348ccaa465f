"""Apply filters to a corpus, block by block, on several processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import groupby, repeat
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.data.corpus import (
    FilterReport,
    PairExample,
    ParallelCorpus,
    TableWriter,
    log_progress,
    read_batches,
)
from transformer_mt.data.worker_pool import limit_workers, open_pool
from transformer_mt.system.files import atomic_shared_folder, make_once, temporary_folder
from transformer_mt.tools.quality.filter_base import Block, Filter, FilterContext, FilterFunction

SAMPLE_SIZE = 10_000  # pairs from which filters learn what is typical
MAX_EXAMPLES = 100  # pairs that a report keeps of each filter

HeldOut = Mapping[str, ParallelCorpus]
Observer = Callable[[int, Block, Sequence[str]], None]
"""Function that gets the number of a filter, the pairs that it removes or has changed (before), and the reasons."""


class FilterPipeline:
    """Filters that are applied to a corpus once. `reports` is complete after the last block.

    A filter that needs all of its pairs at once (`needs_all_pairs`) starts a new stage, which reads an intermediate
    table. The memory is bounded by some blocks, and by what filters keep: 9 bytes per pair for `duplicate`. The result
    does not depend on `workers`, the number of processes. Stateful filters are applied in this process.
    """

    def __init__(
        self,
        corpus: ParallelCorpus,
        filters: Sequence[Filter],
        languages: tuple[str, str],
        held_out: HeldOut,
        folder: Path,
        observe: Observer | None = None,
        *,
        workers: int = 1,
        skip_unknown_languages: bool = False,
    ) -> None:
        self.corpus, self.filters, self.folder = corpus, filters, folder
        self._languages, self._held_out, self._observe = languages, held_out, observe
        self._skip_unknown_languages = skip_unknown_languages
        self._workers = limit_workers(workers, len(corpus))
        self._n_seen, self._n_affected = [0] * len(filters), [0] * len(filters)
        self._examples = [EvenSample() for _ in filters]

    def blocks(self) -> Iterator[Block]:
        """Yield the pairs that are left. Every block is yielded, also an empty one."""
        breaks = [number for number, filter_ in enumerate(self.filters) if number and filter_.needs_all_pairs]
        source, n_pairs = partial(read_blocks, self.corpus), len(self.corpus)
        for first, end in zip([0, *breaks], [*breaks, len(self.filters)], strict=True):
            blocks = self._apply(range(first, end), source, n_pairs)
            if end == len(self.filters):
                yield from blocks
            else:
                path = self.folder / f"before-{end}.arrow"
                with TableWriter(path, ["row"]) as table:
                    for block in blocks:
                        table.write(block.src, block.tgt, block.files, block.lines, block.rows)
                source, n_pairs = partial(_read_table, path), table.n_pairs

    def reports(self) -> list[FilterReport]:
        """Return what each filter has done."""
        return [
            FilterReport(self._label(number), filter_.removes, n_seen, n_affected, tuple(examples.items()))
            for number, (filter_, n_seen, n_affected, examples) in enumerate(
                zip(self.filters, self._n_seen, self._n_affected, self._examples, strict=True)
            )
        ]

    def _label(self, number: int) -> str:
        """Return the name of a filter, with its number if another one has the same name."""
        names = [filter_.name for filter_ in self.filters]
        name = names[number]
        return f"{name} (data.filters.{number})" if names.count(name) > 1 else name

    def _apply(self, numbers: range, source: Callable[[], Iterator[Block]], n_pairs: int) -> Iterator[Block]:
        """Yield the blocks of a source after some consecutive filters."""
        context = FilterContext(
            languages=self._languages,
            n_corpus=len(self.corpus),
            n_pairs=n_pairs,
            sample=partial(self.corpus.sample, SAMPLE_SIZE),
            blocks=source,
            describe_line=self.corpus.describe_line,
            held_out=self._held_out,
            folder=self.folder,
            skip_unknown_languages=self._skip_unknown_languages,
        )
        blocks = log_progress(source(), "filtered", n_pairs)
        groups = [[*group] for _, group in groupby(numbers, lambda number: self.filters[number].is_stateful)]
        filters = [[self.filters[number] for number in group] for group in groups]
        local = GroupedFilters(filters, context)
        with ExitStack() as stack:
            pool = None
            if self._workers > 1 and not all(filter_.is_stateful for group in filters for filter_ in group):
                pool = stack.enter_context(open_pool(self._workers, GroupedFilters, filters, context))
            for index, group in enumerate(groups):
                items = zip(repeat(index), blocks)
                if pool is None or filters[index][0].is_stateful:
                    results = map(local.apply, items)
                else:
                    results = pool.map_in_order(GroupedFilters.apply, items)
                blocks = map(partial(self._record, group), results)
            yield from blocks

    def _record(self, numbers: Sequence[int], result: FilteredBlock) -> Block:
        for number, (n_seen, affected, reasons) in zip(numbers, result.steps, strict=True):
            self._n_seen[number] += n_seen
            self._n_affected[number] += len(reasons)
            for i, reason in enumerate(reasons):
                self._examples[number].add(partial(describe_pair, self.corpus, affected, i, reason))
            if self._observe is not None and reasons:
                self._observe(number, affected, reasons)
        return result.left


@dataclass(frozen=True)
class FilteredBlock:
    """A block after some filters."""

    left: Block
    steps: Sequence[tuple[int, Block, Sequence[str]]]  # of each filter: pairs seen, affected pairs before, reasons


class GroupedFilters:
    """Consecutive filters in groups. The functions of a group are made when its first block comes."""

    def __init__(self, groups: Sequence[Sequence[Filter]], context: FilterContext) -> None:
        self._groups, self._context = groups, context
        self._functions = dict[int, list[tuple[bool, FilterFunction]]]()  # with `removes`, by index of the group

    def apply(self, item: tuple[int, Block]) -> FilteredBlock:
        """Apply the filters of a group, given by its index, to a block."""
        index, block = item
        if index not in self._functions:
            group = self._groups[index]
            self._functions[index] = [(filter_.removes, filter_.make_function(self._context)) for filter_ in group]
        steps: list[tuple[int, Block, Sequence[str]]] = []
        for removes, function in self._functions[index]:
            before = block if removes else block.copy()
            reasons = function(block)
            steps.append((len(block), before.take([*reasons]), [*reasons.values()]))
            block = block.without(reasons) if removes else block
        return FilteredBlock(block, steps)


def describe_pair(corpus: ParallelCorpus, block: Block, i: int, reason: str) -> PairExample:
    """Return pair `i` of a block with its file and line."""
    return PairExample(f"{corpus.files[block.files[i]]}:{block.lines[i]}", block.src[i], block.tgt[i], reason)


class EvenSample:
    """Keeps between half of `MAX_EXAMPLES` and `MAX_EXAMPLES` items, spread evenly over all that are added."""

    def __init__(self) -> None:
        self._items: list[PairExample] = []
        self._n_added, self._stride = 0, 1

    def add(self, make_item: Callable[[], PairExample]) -> None:
        """Count an item, and make and keep it if it is one of the sample."""
        if self._n_added % self._stride == 0:
            if len(self._items) == MAX_EXAMPLES:
                self._items, self._stride = self._items[::2], 2 * self._stride
            if self._n_added % self._stride == 0:
                self._items.append(make_item())
        self._n_added += 1

    def items(self) -> list[PairExample]:
        """Return the items that are kept."""
        return self._items


def read_blocks(corpus: ParallelCorpus) -> Iterator[Block]:
    """Yield the pairs of a corpus in order."""
    first = 0
    for batch in corpus.batches():
        yield make_block(batch, np.arange(first, first + len(batch)))
        first += len(batch)


def _read_table(path: Path) -> Iterator[Block]:
    for batch in read_batches(path):
        yield make_block(batch, batch["row"].to_numpy())


def make_block(batch: Any, rows: Any) -> Block:
    """Decode a record batch."""
    texts = batch["src"].to_pylist(), batch["tgt"].to_pylist()
    return Block(*texts, batch["file"].to_numpy(), batch["line"].to_numpy(), rows)


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

    def make() -> None:
        with atomic_shared_folder(folder) as temporary:
            run = FilterPipeline(corpus, filters, languages, held_out, temporary, workers=workers)
            _write_filtered(run, temporary)

    make_once(folder, make)
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
        run = FilterPipeline(corpus, filters[: number + 1], languages, held_out, folder, observe)
        for _ in run.blocks():
            yield from found
            found.clear()


# --- cached results ---------------------------------------------------------------------------------------------------


def _cache_key(corpus: ParallelCorpus, filters: Sequence[Filter], languages: Sequence[str], held_out: HeldOut) -> str:
    """Hash the corpora, the filters and what they depend on."""
    states = [[filter_.model_dump(mode="json"), filter_.external_state()] for filter_ in filters]
    others = [[name, other.key, other.fingerprint] for name, other in held_out.items()]
    settings = [FORMAT_VERSION, corpus.key, corpus.fingerprint, states, languages, others]
    return sha256(json.dumps(settings).encode()).hexdigest()[:16]


def _write_filtered(run: FilterPipeline, folder: Path) -> None:
    """Write the table, its description and the reports. Raises `UserError` if nothing is left."""
    with TableWriter(folder / "pairs.arrow") as table:
        for block in run.blocks():
            if len(block):
                table.write(block.src, block.tgt, block.files, block.lines)
    reports = run.reports()
    if table.n_pairs == 0:
        removing = [number for number, report in enumerate(reports) if report.removes and report.n_affected]
        counts = ", ".join(f"{reports[number].name} {reports[number].n_affected:,}" for number in removing)
        raise run.filters[removing[-1]].make_error(
            f"no pair of {len(run.corpus):,} is left (removed: {counts}); loosen this filter or remove it"
        )
    for leftover in set(folder.iterdir()) - {folder / "pairs.arrow"}:
        leftover.unlink()
    info = {"sha256": table.text_hash(), "files": run.corpus.files}
    (folder / "table.json").write_text(json.dumps(info), encoding="utf-8")
    report = json.dumps([*map(asdict, reports)], ensure_ascii=False, indent=1)
    (folder / "filters.json").write_text(report, encoding="utf-8")


def _load_filtered(folder: Path) -> ParallelCorpus:
    from datasets import Dataset

    info = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    reports: list[FilterReport] = []
    for report in json.loads((folder / "filters.json").read_text(encoding="utf-8")):
        examples = tuple(PairExample(*example) for example in report.pop("examples"))
        reports.append(FilterReport(**report, examples=examples))
    table = Dataset.from_file(str(folder / "pairs.arrow"))
    return ParallelCorpus(table, info["files"], folder.name, info["sha256"], filters=tuple(reports))
