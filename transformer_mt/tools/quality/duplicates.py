"""Exact duplicates in a corpus of any size.

For each shard, a task writes the sorted hashes of its rows. For each range of hashes, another task then reads this
range from every shard, and finds the first row of each hash. So the memory of a task is bounded by one shard, or by the
hashes of about `RANGE_ROWS` rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.stages import Runner, Stage, TaskMetadata
from transformer_mt.tools.quality.signals import make_comparison_keys

Hashes = NDArray[np.uint64]
IntArray = NDArray[np.int64]
Records = NDArray[np.void]
ComparedSide = Literal["pair", "src", "tgt"]
ComparedSides = Literal["any", ComparedSide]

# --- hashes -----------------------------------------------------------------------------------------------------------

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio


def hash_texts(texts: Iterable[str]) -> Hashes:
    """Return a 64-bit hash of each text, which does not depend on the process."""
    import xxhash

    digest: Callable[[bytes], int] = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(text.encode("utf-8", "surrogatepass")) for text in texts), np.uint64)


def hash_side(src: Sequence[str], tgt: Sequence[str], of: ComparedSide, *, normalized: bool = False) -> Hashes:
    """Hash pairs, sources or targets, optionally without case, spaces and punctuation."""
    sides = {"pair": [src, tgt], "src": [src], "tgt": [tgt]}[of]
    first, *others = [hash_texts(make_comparison_keys(side) if normalized else side) for side in sides]
    return first + others[0] * _MIX if others else first


def columns_of(of: ComparedSide) -> tuple[str, ...]:
    """Return the names of the compared columns."""
    return ("src", "tgt") if of == "pair" else (of,)


def has_text(hashes: Hashes) -> NDArray[np.bool_]:
    """Return a mask of the hashes of texts that are not empty. An empty source or target is never a duplicate."""
    return hashes != hash_texts([""])


# --- files of sorted records ------------------------------------------------------------------------------------------

RANGE_ROWS = 2_000_000
"""Approximate number of rows whose hashes one task compares. The results do not depend on it."""


def count_ranges(n_rows: int) -> int:
    """Return the number of ranges that the hashes of `n_rows` rows are divided into."""
    return max(1, -(-n_rows // RANGE_ROWS))


def hash_range(number: int, n_ranges: int, bits: int) -> tuple[int, int]:
    """Return the lower (inclusive) and upper bound (exclusive) of a range of hashes. All ranges have the same size."""
    return (number << bits) // n_ranges, (number + 1 << bits) // n_ranges


def read_range(
    path: Path, kind: np.dtype[np.void], low: int, high: int, first: int = 0, count: int | None = None
) -> Records:
    """Return the records of a sorted file whose first field is at least `low` and below `high`.

    Finds them by binary search, in the whole file or in the `count` records from number `first`.
    """
    count = path.stat().st_size // kind.itemsize if count is None else count
    if not count:
        return np.empty(0, kind)
    records = np.memmap(path, kind, "r", first * kind.itemsize, (count,))

    def field(record: Any) -> int:
        return int(record[0])

    start = bisect_left(records, low, key=field)
    end = bisect_left(records, high, start, key=field)
    return np.fromfile(path, kind, end - start, offset=(first + start) * kind.itemsize)


# --- duplicates -------------------------------------------------------------------------------------------------------

MATCH = np.dtype([("row", "<i8"), ("other", "<i8"), ("similarity", "<f4")])
MATCHES_FILE = "matches.bin"


@dataclass(frozen=True)
class Matches:
    """Rows that are equal or similar to another one, in ascending order."""

    rows: IntArray
    others: IntArray  # the earlier row, or the text of an index
    similarities: NDArray[np.float32]  # Jaccard index of the shingles; 1: equal

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class DuplicateRows:
    """The rows of a corpus that are equal or similar to an earlier one, in files. It can be pickled."""

    n_rows: int
    files: Sequence[Path]  # of `MATCH` records, each sorted by row
    bounds: IntArray  # first row of each shard, and the number of rows of the corpus

    def read_shard(self, number: int) -> Matches:
        """Return the matches of the rows of a shard. Their row numbers are those of the corpus."""
        low, high = self.bounds[number : number + 2].tolist()
        found = np.concatenate([np.empty(0, MATCH), *(read_range(path, MATCH, low, high) for path in self.files)])
        found = found[np.argsort(found["row"])]
        return Matches(*(found[name].copy() for name in ("row", "other", "similarity")))


FORMAT_VERSION = 1  # of the files; part of their keys
_HASHED = np.dtype([("hash", "<u8"), ("row", "<u4")])
_HASHES_FILE = "hashes.bin"


def find_duplicates(
    corpus: ParallelCorpus, runner: Runner, cache_dir: Path, of: ComparedSide = "pair", *, normalized: bool = False
) -> DuplicateRows:
    """Return the rows whose pair, source or target is equal to that of an earlier row.

    An empty source or target repeats nothing. `normalized` ignores case, spaces and punctuation. Raises `UserError` if
    a task has failed.
    """
    n_shards, n_ranges = len(corpus.shards), count_ranges(len(corpus))
    key = [FORMAT_VERSION, corpus.key, corpus.fingerprint, of, normalized]
    hash_shard = partial(_hash_shard, corpus, of, normalized)
    hashed = runner(Stage("hash", cache_dir, key, n_shards, hash_shard, len(corpus) * _HASHED.itemsize))
    find_in_range = partial(_find_duplicates_in_range, [result.folder for result in hashed], corpus.bounds, n_ranges)
    found = runner(Stage("duplicates", cache_dir, [*key, n_ranges], n_ranges, find_in_range))
    n_rows = sum(result.metadata["n_rows"] for result in found)
    return DuplicateRows(n_rows, [result.folder / MATCHES_FILE for result in found], corpus.bounds)


def _hash_shard(corpus: ParallelCorpus, of: ComparedSide, normalized: bool, shard: int, folder: Path) -> TaskMetadata:
    """Write the sorted hashes of a shard, with their rows in the shard. Empty texts are left out."""
    blocks = [np.empty(0, np.uint64)]
    for batch in corpus.shard_record_batches(shard):
        blocks.append(hash_side(batch["src"].to_pylist(), batch["tgt"].to_pylist(), of, normalized=normalized))
    hashes = np.concatenate(blocks)
    rows = np.flatnonzero(has_text(hashes))
    rows = rows[np.argsort(hashes[rows], kind="stable")]
    records = np.empty(len(rows), _HASHED)
    records["hash"], records["row"] = hashes[rows], rows
    (folder / _HASHES_FILE).write_bytes(records.data)
    return {}


def _find_duplicates_in_range(
    folders: Sequence[Path], bounds: IntArray, n_ranges: int, number: int, folder: Path
) -> TaskMetadata:
    """Write the rows with a hash in a range that an earlier row also has."""
    low, high = hash_range(number, n_ranges, 64)
    parts = [read_range(path / _HASHES_FILE, _HASHED, low, high) for path in folders]
    hashes = np.concatenate([np.empty(0, np.uint64), *(part["hash"] for part in parts)])
    starts = np.repeat(bounds[:-1], [len(part) for part in parts])
    rows = np.concatenate([np.empty(0, np.int64), *(part["row"] for part in parts)]) + starts
    order = np.argsort(hashes, kind="stable")  # the rows of a hash stay in ascending order
    hashes, rows = hashes[order], rows[order]
    is_repeated = np.zeros(len(hashes), np.bool_)
    is_repeated[1:] = hashes[1:] == hashes[:-1]
    firsts = rows[np.maximum.accumulate(np.where(is_repeated, 0, np.arange(len(rows))))]
    found = np.empty(int(is_repeated.sum()), MATCH)
    found["row"], found["other"], found["similarity"] = rows[is_repeated], firsts[is_repeated], 1
    (folder / MATCHES_FILE).write_bytes(found[np.argsort(found["row"])].data)
    return {"n_rows": len(found)}
