"""The tokenized corpus: token ids as flat memory-mapped arrays on disk.

The arrays take 2 bytes per token (4 if the vocabulary has more than 65,536 entries) and 20 bytes per sentence pair.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import MAX_LISTED, ParallelCorpus, log_progress
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.data.worker_pool import limit_workers, open_pool
from transformer_mt.errors import UserError
from transformer_mt.system.files import build_cached_folder, check_cache_space

DESCRIPTION = "arrays.json"
SIDES = ("src", "tgt")

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

    def add(self, reason: Reason, rows: Sequence[int]) -> None:
        """Count the pairs of some rows, and keep the first few as examples."""
        setattr(self, reason, getattr(self, reason) + len(rows))
        examples = self.examples.setdefault(reason, [])
        examples += rows[: MAX_LISTED - len(examples)]


@dataclass(frozen=True)
class EncodedBlock:
    """The pairs of a block that were kept. `ids` and `lengths` have an entry for each side."""

    n_rows: int  # of the block
    kept: NDArray[np.int32]  # rows of the block
    ids: list[Ids]  # concatenated
    lengths: list[Lengths]
    limited: dict[Reason, list[int]]  # rows of the block that were dropped or truncated

    def __len__(self) -> int:
        return self.n_rows


class BlockEncoder:
    """Encodes and filters a block of pairs."""

    def __init__(self, tokenizers: TokenizerPair, limit: LengthLimit | None) -> None:
        self.tokenizers, self.limit = tokenizers, limit
        self.sides = tokenizers.src, tokenizers.tgt
        self.id_types = [id_type(tokenizer.vocab_size) for tokenizer in self.sides]

    def __call__(self, batch: Any) -> EncodedBlock:
        """Encode an Arrow record batch with the columns `src` and `tgt`. Without a limit, keep every pair."""
        src, tgt = batch["src"].to_pylist(), batch["tgt"].to_pylist()
        encoded = [*zip(self.sides[0].encode(src), self.sides[1].encode(tgt), strict=True)]
        kept, limited = [*range(len(src))], dict[Reason, list[int]]()
        if self.limit is not None:
            kept, limited = _apply_length_limit([*zip(src, tgt, strict=True)], encoded, self.limit)
        sides = [[encoded[i][side] for i in kept] for side in (0, 1)]
        ids = [np.fromiter(chain.from_iterable(side), dtype) for side, dtype in zip(sides, self.id_types, strict=True)]
        lengths = [np.array([*map(len, side)], np.int32) for side in sides]
        return EncodedBlock(len(src), np.array(kept, np.int32), ids, lengths, limited)


def id_type(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    """Return the type that stores token ids: 16 bits if the vocabulary allows."""
    return np.uint16 if vocab_size <= 2**16 else np.int32


def _apply_length_limit(
    pairs: list[tuple[str, str]], encoded: list[tuple[list[int], list[int]]], limit: LengthLimit
) -> tuple[list[int], dict[Reason, list[int]]]:
    """Return the indices of the pairs to keep, and those that were dropped or truncated. Truncates ids in place."""
    max_tokens = limit.max_length - 1  # without the end symbol
    kept: list[int] = []
    limited = defaultdict[Reason, list[int]](list)
    for i, ((src_text, tgt_text), (src, tgt)) in enumerate(zip(pairs, encoded, strict=True)):
        if not limit.keep_empty and not (src and tgt and src_text.strip() and tgt_text.strip()):
            limited["empty"].append(i)
        elif max(len(src), len(tgt)) <= max_tokens:
            kept.append(i)
        elif limit.too_long == "truncate":
            limited["truncated"].append(i)
            del src[max_tokens:], tgt[max_tokens:]
            kept.append(i)
        else:
            limited["too_long"].append(i)
    return kept, limited


# --- encoded corpora --------------------------------------------------------------------------------------------------

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

    The arrays do not depend on `workers`, the number of processes.

    Raises:
        UserError: The disk has no space for the arrays, or a process was killed.
    """
    tokenizer_json = tokenizers.src.to_json(), tokenizers.tgt.to_json()
    settings = json.dumps([FORMAT_VERSION, corpus.key, corpus.fingerprint, *tokenizer_json, str(limit)])
    folder = cache_dir / f"ids-{sha256(settings.encode()).hexdigest()[:16]}"
    encoder = BlockEncoder(tokenizers, limit)

    build_cached_folder(folder, lambda temporary: _write_arrays(corpus, encoder, temporary, workers))
    try:
        src, tgt = (
            EncodedSide(_map_array(folder / f"{side}.ids", dtype), _map_array(folder / f"{side}.offsets", np.int64))
            for side, dtype in zip(SIDES, encoder.id_types, strict=True)
        )
        rows = _map_array(folder / "rows", np.int32)
        if not len(rows) == len(src) == len(tgt) or any(len(side.ids) != side.offsets[-1] for side in (src, tgt)):
            raise ValueError("the lengths of the arrays differ")
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except PermissionError:
        raise
    except (OSError, ValueError):
        raise UserError(f"{folder}: is incomplete or damaged; delete it, and the next command makes it again") from None
    return EncodedCorpus(src, tgt, corpus, rows, LengthLimitCounts(**description["limit_counts"]))


