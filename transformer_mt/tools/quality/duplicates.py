"""Exact and near duplicates in a corpus of any size.

For exact duplicates, a task writes the sorted hashes of the rows of each shard. Another task then reads a range of
hashes from every shard, and finds the first row of each hash. So the memory of a task is bounded by one shard, or by
the hashes of about `RANGE_ROWS` rows.

Near duplicates are texts that share most of their shingles, runs of four bytes of their comparison keys. MinHash
signatures (Broder 1997) with locality-sensitive hashing find candidates: texts that agree in every value of a band of
their signatures. Then the Jaccard index of the candidates' shingles is computed.

In these keys, a letter of an alphabet is one byte, and an East Asian character two (see `ShingledTexts`): four Latin or
Georgian letters say about as much as two Chinese characters. In a sentence of ten words, one other word costs more than
a fifth of the shingles; so captions that differ in a colour or a person are no near duplicates, unlike those that
differ in an article or a typing error.

They are found in four stages. For each shard, a task writes the sorted keys of its bands. For each range of keys, a
task finds candidates in all shards. For each shard, a task compares its rows with their candidates. A last task chooses
the rows to remove: those that are similar to an earlier row that is kept.

`N` texts, `P` values of a signature, `K` shingles of all texts.
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
from transformer_mt.errors import UserError
from transformer_mt.tools.quality.signals import make_comparison_key

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
    first, *others = [hash_texts([*map(make_comparison_key, side)] if normalized else side) for side in sides]
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


FORMAT_VERSION = 3  # of the files; part of their keys
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
    hashed = runner(Stage("hash", cache_dir, key, n_shards, hash_shard))
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


# --- near duplicates --------------------------------------------------------------------------------------------------

MIN_SIMILARITY = 0.7
"""Lowest threshold that the options allow."""
SIMILARITY = 0.8
"""Default threshold of the Jaccard index of near duplicates."""

# --- shingles and signatures ------------------------------------------------------------------------------------------

SHINGLE = 4  # bytes, so that a shingle is an integer of 32 bits
PADDING = "\0" * (SHINGLE - 1)  # between texts, so that also their first and last bytes are in `SHINGLE` shingles
CHUNK_SIZE = 1000  # texts whose shingles fit in the cache of a core
SKETCH_BITS = 60  # one bit of each of the first values of a signature
EAST_ASIAN = 0x2E80  # code point from which characters are Chinese, Japanese and Korean, apart from rare scripts
TOLERANCE = 0.22  # three standard deviations of the similarity that is estimated from sketches


@dataclass(frozen=True)
class Bands:
    """Division of signatures into bands. Texts with an equal band are candidates."""

    count: int
    size: int  # values of a band

    @property
    def n_values(self) -> int:
        """Return the number of values of a signature."""
        return self.count * self.size


FEW_BANDS = Bands(12, 5)
"""Texts with a similarity of 0.8 agree in at least one band with a probability of 99 % (0.7: 89 %; 0.4: 12 %)."""
MANY_BANDS = Bands(20, 7)
"""The same with 99 % (0.7: 82 %; 0.4: 3 %). A large corpus has more texts with a low similarity to each other."""
MAX_ROWS_OF_FEW_BANDS = 4_000_000

_random = np.random.default_rng(20)
_MULTIPLIERS = _random.integers(0, 2**32, MANY_BANDS.count * MANY_BANDS.size, np.uint32) | np.uint32(1)
_BAND_MULTIPLIERS = _random.integers(0, 2**63, MANY_BANDS.size, np.uint64) | np.uint64(1)


def make_compared_texts(src: Sequence[str], tgt: Sequence[str], of: ComparedSide) -> list[str]:
    """Return the comparison keys of pairs, sources or targets."""
    if of == "pair":
        keys = zip(map(make_comparison_key, src), map(make_comparison_key, tgt), strict=True)
        return [f"{src_key}{PADDING}{tgt_key}" for src_key, tgt_key in keys]
    return [*map(make_comparison_key, src if of == "src" else tgt)]


class ShingledTexts:
    """The shingles of texts, in one array.

    A character below `EAST_ASIAN` is the low byte of its code point, which distinguishes the letters of an alphabet.
    Its UTF-8 would repeat the lead byte of its script in each shingle, and make all texts of that script similar. Other
    characters are the two low bytes.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        joined = PADDING.join(["", *texts, ""])
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")
        is_used = np.zeros((len(codes), 4), np.bool_)  # bytes of each character
        is_used[:, 0] = True
        is_used[:, 1] = codes >= EAST_ASIAN
        data = codes.view(np.uint8).reshape(-1, 4)[is_used]
        self.shingles = np.ndarray(len(data) - len(PADDING), "<u4", data, strides=(1,))  # [K], without a copy
        ends = np.cumsum(np.fromiter((len(PADDING) + len(text) for text in texts), np.int64, len(texts)))
        n_bytes = np.append(0, np.cumsum(1 + is_used[:, 1].astype(np.int64)))  # before each character
        self.counts = np.diff(n_bytes[ends], prepend=0)  # shingles of each, [N]
        self.starts = np.cumsum(self.counts) - self.counts

    def __len__(self) -> int:
        return len(self.counts)

    def signatures(self, n_values: int) -> NDArray[np.uint16]:
        """Return the MinHash signatures. [N, P]."""
        result = np.empty((len(self), n_values), np.uint16)
        for first in range(0, len(self), CHUNK_SIZE):
            chunk = slice(first, first + CHUNK_SIZE)
            starts, start, end = self.starts[chunk], self.starts[first], self.starts[first] + self.counts[chunk].sum()
            mixed = (self.shingles[start:end] + _MIX) * _MIX  # four zeros must not be the minimum of all
            mixed = ((mixed ^ (mixed >> np.uint64(32))) * _MIX >> np.uint64(32)).astype(np.uint32)
            minima, hashes = np.empty((n_values, len(starts)), np.uint16), np.empty_like(mixed)
            for i, multiplier in enumerate(_MULTIPLIERS[:n_values]):
                np.multiply(mixed, multiplier, out=hashes)  # a permutation of the integers of 32 bits
                minima[i] = np.minimum.reduceat(hashes, starts - start)  # the low half, as random as the whole
            result[chunk] = minima.T
        return result

    def tagged(self, texts: IntArray) -> Hashes:
        """Return the sorted distinct shingles of some texts. The high half of each is the position of its text."""
        counts = self.counts[texts]
        offsets: IntArray = self.starts[texts] - (np.cumsum(counts) - counts)
        positions = np.arange(int(counts.sum())) + np.repeat(offsets, counts)
        tags = np.repeat(np.arange(len(texts), dtype=np.uint64) << np.uint64(32), counts)
        tagged = np.sort(tags | self.shingles[positions], kind="stable")  # fast for partly sorted data
        return tagged[np.append(np.ones(1, np.bool_), tagged[1:] != tagged[:-1])[: len(tagged)]]


