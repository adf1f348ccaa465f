"""The tokenized corpus: the token ids of each shard as flat memory-mapped arrays on disk.

The arrays take 2 bytes per token (4 if the vocabulary has more than 65,536 entries) and 20 bytes per sentence pair.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import MAX_LISTED, ParallelCorpus, log_progress
from transformer_mt.data.data_config import LongPairs
from transformer_mt.data.stages import IN_PROCESS_RUNNER, Runner, Stage, TaskMetadata
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

SIDES = ("src", "tgt")

Reason = Literal["empty", "too_long", "truncated"]
Rows = NDArray[np.int32]  # row numbers of an encoded corpus
Lengths = NDArray[np.int32]  # tokens per sentence
Ids = NDArray[np.uint16 | np.int32]
Sentences = Sequence[Sequence[int] | Ids]  # ids without control symbols


@dataclass(frozen=True)
class LengthLimit:
    """Maximum tokens per side, end symbol included, and how to treat longer and empty pairs."""

    max_length: int
    too_long: LongPairs
    keep_empty: bool = False


@dataclass
class LengthLimitCounts:
    """Numbers of dropped and truncated pairs, with the corpus rows of the first few of each kind."""

    empty: int = 0
    too_long: int = 0
    truncated: int = 0
    examples: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def add(self, reason: Reason, rows: Sequence[int], count: int) -> None:
        """Count some pairs, of which the first few have these rows, and keep the first few of all as examples."""
        setattr(self, reason, getattr(self, reason) + count)
        examples = self.examples.setdefault(reason, [])
        examples += rows[: MAX_LISTED - len(examples)]


@dataclass(frozen=True)
class EncodedBlock:
    """The pairs of a block that were kept. `ids` and `lengths` have an entry for each side."""

    kept: NDArray[np.int32]  # rows of the block
    ids: list[Ids]  # concatenated
    lengths: list[Lengths]
    limited: dict[Reason, list[int]]  # rows of the block that were dropped or truncated


class BlockEncoder:
    """Encodes and filters a block of pairs."""

    def __init__(self, tokenizers: TokenizerPair, limit: LengthLimit) -> None:
        self.tokenizers, self.limit = tokenizers, limit
        self.sides = tokenizers.src, tokenizers.tgt
        self.id_types = [id_type(tokenizer.vocab_size) for tokenizer in self.sides]

    def __call__(self, batch: Any) -> EncodedBlock:
        """Encode an Arrow record batch with the columns `src` and `tgt`."""
        src, tgt = batch["src"].to_pylist(), batch["tgt"].to_pylist()
        encoded = [*zip(self.sides[0].encode(src), self.sides[1].encode(tgt), strict=True)]
        kept, limited = _apply_length_limit([*zip(src, tgt, strict=True)], encoded, self.limit)
        sides = [[encoded[i][side] for i in kept] for side in (0, 1)]
        ids = [np.fromiter(chain.from_iterable(side), dtype) for side, dtype in zip(sides, self.id_types, strict=True)]
        lengths = [np.array([*map(len, side)], np.int32) for side in sides]
        return EncodedBlock(np.array(kept, np.int32), ids, lengths, limited)


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

FORMAT_VERSION = 7  # of the arrays on disk; part of the cache key

Offsets = NDArray[np.int64]


class SideArrays(NamedTuple):
    """One language of a shard: sentence `i` is `ids[offsets[i]:offsets[i + 1]]`, without control symbols."""

    ids: Ids
    offsets: Offsets


class EncodedSide:
    """Token ids of one language, of all shards."""

    def __init__(self, shards: Sequence[SideArrays]) -> None:
        self._shards = shards
        self._bounds: list[int] = np.cumsum([0, *(len(shard.offsets) - 1 for shard in shards)]).tolist()

    def __len__(self) -> int:
        return self._bounds[-1]

    def __getitem__(self, i: int) -> Ids:
        shard = bisect_right(self._bounds, i) - 1
        ids, offsets = self._shards[shard]
        i -= self._bounds[shard]
        return ids[offsets[i] : offsets[i + 1]]

    @property
    def n_tokens(self) -> int:
        """Return the number of tokens."""
        return sum(len(shard.ids) for shard in self._shards)

    def lengths_of(self, start: int, end: int) -> Lengths:
        """Return the tokens per sentence from `start` to `end`: [N]. The peak memory is 12 bytes per sentence."""
        parts = [np.empty(0, np.int64)]
        for shard in range(bisect_right(self._bounds, start) - 1, bisect_left(self._bounds, end)):
            first, last = self._bounds[shard : shard + 2]
            parts.append(np.diff(self._shards[shard].offsets[max(start, first) - first : min(end, last) - first + 1]))
        return np.concatenate(parts).astype(np.int32)


@dataclass(frozen=True)
class EncodedCorpus:
    """Both sides of the pairs that the length limit kept, in corpus order."""

    src: EncodedSide
    tgt: EncodedSide
    text: ParallelCorpus
    text_rows: Sequence[Rows]  # row of `text` for each pair, of each shard
    limit_counts: LengthLimitCounts
    key: str  # identifies the cached arrays

    def __len__(self) -> int:
        return len(self.src)

    @property
    def sides(self) -> tuple[EncodedSide, EncodedSide]:
        """Return source and target, to be indexed by side 0 and 1."""
        return self.src, self.tgt

    def source_bounds(self) -> NDArray[np.int64]:
        """Return the first row of each source of the text, and the number of rows: [K + 1]."""
        bounds = np.cumsum([0, *map(len, self.text_rows)])
        if not self.text.source_sizes:
            return bounds[[0, -1]]
        first_shards = np.searchsorted(self.text.table_bounds, np.cumsum([0, *self.text.source_sizes.values()]))
        return bounds[first_shards]

    def find_text_rows(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Return the rows of `text` that pairs were encoded from."""
        bounds = np.cumsum([0, *map(len, self.text_rows)])
        shards = np.searchsorted(bounds, rows, side="right") - 1
        places = zip(shards.tolist(), (rows - bounds[shards]).tolist(), strict=True)
        return np.array([self.text_rows[shard][row] for shard, row in places], np.int64)

    def describe_lines(self, rows: Rows) -> str:
        """Return `file:line` of the first few rows, and how many more there are."""
        return self.text.describe_lines(self.find_text_rows(rows[:MAX_LISTED]).tolist(), len(rows))


