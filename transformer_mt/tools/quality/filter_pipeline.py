"""Apply filters to a corpus, shard by shard.

A filter that needs the whole corpus (`CorpusFilter`) first searches the pairs that the filters before it have left. So
each of these filters starts a new stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.data.corpus import (
    FilterReport,
    PairExample,
    ParallelCorpus,
    Shard,
    TableWriter,
    choose_evenly,
    join_fingerprints,
    load_kept,
    log_progress,
    serialize_pairs,
)
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner, Stage, TaskMetadata, TaskResult, save_array
from transformer_mt.tools.quality.filter_base import (
    Block,
    CorpusFilter,
    Filter,
    FilterContext,
    FilterFunction,
    MakeShardFunction,
    read_blocks,
)

MAX_EXAMPLES = 100  # pairs that a report keeps of each filter
FORMAT_VERSION = 7  # of a filtered table and of what the filters do; part of its key

HeldOut = Mapping[str, ParallelCorpus]
Observer = Callable[[int, Block, Mapping[int, str]], None]
"""Called with the number of a filter, the block before it, and the reasons of the pairs that it removes or changes."""


def apply_filters(
    filters: Sequence[Filter],
    functions: Sequence[FilterFunction],
    blocks: Iterator[Block],
    observe: Observer,
    *,
    removes: bool = True,
) -> Iterator[Block]:
    """Yield the pairs that filters leave. Empty blocks are yielded too.

    With `removes=False`, no pair is removed, so each filter sees all pairs.
    """
    for block in blocks:
        for number, (filter_, function) in enumerate(zip(filters, functions, strict=True)):
            before = block if filter_.removes else block.copy()
            if reasons := function(block):
                observe(number, before, reasons)
                if filter_.removes and removes:
                    block = block.without(reasons)
        yield block


class PairSample:
    """Counts pairs, and keeps up to `size` examples, spread evenly."""

    def __init__(self, size: int) -> None:
        self._size, self._stride = size, 1
        self.count, self.examples = 0, list[PairExample]()

    def add(self, block: Block, reasons: Mapping[int, str]) -> None:
        """Count the pairs of a block that have a reason, and keep some as examples."""
        for i in reasons:
            if self.count % self._stride == 0 and len(self.examples) == self._size:
                self.examples, self._stride = self.examples[::2], 2 * self._stride
            if self.count % self._stride == 0:
                self.examples.append(block.describe(i, reasons[i]))
            self.count += 1


def merge_examples(of_shards: Sequence[Sequence[Any]]) -> tuple[PairExample, ...]:
    """Return at most `MAX_EXAMPLES` of the examples of all shards, from the metadata of their tasks."""
    found = [PairExample(*example) for examples in of_shards for example in examples]
    return tuple(choose_evenly(found, MAX_EXAMPLES))


# --- shards -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardFilters:
    """The filters of a stage, which are applied to one shard at a time. It can be pickled."""

    pairs: ParallelCorpus
    context: FilterContext
    filters: Sequence[Filter]
    found: Sequence[MakeShardFunction | None]  # results of `find_pairs`, one for each filter
    removes: bool = True

    @cached_property  # a function may learn from a sample, or index the held-out sets
    def _shared_functions(self) -> dict[int, FilterFunction]:
        """The functions that are the same for all shards, by the number of the filter."""
        return {
            number: filter_.make_function(self.context)
            for number, (filter_, make_function) in enumerate(zip(self.filters, self.found, strict=True))
            if make_function is None
        }

    def apply(self, shard: int, observe: Observer) -> Iterator[Block]:
        """Apply the filters to the blocks of a shard, see `apply_filters`."""
        functions = [
            self._shared_functions[number] if make_function is None else make_function(shard)
            for number, make_function in enumerate(self.found)
        ]
        n_rows = int(self.pairs.bounds[shard + 1] - self.pairs.bounds[shard])
        blocks = log_progress(
            read_blocks(self.pairs, shard, self.context.corpus), "filtered" if self.removes else "checked", n_rows
        )
        return apply_filters(self.filters, functions, blocks, observe, removes=self.removes)

    def make_samples(self) -> list[PairSample]:
        """Return an empty sample for each filter. Those of all shards keep about `MAX_EXAMPLES` pairs."""
        return [PairSample(-(-MAX_EXAMPLES // len(self.pairs.shards))) for _ in self.filters]


def find_pairs(
    pairs: ParallelCorpus, context: FilterContext, filters: Sequence[Filter], cache_dir: Path, runner: Runner
) -> list[MakeShardFunction | None]:
    """Let each `CorpusFilter` search the corpus, and return its result. It is None for other filters."""
    return [
        filter_.find(pairs, context, cache_dir, runner) if isinstance(filter_, CorpusFilter) else None
        for filter_ in filters
    ]


TABLE, KEPT = "pairs.arrow", "kept.npy"


@dataclass(frozen=True)
class FilterTask:
    """Task: filter a shard. Write a new table if the filters change text, otherwise the numbers of the kept rows."""

    filters: ShardFilters

    @property
    def changes_text(self) -> bool:
        """Return whether a filter changes text."""
        return not all(filter_.removes for filter_ in self.filters.filters)

    def __call__(self, task: int, folder: Path) -> TaskMetadata:
        """Return number and hash of the remaining pairs, and number and examples of those that each filter affects."""
        samples = self.filters.make_samples()

        def observe(number: int, block: Block, reasons: Mapping[int, str]) -> None:
            samples[number].add(block, reasons)

        shard = self.filters.pairs.shards[task]
        write = self._write_table if self.changes_text else self._write_rows
        n_rows, text_hash = write(self.filters.apply(task, observe), shard, folder)
        affected = [(sample.count, sample.examples) for sample in samples]
        return {"n_rows": n_rows, "text_hash": text_hash, "affected": affected}

    def _write_table(self, blocks: Iterator[Block], shard: Shard, folder: Path) -> tuple[int, str]:
        indices = {name: i for i, name in enumerate(shard.files)}
        with TableWriter(folder / TABLE, {"row": "int64"}) as table:
            for block in blocks:
                files = [indices[name] for name in block.files]
                table.write(block.src, block.tgt, files, block.lines, block.rows)
        return table.n_pairs, table.hasher.hexdigest()

    def _write_rows(self, blocks: Iterator[Block], shard: Shard, folder: Path) -> tuple[int, str]:
        hasher, positions = sha256(), [np.empty(0, np.int64)]
        for block in blocks:
            hasher.update(serialize_pairs(block.src, block.tgt))
            positions.append(block.positions)
        rows = np.concatenate(positions)
        if shard.kept is not None:
            rows = load_kept(shard.kept)[rows]
        save_array(folder / KEPT, rows.astype(np.uint32))
        return len(rows), hasher.hexdigest()

    def make_shard(self, old: Shard, result: TaskResult) -> Shard:
        """Return the filtered shard, from the unfiltered one and the result of its task."""
        n_rows = int(result.metadata["n_rows"])
        if self.changes_text:
            return Shard(result.folder / TABLE, n_rows, old.files)
        return Shard(old.path, n_rows, old.files, result.folder / KEPT)


# --- corpora ----------------------------------------------------------------------------------------------------------


def filter_corpus(
    corpus: ParallelCorpus,
    filters: Sequence[Filter],
    languages: tuple[str, str],
    held_out: HeldOut,
    cache_dir: Path,
    runner: Runner = IN_PROCESS_RUNNER,
) -> ParallelCorpus:
    """Return the corpus that the filters leave, with their reports. It is cached for unchanged input.

    `languages` are those of source and target, and `held_out` has the configured validation and test sets. Raises
    `UserError` with file, line and key if nothing is left, or a filter does not know a language.
    """
    context = FilterContext(corpus, languages, held_out)
    states = [[filter_.model_dump(mode="json"), filter_.external_state()] for filter_ in filters]
    pairs = corpus
    for part in _divide_into_stages(filters):
        pairs = _run_filter_stage(pairs, context, filters, states[part], part, cache_dir, runner)
    return pairs


def _divide_into_stages(filters: Sequence[Filter]) -> Iterator[slice]:
    """Yield the filters of each stage. Each `CorpusFilter` starts a new stage."""
    starts = [0, *(i for i, filter_ in enumerate(filters) if i and isinstance(filter_, CorpusFilter))]
    for start, end in zip(starts, [*starts[1:], len(filters)], strict=True):
        yield slice(start, end)


def _run_filter_stage(
    pairs: ParallelCorpus,
    context: FilterContext,
    filters: Sequence[Filter],
    states: Sequence[object],
    part: slice,
    cache_dir: Path,
    runner: Runner,
) -> ParallelCorpus:
    needs_held_out = any(filter_.needs_held_out for filter_ in filters[part])
    others = [[name, other.key, other.fingerprint] for name, other in context.held_out.items() if needs_held_out]
    corpora = [[each.key, each.fingerprint] for each in (context.corpus, pairs)]
    key = [FORMAT_VERSION, corpora, states, context.languages, others]
    shard_filters = ShardFilters(pairs, context, filters[part], [])
    write = FilterTask(shard_filters)
    stage = Stage("filter", cache_dir, key, len(pairs.shards), write)
    if not stage.is_complete():
        found = find_pairs(pairs, context, filters[part], cache_dir, runner)
        stage = replace(stage, run=FilterTask(replace(shard_filters, found=found)))
    results = runner(stage)
    shards = [write.make_shard(*old_and_result) for old_and_result in zip(pairs.shards, results, strict=True)]
    reports, n_seen = [*pairs.filters], len(pairs)
    for i, label in [*enumerate(_label_filters(filters))][part]:
        affected = [metadata["affected"][i - part.start] for _, metadata in results]
        examples = merge_examples([found for _, found in affected])
        report = FilterReport(label, filters[i].removes, n_seen, sum(count for count, _ in affected), examples)
        reports.append(report)
        n_seen -= report.n_affected if report.removes else 0
    if n_seen == 0:
        removing = [number for number, report in enumerate(reports) if report.removes and report.n_affected]
        counts = ", ".join(f"{reports[number].name} {reports[number].n_affected:,}" for number in removing)
        raise filters[removing[-1]].make_error(
            f"no pair of {len(context.corpus):,} is left (removed: {counts}); loosen this filter or remove it"
        )
    fingerprint = join_fingerprints([metadata["text_hash"] for _, metadata in results])
    return ParallelCorpus(shards, stage.folder.name, fingerprint, filters=tuple(reports))


def _label_filters(filters: Sequence[Filter]) -> list[str]:
    """Return the name of each filter, with its number if another one has the same name."""
    names = [filter_.kind for filter_ in filters]
    return [f"{name} (data.filters.{i})" if names.count(name) > 1 else name for i, name in enumerate(names)]
