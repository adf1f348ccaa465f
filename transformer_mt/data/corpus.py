"""Parallel text as shards: Arrow tables `src | tgt | file | line` of at most `SHARD_PAIRS` rows each.

A corpus may be larger than the memory: tasks read one shard each, and single rows are read through memory maps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.stages import report_damage
from transformer_mt.errors import UserError
from transformer_mt.system.log import ProgressReport

SHARD_PAIRS = 250_000
"""Maximum pairs of a shard. Results do not depend on it."""
BLOCK_SIZE = 10_000  # pairs in memory at a time
SPARSE_DIVISOR = 20  # single rows are read if less than 1/20 of a shard is selected
OPEN_SHARDS = 4  # memory maps that are kept; their pages count as memory of the process

T = TypeVar("T")
B = TypeVar("B", bound=Sized)


def log_progress(blocks: Iterable[B], verb: str, total: int | None = None) -> Iterator[B]:
    """Yield the blocks, and log messages such as `data: encoded 40,000 of 90,000 pairs`."""
    with ProgressReport(f"data: {verb}", total, "pairs").show(bar=False) as progress:
        count = 0
        for block in blocks:
            n_pairs = len(block)  # the consumer may change it
            yield block
            count += n_pairs
            progress.update(count)


COLUMNS = {"src": "string", "tgt": "string", "file": "int32", "line": "int64"}


def number_column(name: str) -> str:
    """Return the column of a shard for a column of numbers of its source."""
    return f"number {name}"


Numbers = Sequence[float] | NDArray[np.integer[Any]]


def serialize_pairs(src: Sequence[str], tgt: Sequence[str]) -> bytes:
    """Return pairs as UTF-8 bytes, each sentence with a line end. Fingerprints are hashes of these bytes."""
    return "".join(f"{a}\n{b}\n" for a, b in zip(src, tgt, strict=True)).encode()


def make_line(text: str) -> str:
    """Return a sentence as a line of a text file. Line breaks in it, as in cells of tables, become spaces."""
    return text.replace("\r\n", " ").replace("\n", " ") + "\n"


class TableWriter(ExitStack):
    """Writes a table, and hashes its text: `hasher` has the SHA-256 of the pairs so far. A context manager."""

    def __init__(self, path: Path, extra_columns: Mapping[str, str] = {}) -> None:
        super().__init__()
        import pyarrow

        self._pa: Any = pyarrow
        kinds = {**COLUMNS, **extra_columns}
        self._schema = self._pa.schema([(name, getattr(self._pa, kind)()) for name, kind in kinds.items()])
        self.hasher = hashlib.sha256()
        self._stream = self.enter_context(
            self._pa.ipc.new_file(self.enter_context(self._pa.OSFile(str(path), "wb")), self._schema)
        )
        self.n_pairs = 0

    def write(self, src: Sequence[str], tgt: Sequence[str], *columns: Numbers) -> None:
        """Append pairs, with their `file`, `line` and any extra columns."""
        self.n_pairs += len(src)
        self.hasher.update(serialize_pairs(src, tgt))
        values = dict(zip(self._schema.names, (src, tgt, *columns), strict=True))
        self._stream.write_batch(self._pa.RecordBatch.from_pydict(values, schema=self._schema))


def read_record_batches(path: Path) -> Iterator[Any]:
    """Yield the record batches of a table. Unlike a memory map, this does not grow the resident memory."""
    import pyarrow

    pa: Any = pyarrow
    with report_damage(path.parents[1]), pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


@lru_cache(OPEN_SHARDS)
def _map_table(path: Path) -> Any:
    import pyarrow

    pa: Any = pyarrow
    with report_damage(path.parents[1]):
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def load_kept(path: Path) -> NDArray[np.integer[Any]]:
    """Return the rows of a table that filters have left, memory-mapped."""
    with report_damage(path.parents[1]):
        return np.load(path, mmap_mode="r")


MAX_LISTED = 5  # pairs that a message lists
N_EXAMPLES = 3  # examples of a filter or check that are printed
SUSPICIOUS_SHARE = 0.5  # of the pairs; a filter that removes more gives a warning
SAMPLE_WINDOW = 100  # consecutive pairs of a sample
REST = "rest-"  # name prefix of the training pairs that are left after validation pairs were split off
HASHED_ROWS = 1 << 20  # rows whose hashes are in memory at a time


class PairExample(NamedTuple):
    """A pair that a filter or check has found, with its text before any change."""

    location: str  # file:line
    src: str
    tgt: str
    reason: str


def choose_evenly(items: Sequence[T], size: int = N_EXAMPLES) -> list[T]:
    """Return at most `size` items, spread evenly, with the first and the last one. If `size` is 1, return the first."""
    chosen = np.linspace(0, len(items) - 1, min(size, len(items)), dtype=np.int64)
    return [items[i] for i in chosen.tolist()]


@dataclass(frozen=True)
class FilterReport:
    """The effect of a filter on a corpus."""

    name: str
    removes: bool  # False: it changes pairs
    n_seen: int  # pairs that the filters before have left
    n_affected: int
    examples: tuple[PairExample, ...]  # spread evenly over the affected pairs

    def describe(self) -> str:
        """Return one sentence for the log, with up to three examples. It is a warning if most pairs are removed."""
        verb = "removed" if self.removes else "changed"
        share = self.n_affected / max(1, self.n_seen)
        found = [f"{example.location} ({example.reason})" for example in choose_evenly(self.examples)]
        such_as = f", such as {', '.join(found)}" if found else ""
        sentence = f"filter {self.name} {verb} {self.n_affected:,} of {self.n_seen:,} pairs ({share:.1%}){such_as}"
        if self.removes and share > SUSPICIOUS_SHARE:
            return f"warning: {sentence}; check data.filters, and src_lang and tgt_lang"
        return sentence


class Shard(NamedTuple):
    """One table of a corpus. Its column `file` has indices of `files`."""

    path: Path
    n_rows: int
    files: Sequence[str]
    kept: Path | None = None  # array of the rows of the table that filters have left, ascending; None: all


@dataclass(frozen=True)
class ParallelCorpus:
    """Sentence pairs in shards, or a selection of their rows. It can be pickled."""

    shards: Sequence[Shard]
    key: str  # identifies the cached tables and the selection
    fingerprint: str  # SHA-256 of the text, and the name of the selection
    selected: NDArray[np.int64] | None = None  # ascending row numbers of the tables; None: all rows
    left_out: NDArray[np.int64] | None = None  # if all others are selected: ascending row numbers of a few rows
    filters: tuple[FilterReport, ...] = ()  # what the filters of data.filters have removed
    source_sizes: Mapping[str, int] = field(default_factory=dict[str, int])  # of a mixture: number of rows by name

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield the sentence pairs in order."""
        for number in range(len(self.shards)):
            for batch in self.shard_record_batches(number):
                yield from zip(batch["src"].to_pylist(), batch["tgt"].to_pylist(), strict=True)

    @cached_property
    def table_bounds(self) -> NDArray[np.int64]:
        """Return the first row of each shard without the selection, and the number of rows: [shards + 1]."""
        return np.cumsum([0, *(shard.n_rows for shard in self.shards)])

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Return the first row of each shard, and the number of rows: [shards + 1]."""
        return self._count_selected_before(self.table_bounds)

    def _count_selected_before(self, table_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of selected rows before each row of the tables."""
        if self.selected is not None:
            return np.searchsorted(self.selected, table_rows)
        if self.left_out is not None:
            return table_rows - np.searchsorted(self.left_out, table_rows)
        return table_rows

    def _table_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert row numbers of the selection into row numbers of the tables."""
        if self.selected is not None:
            return self.selected[rows]
        if self.left_out is not None:
            return rows + np.searchsorted(self.left_out - np.arange(len(self.left_out)), rows, side="right")
        return rows

    def shard_record_batches(self, number: int) -> Iterator[Any]:
        """Yield the rows of a shard in order, as Arrow record batches."""
        return (batch for _, batch in self.numbered_record_batches(number))

    def numbered_record_batches(self, number: int) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """Yield the record batches of a shard, each with the row numbers in the table."""
        shard, first = self.shards[number], int(self.table_bounds[number])
        kept = np.arange(shard.n_rows) if shard.kept is None else load_kept(shard.kept)
        if self.selected is not None:
            chosen = self.selected[slice(*self.bounds[number : number + 2].tolist())]
            if len(chosen) < shard.n_rows / SPARSE_DIVISOR:
                rows = kept[chosen - first].astype(np.int64)
                yield from ((rows, batch) for batch in _map_table(shard.path).take(rows).combine_chunks().to_batches())
                return
        start = 0
        for batch in read_record_batches(shard.path):
            low, high = np.searchsorted(kept, (start, start + len(batch))).tolist()
            rows = kept[low:high].astype(np.int64)
            if self.selected is not None or self.left_out is not None:
                ranks: list[int] = self._count_selected_before(np.array([first + low, first + high])).tolist()
                rows = rows[self._table_rows(np.arange(*ranks)) - first - low]
            yield rows, batch if len(rows) == len(batch) else batch.take(rows - start)
            start += len(batch)

    def take(self, rows: NDArray[np.int64], columns: Sequence[str] = tuple(COLUMNS)) -> dict[str, list[Any]]:
        """Return some rows in the given order, by column. `file` has the names of the files."""
        table_rows = self._table_rows(rows)
        numbers = np.searchsorted(self.table_bounds, table_rows, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        found: dict[str, list[Any]] = {name: [None] * len(rows) for name in columns}
        for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if not len(part):
                continue
            number = int(numbers[part[0]])
            shard = self.shards[number]
            local_rows = table_rows[part] - self.table_bounds[number]
            if shard.kept is not None:
                local_rows = load_kept(shard.kept)[local_rows]
            table = _map_table(shard.path).select([*columns]).take(local_rows)
            for name, values in found.items():
                for i, value in zip(part.tolist(), table[name].to_pylist(), strict=True):
                    values[i] = shard.files[value] if name == "file" else value
        return found

    def rows(self, start: int, end: int) -> Iterator[tuple[str, str]]:
        """Yield the pairs of some consecutive rows."""
        for first in range(start, end, BLOCK_SIZE):
            found = self.take(np.arange(first, min(end, first + BLOCK_SIZE)), ("src", "tgt"))
            yield from zip(found["src"], found["tgt"], strict=True)

    def source_bounds(self) -> NDArray[np.int64]:
        """Return the first row of each source, and the number of rows: [K + 1]. A single source has no name."""
        sizes = self.source_sizes.values() if self.source_sizes else [int(self.table_bounds[-1])]
        return self._count_selected_before(np.cumsum([0, *sizes]))

    def split_sources(self) -> list[ParallelCorpus]:
        """Return the corpus of each source: this one if it has a single source."""
        if not self.source_sizes:
            return [self]
        bounds: list[int] = np.cumsum([0, *self.source_sizes.values()]).tolist()
        ranges = zip(self.source_sizes, pairwise(bounds), strict=True)
        return [self._take_shards(first, end, name) for name, (first, end) in ranges]

    def _take_shards(self, first: int, end: int, name: str) -> ParallelCorpus:
        """Return the corpus of the shards from a row of the tables to another one."""
        start, stop = np.searchsorted(self.table_bounds, (first, end)).tolist()

        def cut(rows: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
            return None if rows is None else rows[slice(*np.searchsorted(rows, (first, end)).tolist())] - first

        chosen = {"selected": cut(self.selected), "left_out": cut(self.left_out)}
        return self._renamed(name, shards=self.shards[start:stop], source_sizes={}, **chosen)

    def sample(self, size: int) -> list[tuple[str, str]]:
        """Return at most `size` pairs, in evenly spread windows: single rows would map nearly every page of a file."""
        starts = [*range(0, len(self), SAMPLE_WINDOW)]
        if len(self) > size:
            starts = np.linspace(0, len(self) - SAMPLE_WINDOW, size // SAMPLE_WINDOW).astype(np.int64).tolist()
        return [pair for start in starts for pair in self.rows(start, min(start + SAMPLE_WINDOW, len(self)))]

    def column(self, name: Literal["src", "tgt"]) -> list[str]:
        """Return one side as a list. Meant for validation and test sets, which fit in memory."""
        return [pair[name == "tgt"] for pair in self]

    def describe_line(self, row: int) -> str:
        """Return the file and line of a pair as `file:line`."""
        found = self.take(np.array([row]))
        return f"{found['file'][0]}:{found['line'][0]}"

    def describe_lines(self, rows: Sequence[int], count: int | None = None) -> str:
        """Return `file:line` of the first few rows, and how many more of `count` (default: all rows) there are."""
        more = (len(rows) if count is None else count) - MAX_LISTED
        return ", ".join(map(self.describe_line, rows[:MAX_LISTED])) + (f", ... and {more:,} more" if more > 0 else "")

    def example(self, row: int, reason: str) -> PairExample:
        """Return a pair with its file and line, and the reason why it is shown."""
        return PairExample(self.describe_line(row), *next(self.rows(row, row + 1)), reason)

    def select_evenly(self, size: int) -> ParallelCorpus:
        """Return the corpus of at most `size` rows, spread evenly."""
        return self.select(np.array(choose_evenly(range(len(self)), size), np.int64), f"sample-{size}")

    def select(self, rows: NDArray[np.int64], name: str) -> ParallelCorpus:
        """Return the corpus of some rows, in ascending order. `name` extends its key and fingerprint."""
        return self._renamed(name, selected=self._table_rows(rows), left_out=None)

    def leave_out(self, rows: NDArray[np.int64], name: str) -> ParallelCorpus:
        """Return the corpus without a few rows, in ascending order. `name` extends its key and fingerprint."""
        if self.selected is not None:
            return self._renamed(name, selected=np.delete(self.selected, rows))
        before = np.empty(0, np.int64) if self.left_out is None else self.left_out
        return self._renamed(name, left_out=np.union1d(before, self._table_rows(rows)))

    def _renamed(self, name: str, **changes: Any) -> ParallelCorpus:
        return replace(self, key=f"{self.key}-{name}", fingerprint=f"{self.fingerprint}-{name}", **changes)


def join_fingerprints(hashes: Sequence[str]) -> str:
    """Combine the text hashes of shards into a fingerprint. A single hash is returned unchanged."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def combine_corpora(corpora: Mapping[str, ParallelCorpus]) -> ParallelCorpus:
    """Return one corpus with the pairs of all sources, source by source. It shares their shards."""
    return ParallelCorpus(
        [shard for corpus in corpora.values() for shard in corpus.shards],
        "+".join(f"{name} {corpus.key}" for name, corpus in corpora.items()),
        hashlib.sha256(
            "".join(f"{name} {corpus.fingerprint}\n" for name, corpus in corpora.items()).encode()
        ).hexdigest(),
        filters=tuple(
            replace(report, name=f"{report.name} of {name}")
            for name, corpus in corpora.items()
            for report in corpus.filters
        ),
        source_sizes={name: len(corpus) for name, corpus in corpora.items()},
    )