def encode_corpus(
    corpus: ParallelCorpus,
    tokenizers: TokenizerPair,
    limit: LengthLimit,
    cache_dir: Path,
    runner: Runner = IN_PROCESS_RUNNER,
) -> EncodedCorpus:
    """Encode a corpus and apply the length limit, shard by shard.

    Raises `UserError` if the disk is full, or a process was killed.
    """
    tokenizer_json = tokenizers.src.to_json(), tokenizers.tgt.to_json()
    id_types = [id_type(tokenizer.vocab_size) for tokenizer in (tokenizers.src, tokenizers.tgt)]
    key = [FORMAT_VERSION, corpus.key, corpus.fingerprint, *tokenizer_json, str(limit), *map(str, id_types)]
    encode = partial(encode_shard, corpus, tokenizers.to_dict(), limit)
    stage = Stage("encode", cache_dir, key, len(corpus.shards), encode)
    results = runner(stage)
    limit_counts = LengthLimitCounts()
    sides: tuple[list[SideArrays], list[SideArrays]] = ([], [])
    rows: list[Rows] = []
    for folder, metadata in results:
        for side, name, dtype in zip(sides, SIDES, id_types, strict=True):
            side.append(
                SideArrays(_map_array(folder / f"{name}.ids", dtype), _map_array(folder / f"{name}.offsets", np.int64))
            )
        rows.append(_map_array(folder / "rows", np.int32))
        for reason, (count, examples) in metadata["limited"].items():
            limit_counts.add(reason, examples, count)
    src, tgt = map(EncodedSide, sides)
    return EncodedCorpus(src, tgt, corpus, rows, limit_counts, stage.folder.name)


def encode_shard(
    corpus: ParallelCorpus, tokenizers: dict[str, Any], limit: LengthLimit, task: int, folder: Path
) -> TaskMetadata:
    """Task: encode a shard. `tokenizers` are JSON, because tokenizers cannot be pickled.

    Return the numbers of dropped and truncated pairs with the first few rows.
    """
    encoder = BlockEncoder(TokenizerPair.from_dict(tokenizers), limit)
    row, ends = int(corpus.bounds[task]), [0, 0]
    limited = defaultdict[Reason, list[int]](list)
    with ExitStack() as stack:

        def open_array(name: str) -> BinaryIO:
            return stack.enter_context((folder / name).open("wb"))

        rows = open_array("rows")
        arrays = [(open_array(f"{side}.ids"), open_array(f"{side}.offsets")) for side in SIDES]
        for _, offsets in arrays:
            offsets.write(np.zeros(1, np.int64).data)
        n_rows = int(corpus.bounds[task + 1]) - row
        for batch in log_progress(corpus.shard_record_batches(task), "encoded", n_rows):
            block = encoder(batch)
            rows.write((block.kept + np.int32(row)).data)
            for side, (ids, offsets) in enumerate(arrays):
                ids.write(block.ids[side].data)
                offsets.write((ends[side] + np.cumsum(block.lengths[side], dtype=np.int64)).data)
                ends[side] += len(block.ids[side])
            for reason, found in block.limited.items():
                limited[reason] += [row + i for i in found]
            row += len(batch)
    return {"limited": {reason: (len(found), found[:MAX_LISTED]) for reason, found in limited.items()}}


def _map_array(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