def measure_similarities(
    a: ShingledTexts, a_texts: IntArray, b: ShingledTexts, b_texts: IntArray
) -> NDArray[np.float32]:
    """Return the Jaccard index of the shingles of `a_texts[i]` and `b_texts[i]`."""
    parts = [np.empty(0, np.float32)]
    for first in range(0, len(a_texts), CHUNK_SIZE):
        chunk = slice(first, first + CHUNK_SIZE)
        union = np.sort(np.concatenate([a.tagged(a_texts[chunk]), b.tagged(b_texts[chunk])]), kind="stable")
        n_pairs = len(a_texts[chunk])
        n_both = np.bincount(_tags(union[1:][union[1:] == union[:-1]]), minlength=n_pairs)
        parts.append((n_both / (np.bincount(_tags(union), minlength=n_pairs) - n_both)).astype(np.float32))
    return np.concatenate(parts)


def _tags(tagged: Hashes) -> IntArray:
    return (tagged >> np.uint64(32)).astype(np.int64)


def make_band_keys(signatures: NDArray[np.uint16], bands: Bands, band: int) -> NDArray[np.uint32]:
    """Return a 32-bit hash of a band of the signatures. [N]."""
    values = signatures[:, band * bands.size : (band + 1) * bands.size].astype(np.uint64)
    return ((values * _BAND_MULTIPLIERS[: bands.size]).sum(axis=1) >> np.uint64(32)).astype(np.uint32)


