"""The tokenized corpus: token ids as flat memory-mapped arrays on disk.

The arrays take 2 bytes per token (4 if the vocabulary has more than 65,536 entries) and 20 bytes per sentence pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data import array_files
from transformer_mt.data.array_files import ArrayWriter
from transformer_mt.data.block_encoding import BlockEncoder, Ids, LengthLimit, LengthLimitCounts, encode_blocks, id_type
from transformer_mt.data.blocks import log_progress
from transformer_mt.data.bucketing import Lengths, Rows
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.data.worker_pool import limit_workers
from transformer_mt.system.disk_space import check_cache_space
from transformer_mt.system.files import make_once

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
    make_once(
        folder, lambda: _write_arrays(corpus, BlockEncoder(tokenizers, limit), folder, workers), array_files.is_complete
    )
    src, tgt = (
        EncodedSide(*(array_files.map_array(folder, f"{side}.{kind}") for kind in ("ids", "offsets")))
        for side in ("src", "tgt")
    )
    limit_counts = LengthLimitCounts(**array_files.read_description(folder)["limit_counts"])
    return EncodedCorpus(src, tgt, corpus, array_files.map_array(folder, "rows"), limit_counts)


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
