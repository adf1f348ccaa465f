"""The tokenized corpus: token ids as flat memory-mapped arrays on disk.

The arrays take 2 bytes per token (4 if the vocabulary has more than 65,536 entries) and 20 bytes per sentence pair.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import MAX_LISTED, ParallelCorpus, log_progress
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.data.worker_pool import limit_workers, open_pool
from transformer_mt.system.files import check_cache_space, delete_folder, make_once, report_full_disk, write_text

SAVE_SECONDS = 10.0
DESCRIPTION = "arrays.json"
PROGRESS = "progress.json"

State = dict[str, Any]


class ArrayWriter:
    """Appends to the arrays of a folder. `state` is what the last checkpoint recorded, or {} for a new folder."""

    def __init__(self, path: Path, dtypes: Mapping[str, Any]) -> None:
        """Open the arrays `dtypes`, and resume if a killed writer has left the same ones."""
        self._path, self._folder = path, path.with_name(f".{path.name}.partial")
        self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        progress = self._read_progress()
        if not progress:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
        self.state: State = progress.get("state", {})
        sizes: dict[str, int] = progress.get("sizes", {})
        self._files = {name: (self._folder / name).open("ab") for name in self._dtypes}
        for name, file in self._files.items():
            file.truncate(sizes.get(name, 0))
            file.seek(0, os.SEEK_END)
        self._saved = time.monotonic()

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Append values to an array. Raises `UserError` if the disk is full."""
        with report_full_disk(self._path):
            self._files[name].write(values.astype(self._dtypes[name], copy=False).tobytes())

    def save_progress(self, state: State) -> None:
        """Record the arrays and a state every few seconds."""
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            write_text(self._folder / PROGRESS, json.dumps({"sizes": self._flush(), "state": state}))
            self._saved = time.monotonic()

    def finish(self, info: State) -> None:
        """Give the folder its final name, with `info` in its description. A damaged folder is replaced."""
        sizes = self._flush()
        for file in self._files.values():
            file.close()
        dtypes = {name: dtype.name for name, dtype in self._dtypes.items()}
        write_text(self._folder / DESCRIPTION, json.dumps({"sizes": sizes, "dtypes": dtypes, **info}))
        (self._folder / PROGRESS).unlink(missing_ok=True)
        if self._path.exists():
            delete_folder(self._path)
        self._folder.rename(self._path)

    def _flush(self) -> dict[str, int]:
        """Write everything to the disk, and return the sizes."""
        with report_full_disk(self._path):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def _read_progress(self) -> dict[str, Any]:
        """Return the checkpoint, or {} without a usable one."""
        try:
            progress = json.loads((self._folder / PROGRESS).read_text(encoding="utf-8"))
            sizes = cast(dict[str, int], progress["sizes"])
            is_whole = sizes.keys() == self._dtypes.keys() and all(
                (self._folder / name).stat().st_size >= size for name, size in sizes.items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        return progress if is_whole else {}


def is_complete(path: Path) -> bool:
    """Return whether a folder of arrays is whole. A half-copied one is not."""
    try:
        sizes = cast(dict[str, int], read_description(path)["sizes"])
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def read_description(path: Path) -> State:
    """Return the `info` of `ArrayWriter.finish`, with the sizes and types of the arrays."""
    return json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))


def map_array(path: Path, name: str) -> NDArray[Any]:
    """Map an array of a folder into memory."""
    description = read_description(path)
    dtype = np.dtype(description["dtypes"][name])
    if description["sizes"][name] == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path / name, dtype, mode="r")


Reason = Literal["empty", "too_long", "truncated"]
Rows = NDArray[np.int32]  # row numbers of an encoded corpus
Lengths = NDArray[np.int32]  # tokens per sentence
Ids = NDArray[np.uint16 | np.int32]


@dataclass(frozen=True)
class LengthLimit:
    """Maximum tokens per side, end symbol included, and how to treat longer and empty pairs."""

    max_length: int
    too_long: Literal["drop", "truncate"]
    keep_empty: bool = False


@dataclass
class LengthLimitCounts:
    """Numbers of dropped and truncated pairs, with the corpus rows of the first few of each kind."""

    empty: int = 0
    too_long: int = 0
    truncated: int = 0
    examples: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def count(self, reason: Reason, row: int) -> None:
        """Count one pair, and keep its row as an example if there are few so far."""
        setattr(self, reason, getattr(self, reason) + 1)
        self._add_example(reason, row)

    def add(self, other: LengthLimitCounts, first_row: int) -> None:
        """Add the counts of the block that starts at a row."""
        self.empty += other.empty
        self.too_long += other.too_long
        self.truncated += other.truncated
        for reason, rows in other.examples.items():
            for row in rows:
                self._add_example(reason, first_row + row)

    def _add_example(self, reason: str, row: int) -> None:
        examples = self.examples.setdefault(reason, [])
        if len(examples) < MAX_LISTED:
            examples.append(row)