def make_sketches(signatures: NDArray[np.uint16]) -> Hashes:
    """Return sketches: the lowest bits of the first values of the signatures. [N]."""
    bits = (signatures[:, :SKETCH_BITS] & np.uint16(1)).astype(np.uint8)
    return np.packbits(bits, axis=1).view("<u8")[:, 0]


def estimate_similarities(sketches: Hashes, others: Hashes) -> NDArray[np.float64]:
    """Estimate similarities from sketches: half of the bits of unrelated texts agree."""
    return 1 - np.bitwise_count(sketches ^ others) * (2 / SKETCH_BITS)


# --- index ------------------------------------------------------------------------------------------------------------

MAX_ROUNDS = 8  # comparisons of a text with others of the same band key
MAX_MATCHES = 2  # probably similar texts of the same band key, after which a text is compared with no more of them


class MinHashIndex:
    """Index of texts, such as the sources of a test set, that finds similar texts."""

    def __init__(self, texts: Sequence[str], similarity: float = SIMILARITY) -> None:
        self._known = {text: row for row, text in reversed([*enumerate(texts)])}
        self._texts = ShingledTexts(texts)
        self._similarity = similarity
        signatures = self._texts.signatures(FEW_BANDS.n_values)
        self._sketches = make_sketches(signatures)
        self._bands: list[tuple[NDArray[np.uint32], IntArray]] = []
        for band in range(FEW_BANDS.count):
            keys = make_band_keys(signatures, FEW_BANDS, band)
            order = np.argsort(keys, kind="stable")
            self._bands.append((keys[order], order))

    def find(self, texts: Sequence[str]) -> Matches:
        """Return the texts that are similar to a text of the index, but equal to none, with the most similar one."""
        compared = ShingledTexts(texts)
        signatures = compared.signatures(FEW_BANDS.n_values)
        sketches = make_sketches(signatures)
        is_new = np.fromiter((text not in self._known for text in texts), np.bool_, len(texts))
        pairs = [np.empty((2, 0), np.int64)]
        for band, (known, order) in enumerate(self._bands):
            rows = np.flatnonzero(is_new)
            keys = make_band_keys(signatures[rows], FEW_BANDS, band)
            positions, ends = np.searchsorted(known, keys), np.searchsorted(known, keys, side="right")
            for _ in range(MAX_ROUNDS):
                is_open = positions < ends
                rows, positions, ends = rows[is_open], positions[is_open], ends[is_open]
                if not len(rows):
                    break
                estimates = estimate_similarities(sketches[rows], self._sketches[order[positions]])
                pairs.append(np.stack([rows, order[positions]])[:, estimates >= self._similarity - TOLERANCE])
                positions += 1
        rows, others = np.unique(np.concatenate(pairs, axis=1), axis=1)
        similarities = measure_similarities(compared, rows, self._texts, others)
        best_first = np.lexsort([others, -similarities, rows])
        best_first = best_first[similarities[best_first] >= self._similarity]
        chosen = best_first[np.unique(rows[best_first], return_index=True)[1]]
        return Matches(rows[chosen], others[chosen], similarities[chosen])


# --- stages -----------------------------------------------------------------------------------------------------------

MAX_ROWS = 2**32
MAX_CANDIDATES = 8_000_000  # candidates in memory at a time
COMPARED_BLOCK = 50_000  # candidates whose texts are in memory at a time

_BAND_ENTRY = np.dtype([("key", "<u4"), ("row", "<u4"), ("sketch", "<u8")])
_BANDS_FILE = "bands.bin"
_CANDIDATE = np.dtype([("rows", "<u8")])  # row of the corpus and, as low half, an earlier one
_CANDIDATES_FILE = "candidates.bin"
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)