def _write_arrays(corpus: ParallelCorpus, encoder: BlockEncoder, folder: Path, workers: int) -> None:
    _check_space(corpus, encoder, folder.parent)
    workers = limit_workers(workers, len(corpus))
    n_rows, ends, limit_counts = 0, [0, 0], LengthLimitCounts()
    with ExitStack() as stack:

        def open_array(name: str) -> BinaryIO:
            return stack.enter_context((folder / name).open("wb"))

        rows = open_array("rows")
        arrays = [(open_array(f"{side}.ids"), open_array(f"{side}.offsets")) for side in SIDES]
        for _, offsets in arrays:
            offsets.write(np.zeros(1, np.int64).data)
        if workers > 1:  # tokenizers themselves cannot be sent
            pool = stack.enter_context(open_pool(workers, _make_encoder, encoder.tokenizers.to_dict(), encoder.limit))
            blocks = pool.map_in_order(BlockEncoder.__call__, corpus.batches())
        else:
            blocks = map(encoder, corpus.batches())
        for block in log_progress(blocks, "encoded", len(corpus)):
            rows.write((block.kept + np.int32(n_rows)).data)
            for side, (ids, offsets) in enumerate(arrays):
                ids.write(block.ids[side].data)
                offsets.write((ends[side] + np.cumsum(block.lengths[side], dtype=np.int64)).data)
                ends[side] += len(block.ids[side])
            for reason, found in block.limited.items():
                limit_counts.add(reason, [n_rows + row for row in found])
            n_rows += len(block)
    (folder / DESCRIPTION).write_text(json.dumps({"limit_counts": asdict(limit_counts)}), encoding="utf-8")


def _make_encoder(tokenizers: dict[str, Any], limit: LengthLimit | None) -> BlockEncoder:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return BlockEncoder(TokenizerPair.from_dict(tokenizers), limit)


def _map_array(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def _check_space(corpus: ParallelCorpus, encoder: BlockEncoder, cache_dir: Path) -> None:
    """Raise `UserError` if the disk has no space for the arrays, as a sample predicts."""
    sample = corpus.sample(SAMPLE_SIZE)
    n_bytes = BYTES_PER_PAIR * len(sample)
    for side, (tokenizer, dtype) in enumerate(zip(encoder.sides, encoder.id_types, strict=True)):
        n_tokens = sum(map(len, tokenizer.encode([pair[side] for pair in sample])))
        n_bytes += n_tokens * np.dtype(dtype).itemsize
    n_pairs = len(corpus)
    check_cache_space(cache_dir, n_bytes * n_pairs / max(1, len(sample)), f"the token ids of {n_pairs:,} pairs")
