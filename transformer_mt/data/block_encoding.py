"""Encode blocks of sentence pairs, in this process or in several.

Each of several processes encodes with one thread, while a single one uses the threads of `tokenizers`.
`datasets.map(num_proc=N)` would do this too, but it forks, and its parts depend on N. It writes lists of ids, which a
second pass would rewrite as flat arrays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.corpus import MAX_LISTED
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.data.worker_pool import open_pool

Reason = Literal["empty", "too_long", "truncated"]
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