def find_near_duplicates(
    corpus: ParallelCorpus, runner: Runner, cache_dir: Path, of: ComparedSide = "pair", similarity: float = SIMILARITY
) -> DuplicateRows:
    """Return the rows that are similar to an earlier row that is kept, with the first such row.

    Case, spaces and punctuation are ignored. Only the first of several equal texts is compared, so the others are kept.
    Raises `UserError` if a task has failed.
    """
    if len(corpus) >= MAX_ROWS:
        raise UserError(
            f"near_duplicate: compares fewer than {MAX_ROWS:,} pairs; split the corpus, or remove this filter"
        )
    bands = FEW_BANDS if len(corpus) <= MAX_ROWS_OF_FEW_BANDS else MANY_BANDS
    n_shards, n_ranges = len(corpus.shards), count_ranges(len(corpus))
    equal = find_duplicates(corpus, runner, cache_dir, of, normalized=True)
    key: list[object] = [FORMAT_VERSION, corpus.key, corpus.fingerprint, of, bands.count, bands.size]

    write_bands = partial(_write_bands, corpus, of, bands, equal)
    hashed = runner(Stage("minhash", cache_dir, key, n_shards, write_bands))

    band_files = [(result.folder / _BANDS_FILE, int(result.metadata["n_texts"])) for result in hashed]
    find_candidates = partial(_find_candidates_in_range, band_files, corpus.bounds, bands, similarity, n_ranges)
    key += [n_ranges, similarity]
    found = runner(Stage("candidates", cache_dir, key, n_ranges, find_candidates))

    runs = [
        (result.folder / _CANDIDATES_FILE, first, count) for result in found for first, count in result.metadata["runs"]
    ]
    compare_shard = partial(_compare_shard, corpus, of, similarity, runs)
    compared = runner(Stage("compare", cache_dir, key, n_shards, compare_shard))

    choose_removed = partial(_choose_removed, [result.folder / MATCHES_FILE for result in compared], len(corpus))
    (removed,) = runner(Stage("near-duplicates", cache_dir, key, 1, choose_removed))
    return DuplicateRows(removed.metadata["n_rows"], [removed.folder / MATCHES_FILE], corpus.bounds)


def _write_bands(
    corpus: ParallelCorpus, of: ComparedSide, bands: Bands, equal: DuplicateRows, shard: int, folder: Path
) -> TaskMetadata:
    """Write the sorted keys of each band, with the row in the shard and the sketch of each text."""
    start, end = corpus.bounds[shard : shard + 2].tolist()
    is_compared = np.ones(end - start, np.bool_)
    is_compared[equal.read_shard(shard).rows - start] = False
    blocks = [np.empty((0, bands.n_values), np.uint16)]
    first = 0
    for batch in corpus.shard_record_batches(shard):
        part = is_compared[first : first + len(batch)]
        texts = make_compared_texts(batch["src"].to_pylist(), batch["tgt"].to_pylist(), of)
        part &= np.fromiter((text not in ("", PADDING) for text in texts), np.bool_, len(texts))
        blocks.append(ShingledTexts([texts[i] for i in np.flatnonzero(part).tolist()]).signatures(bands.n_values))
        first += len(batch)
    signatures = np.concatenate(blocks)
    rows, sketches = np.flatnonzero(is_compared), make_sketches(signatures)
    entries = np.empty((bands.count, len(rows)), _BAND_ENTRY)
    for band, part in enumerate(entries):
        keys = make_band_keys(signatures, bands, band)
        order = np.argsort(keys, kind="stable")
        part["key"], part["row"], part["sketch"] = keys[order], rows[order], sketches[order]
    (folder / _BANDS_FILE).write_bytes(entries.data)
    return {"n_texts": len(rows)}


def _find_candidates_in_range(
    files: Sequence[tuple[Path, int]],
    bounds: IntArray,
    bands: Bands,
    similarity: float,
    n_ranges: int,
    number: int,
    folder: Path,
) -> TaskMetadata:
    """Write the candidate pairs of rows for a range of keys of all bands.

    The file consists of sorted runs. The metadata contain the first candidate and the length of each run.
    """
    low, high = hash_range(number, n_ranges, 32)
    starts = bounds[:-1].tolist()
    pending, runs = list[Hashes](), list[tuple[int, int]]()
    with (folder / _CANDIDATES_FILE).open("wb") as file:
        for band in range(bands.count):
            parts = [read_range(path, _BAND_ENTRY, low, high, band * count, count) for path, count in files]
            rows = [part["row"].astype(np.uint64) + np.uint64(start) for part, start in zip(parts, starts, strict=True)]
            entries = np.concatenate([np.empty(0, _BAND_ENTRY), *parts])
            pending += _pair_rows(entries, np.concatenate([np.empty(0, np.uint64), *rows]), similarity)
            if sum(map(len, pending)) > MAX_CANDIDATES or band == bands.count - 1:
                candidates = np.unique(np.concatenate([np.empty(0, np.uint64), *pending]))
                file.write(candidates.data)
                runs.append((sum(count for _, count in runs), len(candidates)))
                pending.clear()
    return {"runs": runs}