# --- validation pairs split off from the training pairs ---------------------------------------------------------------


def split_off_validation(corpus: ParallelCorpus, size: int, seed: int) -> tuple[ParallelCorpus, ParallelCorpus]:
    """Split a corpus at random into training and validation pairs, each in the corpus' order.

    The split depends only on the seed, the size and the number of pairs. Validation gets at most a tenth of them.
    Raises `UserError` below 10 pairs.
    """
    if len(corpus) < 10:
        raise UserError(
            f"data.validation: missing, and {len(corpus)} training pairs are too few to split some off; "
            "name validation pairs"
        )
    size = min(size, len(corpus) // 10)
    validation = choose_rows(len(corpus), size, seed)
    name = f"seed{seed}-{size}"
    return corpus.leave_out(validation, f"{REST}{name}"), corpus.select(validation, f"chosen-{name}")


def choose_rows(n_rows: int, size: int, seed: int) -> NDArray[np.int64]:
    """Return `size` of `n_rows` rows, ascending: those with the smallest hashes of (seed, row)."""
    rows, hashes = np.empty(0, np.int64), np.empty(0, np.uint64)
    for first in range(0, n_rows, HASHED_ROWS):
        rows = np.append(rows, np.arange(first, min(n_rows, first + HASHED_ROWS)))
        hashes = np.append(hashes, _hash_rows(rows[len(hashes) :], seed))
        kept = np.argsort(hashes, kind="stable")[:size]
        rows, hashes = rows[kept], hashes[kept]
    return np.sort(rows)


def _hash_rows(rows: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """Hash row numbers with the SplitMix64 generator (Steele et al. 2014)."""
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    z = start + (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def has_split_off_validation(fingerprint: str) -> bool:
    """Return whether validation pairs were split off from the training corpus with this fingerprint."""
    return f"-{REST}" in fingerprint


def is_split_differently(fingerprint: str, other: str) -> bool:
    """Return whether `other` is the same text, but with other validation pairs split off, or with none."""
    text = fingerprint.partition(f"-{REST}")[0]
    return has_split_off_validation(fingerprint) and other.partition(f"-{REST}")[0] == text and other != fingerprint
