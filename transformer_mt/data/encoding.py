"""The tokenized corpus: token ids as flat memory-mapped arrays on disk.

The arrays take 4 bytes per token and 20 bytes per sentence pair; Python lists would take ten times as much.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transformer_mt.data.blocks import in_blocks
from transformer_mt.data.bucketing import Lengths, Rows
from transformer_mt.data.corpus import MAX_LISTED, ParallelCorpus
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.system.files import atomic_shared_folder

FORMAT_VERSION = 4  # of the arrays on disk; part of the cache key

Ids = NDArray[np.int32]
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
        """Return the tokens per sentence: [N]."""
        return np.diff(self.offsets).astype(np.int32)


@dataclass
class FilterCounts:
    """Numbers of dropped and truncated pairs, with the corpus rows of the first few of each kind."""

    empty: int = 0
    too_long: int = 0
    truncated: int = 0
    examples: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def count(self, reason: Literal["empty", "too_long", "truncated"], row: int) -> None:
        """Count one pair, and keep its row as an example if there are few so far."""
        setattr(self, reason, getattr(self, reason) + 1)
        examples = self.examples.setdefault(reason, [])
        if len(examples) < MAX_LISTED:
            examples.append(row)


@dataclass(frozen=True)
class EncodedCorpus:
    """Both sides of the pairs that passed the filter, in corpus order."""

    src: EncodedSide
    tgt: EncodedSide
    text: ParallelCorpus
    text_rows: Rows  # [N] row of `text` for each pair
    filtered: FilterCounts

    def __len__(self) -> int:
        return len(self.src)

    @property
    def sides(self) -> tuple[EncodedSide, EncodedSide]:
        """Return source and target, to be indexed by side 0 and 1."""
        return self.src, self.tgt

    def describe_lines(self, rows: Rows) -> str:
        """Return `file:line` of the first few rows, and how many more there are."""
        return self.text.describe_lines(self.text_rows[rows].tolist())


@dataclass(frozen=True)
class LengthLimit:
    """Maximum tokens per side, end symbol included, and how to treat longer and empty pairs."""

    max_length: int
    too_long: Literal["drop", "truncate"]
    keep_empty: bool = False


def encode_corpus(
    corpus: ParallelCorpus, tokenizers: TokenizerPair, limit: LengthLimit | None, cache_dir: Path
) -> EncodedCorpus:
    """Encode and filter a corpus, or map its arrays from the cache. Without a limit, keep every pair unchanged."""
    tokenizer_json = tokenizers.src.to_json(), tokenizers.tgt.to_json()
    settings = json.dumps([FORMAT_VERSION, corpus.key, corpus.fingerprint, *tokenizer_json, str(limit)])
    folder = cache_dir / f"ids-{sha256(settings.encode()).hexdigest()[:16]}"
    if not folder.exists():
        with atomic_shared_folder(folder) as temporary:
            _write_arrays(corpus, tokenizers, limit, temporary)
    filtered = FilterCounts(**json.loads((folder / "filtered.json").read_text(encoding="utf-8")))
    text_rows = np.load(folder / "rows.npy", mmap_mode="r")
    return EncodedCorpus(_load_side(folder, "src"), _load_side(folder, "tgt"), corpus, text_rows, filtered)


def _load_side(folder: Path, name: str) -> EncodedSide:
    offsets = np.load(folder / f"{name}.offsets.npy", mmap_mode="r")
    path = folder / f"{name}.ids"
    ids: Any = np.memmap(path, np.int32, mode="r") if path.stat().st_size else np.empty(0, np.int32)
    return EncodedSide(ids, offsets)


def _write_arrays(corpus: ParallelCorpus, tokenizers: TokenizerPair, limit: LengthLimit | None, folder: Path) -> None:
    """Encode and filter block by block, and write the arrays and `FilterCounts` to a folder."""
    filtered = FilterCounts()
    lengths = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]  # per side; their cumulative sums are the offsets
    rows, first_row = [np.empty(0, np.int32)], 0
    with (folder / "src.ids").open("wb") as src_file, (folder / "tgt.ids").open("wb") as tgt_file:
        for pairs in in_blocks(iter(corpus), "encoded", len(corpus)):
            src, tgt = [src for src, _ in pairs], [tgt for _, tgt in pairs]
            encoded = list(zip(tokenizers.src.encode(src), tokenizers.tgt.encode(tgt), strict=True))
            kept = [*range(len(pairs))]
            if limit is not None:
                kept = _filter_block(pairs, encoded, limit, filtered, first_row)
            rows.append(np.array(kept, np.int32) + first_row)
            first_row += len(pairs)
            for side, file in enumerate((src_file, tgt_file)):
                ids = [encoded[i][side] for i in kept]
                lengths[side].append(np.array([*map(len, ids)], np.int64))
                file.write(np.fromiter(chain.from_iterable(ids), np.int32).tobytes())
    np.save(folder / "rows.npy", np.concatenate(rows))
    for name, side_lengths in zip(("src", "tgt"), lengths, strict=True):
        np.save(folder / f"{name}.offsets.npy", np.cumsum(np.concatenate(side_lengths)))
    (folder / "filtered.json").write_text(json.dumps(asdict(filtered)), encoding="utf-8")


def _filter_block(
    pairs: list[tuple[str, str]],
    encoded: list[tuple[list[int], list[int]]],
    limit: LengthLimit,
    filtered: FilterCounts,
    first_row: int,
) -> list[int]:
    """Return the indices of the pairs to keep. Truncates ids in place and updates `filtered`."""
    max_tokens = limit.max_length - 1  # without the end symbol
    kept: list[int] = []
    for i, ((src_text, tgt_text), (src, tgt)) in enumerate(zip(pairs, encoded, strict=True)):
        if not limit.keep_empty and not (src and tgt and src_text.strip() and tgt_text.strip()):
            filtered.count("empty", first_row + i)
        elif max(len(src), len(tgt)) <= max_tokens:
            kept.append(i)
        elif limit.too_long == "truncate":
            filtered.count("truncated", first_row + i)
            del src[max_tokens:], tgt[max_tokens:]
            kept.append(i)
        else:
            filtered.count("too_long", first_row + i)
    return kept