def _pair_rows(entries: NDArray[np.void], rows: Hashes, similarity: float) -> list[Hashes]:
    """Return candidates: rows of the corpus with equal keys and similar sketches.

    The rows of each key are compared with the first row, then with the next. The number of rounds is limited, so that
    the time is linear in the number of rows.
    """
    order = np.argsort(entries["key"], kind="stable")  # by key, then by row
    keys, rows, sketches = entries["key"][order], rows[order], entries["sketch"][order]
    n_matches = np.zeros(len(keys), np.uint8)
    found: list[Hashes] = []
    for _ in range(MAX_ROUNDS):
        is_other = np.zeros(len(keys), np.bool_)
        is_other[1:] = keys[1:] == keys[:-1]
        if not is_other.any():
            break
        firsts = np.maximum.accumulate(np.where(is_other, 0, np.arange(len(keys))))[is_other]
        estimates = estimate_similarities(sketches[is_other], sketches[firsts])
        is_near = estimates >= similarity - TOLERANCE
        found.append(rows[is_other][is_near] << _HALF | rows[firsts][is_near])
        n_matches[is_other] += estimates >= similarity
        is_left = is_other & (n_matches < MAX_MATCHES)
        keys, rows, sketches, n_matches = keys[is_left], rows[is_left], sketches[is_left], n_matches[is_left]
    return found


def _compare_shard(
    corpus: ParallelCorpus,
    of: ComparedSide,
    similarity: float,
    runs: Sequence[tuple[Path, int, int]],
    shard: int,
    folder: Path,
) -> TaskMetadata:
    """Write the candidates of the rows of a shard that are similar, sorted by row."""
    low, high = (row << 32 for row in corpus.bounds[shard : shard + 2].tolist())
    parts = [read_range(path, _CANDIDATE, low, high, first, count)["rows"] for path, first, count in runs]
    candidates = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
    others = (candidates & _LOW_HALF).astype(np.int64)
    candidates = candidates[np.argsort(others, kind="stable")]  # so that each of the other shards is read once
    blocks = [np.empty(0, MATCH)]
    for first in range(0, len(candidates), COMPARED_BLOCK):
        block = candidates[first : first + COMPARED_BLOCK]
        found = np.empty(len(block), MATCH)
        found["row"], found["other"] = block >> _HALF, block & _LOW_HALF
        found["similarity"] = measure_similarities(
            *_take_texts(corpus, of, found["row"]), *_take_texts(corpus, of, found["other"])
        )
        blocks.append(found[found["similarity"] >= similarity])
    found = np.concatenate(blocks)
    (folder / MATCHES_FILE).write_bytes(found[np.lexsort([found["other"], found["row"]])].data)
    return {}


def _take_texts(corpus: ParallelCorpus, of: ComparedSide, rows: IntArray) -> tuple[ShingledTexts, IntArray]:
    """Return the distinct texts of some rows, and the position of the text of each row among them."""
    distinct, positions = np.unique(rows, return_inverse=True)
    columns = corpus.take(distinct, columns_of(of))
    src, tgt = columns.get("src", []), columns.get("tgt", [])
    return ShingledTexts(make_compared_texts(src, tgt, of)), positions


def _choose_removed(files: Sequence[Path], n_rows: int, _: int, folder: Path) -> TaskMetadata:
    """Write each row that is similar to an earlier row that is kept, with the first such row."""
    is_removed = bytearray(n_rows)
    n_removed = 0
    with (folder / MATCHES_FILE).open("wb") as file:
        for path in files:
            similar = np.fromfile(path, MATCH)
            chosen: list[int] = []
            for i, (row, other) in enumerate(zip(similar["row"].tolist(), similar["other"].tolist(), strict=True)):
                if not is_removed[row] and not is_removed[other]:
                    is_removed[row] = True
                    chosen.append(i)
            file.write(similar[chosen].data)
            n_removed += len(chosen)
    return {"n_rows": n_removed}