@dataclass(frozen=True)
class EncodedBlock:
    """The pairs of a block that were kept. Ids are concatenated."""

    n_rows: int  # of the block
    kept: NDArray[np.int32]  # rows of the block
    src: Ids
    src_lengths: NDArray[np.int32]
    tgt: Ids
    tgt_lengths: NDArray[np.int32]
    limit_counts: LengthLimitCounts

    def __len__(self) -> int:
        return self.n_rows


class BlockEncoder:
    """Encodes and filters a block of pairs."""

    def __init__(self, tokenizers: TokenizerPair, limit: LengthLimit | None) -> None:
        self.tokenizers, self.limit = tokenizers, limit
        self._dtypes = [id_type(tokenizer.vocab_size) for tokenizer in (tokenizers.src, tokenizers.tgt)]

    def __call__(self, batch: Any) -> EncodedBlock:
        """Encode an Arrow record batch with the columns `src` and `tgt`. Without a limit, keep every pair."""
        src, tgt = batch["src"].to_pylist(), batch["tgt"].to_pylist()
        encoded = [*zip(self.tokenizers.src.encode(src), self.tokenizers.tgt.encode(tgt), strict=True)]
        kept, limit_counts = [*range(len(src))], LengthLimitCounts()
        if self.limit is not None:
            kept = _apply_length_limit([*zip(src, tgt, strict=True)], encoded, self.limit, limit_counts)
        sides = [[encoded[i][side] for i in kept] for side in (0, 1)]
        ids = [np.fromiter(chain.from_iterable(side), dtype) for side, dtype in zip(sides, self._dtypes, strict=True)]
        lengths = [np.array([*map(len, side)], np.int32) for side in sides]
        return EncodedBlock(len(src), np.array(kept, np.int32), ids[0], lengths[0], ids[1], lengths[1], limit_counts)


def id_type(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    """Return the type that stores token ids: 16 bits if the vocabulary allows."""
    return np.uint16 if vocab_size <= 2**16 else np.int32


def _apply_length_limit(
    pairs: list[tuple[str, str]],
    encoded: list[tuple[list[int], list[int]]],
    limit: LengthLimit,
    limit_counts: LengthLimitCounts,
) -> list[int]:
    """Return the indices of the pairs to keep. Truncates ids in place and updates `limit_counts`."""
    max_tokens = limit.max_length - 1  # without the end symbol
    kept: list[int] = []
    for i, ((src_text, tgt_text), (src, tgt)) in enumerate(zip(pairs, encoded, strict=True)):
        if not limit.keep_empty and not (src and tgt and src_text.strip() and tgt_text.strip()):
            limit_counts.count("empty", i)
        elif max(len(src), len(tgt)) <= max_tokens:
            kept.append(i)
        elif limit.too_long == "truncate":
            limit_counts.count("truncated", i)
            del src[max_tokens:], tgt[max_tokens:]
            kept.append(i)
        else:
            limit_counts.count("too_long", i)
    return kept


# --- several processes ------------------------------------------------------------------------------------------------


def encode_blocks(batches: Iterable[Any], encoder: BlockEncoder, workers: int) -> Iterator[EncodedBlock]:
    """Yield the encoded blocks in order. The result does not depend on the number of processes.

    Raises:
        UserError: A process was killed, or could not start.
    """
    if workers <= 1:
        yield from map(encoder, batches)
        return
    spec = encoder.tokenizers.to_dict(), encoder.limit  # tokenizers themselves cannot be sent
    with open_pool(workers, _make_encoder, *spec) as pool:
        yield from pool.map_in_order(BlockEncoder.__call__, batches)


def _make_encoder(tokenizers: dict[str, Any], limit: LengthLimit | None) -> BlockEncoder:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return BlockEncoder(TokenizerPair.from_dict(tokenizers), limit)


FORMAT_VERSION = 6  # of the arrays on disk; part of the cache key
BYTES_PER_PAIR = 20  # two offsets and a row
SAMPLE_SIZE = 1000  # pairs from which the size of the arrays is predicted

Offsets = NDArray[np.int64]


@dataclass(frozen=True)
class EncodedSide:
    """Token ids of one language: sentence `i` is `ids[offsets[i]:offsets[i + 1]]`, without control symbols."""

    ids: Ids
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Ids:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> Lengths:
        """Return the tokens per sentence: [N]. This takes 12 bytes for each."""
        return self.lengths_of(0, len(self))

    def lengths_of(self, start: int, end: int) -> Lengths:
        """Return the tokens of the sentences from `start` to `end`."""
        return np.diff(self.offsets[start : end + 1]).astype(np.int32)


@dataclass(frozen=True)
class EncodedCorpus:
    """Both sides of the pairs that the length limit kept, in corpus order."""

    src: EncodedSide
    tgt: EncodedSide
    text: ParallelCorpus
    text_rows: Rows  # [N] row of `text` for each pair
    limit_counts: LengthLimitCounts

    def __len__(self) -> int:
        return len(self.src)

    @property
    def sides(self) -> tuple[EncodedSide, EncodedSide]:
        """Return source and target, to be indexed by side 0 and 1."""
        return self.src, self.tgt

    @property
    def n_bytes(self) -> int:
        """Return the size of the arrays."""
        return self.text_rows.nbytes + sum(side.ids.nbytes + side.offsets.nbytes for side in self.sides)

    def source_bounds(self) -> NDArray[np.int64]:
        """Return the first row of each source of the text, and the number of rows: [K + 1]."""
        if not self.text.source_sizes:
            return np.array([0, len(self)])
        return np.searchsorted(self.text_rows, self.text.source_bounds()).astype(np.int64)

    def describe_lines(self, rows: Rows) -> str:
        """Return `file:line` of the first few rows, and how many more there are."""
        return self.text.describe_lines(self.text_rows[rows].tolist())


def encode_corpus(
    corpus: ParallelCorpus, tokenizers: TokenizerPair, limit: LengthLimit | None, cache_dir: Path, workers: int = 1
) -> EncodedCorpus:
    """Encode a corpus and apply the length limit, or map its arrays from the cache. Without a limit, keep every pair.

    The arrays do not depend on `workers`, the number of processes. A killed call resumes in the next one.

    Raises:
        UserError: The disk has no space for the arrays.
    """
    tokenizer_json = tokenizers.src.to_json(), tokenizers.tgt.to_json()
    settings = json.dumps([FORMAT_VERSION, corpus.key, corpus.fingerprint, *tokenizer_json, str(limit)])
    folder = cache_dir / f"ids-{sha256(settings.encode()).hexdigest()[:16]}"
    make_once(folder, lambda: _write_arrays(corpus, BlockEncoder(tokenizers, limit), folder, workers), is_complete)
    src, tgt = (
        EncodedSide(*(map_array(folder, f"{side}.{kind}") for kind in ("ids", "offsets"))) for side in ("src", "tgt")
    )
    limit_counts = LengthLimitCounts(**read_description(folder)["limit_counts"])
    return EncodedCorpus(src, tgt, corpus, map_array(folder, "rows"), limit_counts)


def _write_arrays(corpus: ParallelCorpus, encoder: BlockEncoder, folder: Path, workers: int) -> None:
    """Encode and filter block by block, and write the arrays. Resume after the last checkpoint of a killed call."""
    tokenizers = encoder.tokenizers
    dtypes: dict[str, Any] = {"rows": np.int32}
    for side, tokenizer in (("src", tokenizers.src), ("tgt", tokenizers.tgt)):
        dtypes |= {f"{side}.ids": id_type(tokenizer.vocab_size), f"{side}.offsets": np.int64}
    with ArrayWriter(folder, dtypes) as arrays:
        n_rows: int = arrays.state.get("n_rows", 0)
        ends: dict[str, int] = arrays.state.get("ends", {"src": 0, "tgt": 0})
        limit_counts = LengthLimitCounts(**arrays.state.get("limit_counts", {}))
        _check_space(corpus, encoder, folder, len(corpus) - n_rows)
        if n_rows == 0:
            for side in ends:
                arrays.append(f"{side}.offsets", np.zeros(1, np.int64))
        workers = limit_workers(workers, len(corpus) - n_rows)
        blocks = encode_blocks(_batches_from(corpus, n_rows), encoder, workers)
        for block in log_progress(blocks, "encoded", len(corpus), n_rows):
            arrays.append("rows", block.kept + n_rows)
            for side, ids, lengths in (
                ("src", block.src, block.src_lengths),
                ("tgt", block.tgt, block.tgt_lengths),
            ):
                arrays.append(f"{side}.ids", ids)
                arrays.append(f"{side}.offsets", ends[side] + np.cumsum(lengths, dtype=np.int64))
                ends[side] += len(ids)
            limit_counts.add(block.limit_counts, n_rows)
            n_rows += len(block)
            arrays.save_progress({"n_rows": n_rows, "ends": ends, "limit_counts": asdict(limit_counts)})
        arrays.finish({"limit_counts": asdict(limit_counts)})


def _batches_from(corpus: ParallelCorpus, first_row: int) -> Iterator[Any]:
    """Yield the record batches of a corpus from a row on, at which a batch starts."""
    row = 0
    for batch in corpus.batches():
        if row >= first_row:
            yield batch
        row += len(batch)


def _check_space(corpus: ParallelCorpus, encoder: BlockEncoder, folder: Path, n_pairs: int) -> None:
    """Raise `UserError` if the disk has no space for the arrays of `n_pairs` more pairs, as a sample predicts."""
    sample = corpus.sample(SAMPLE_SIZE)
    if not sample:
        return
    n_bytes = BYTES_PER_PAIR * len(sample)
    for side, tokenizer in enumerate((encoder.tokenizers.src, encoder.tokenizers.tgt)):
        n_tokens = sum(map(len, tokenizer.encode([pair[side] for pair in sample])))
        n_bytes += n_tokens * np.dtype(id_type(tokenizer.vocab_size)).itemsize
    check_cache_space(folder.parent, n_bytes * n_pairs / len(sample), f"the token ids of {n_pairs:,} pairs")
