"""The tokenised corpus: encoded once, held as flat arrays of ids on disk and mapped into memory.

Two 32-bit numbers a token pair; two 64-bit offsets and a 32-bit row of the table a sentence pair. Python lists would
need ten times that.
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

from transformer_mt.data.bucketing import Rows
from transformer_mt.data.corpus import BLOCK, NAMED, ParallelCorpus
from transformer_mt.data.progress import blocks
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.system.files import atomic_shared_folder

LAYOUT = 4  # of the arrays on disk; part of the cache's key

Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]
TableRows = NDArray[np.int32]


@dataclass(frozen=True)
class EncodedSide:
    """The ids of one language: sentence `i` is `ids[offsets[i]:offsets[i + 1]]`, without control symbols."""

    ids: Ids
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Ids:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sentence. [N]"""
        return np.diff(self.offsets).astype(np.int32)


@dataclass
class FilterCounts:
    """What was done to pairs on the way, and the table rows of the first few."""

    empty: int = 0
    too_long: int = 0
    truncated: int = 0
    examples: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def count(self, reason: Literal["empty", "too_long", "truncated"], row: int) -> None:
        setattr(self, reason, getattr(self, reason) + 1)
        examples = self.examples.setdefault(reason, [])
        if len(examples) < NAMED:
            examples.append(row)


@dataclass(frozen=True)
class EncodedCorpus:
    """Both sides of the pairs that are kept, in the table's order."""

    src: EncodedSide
    tgt: EncodedSide
    text: ParallelCorpus
    text_rows: TableRows  # from which each pair comes. [N]
    filtered: FilterCounts

    def __len__(self) -> int:
        return len(self.src)

    def describe_lines(self, rows: Rows) -> str:
        """Where pairs were read, for a person: the first few `file:line`, and how many more."""
        return self.text.describe_lines(self.text_rows[rows].tolist())


@dataclass(frozen=True)
class LengthLimit:
    """The longest side of a pair in tokens, the end symbol included, and what becomes of a longer or an empty one."""

    max_length: int
    too_long: Literal["drop", "truncate"]
    keep_empty: bool = False


def encode_corpus(
    table: ParallelCorpus, tokenizers: TokenizerPair, limit: LengthLimit | None, cache_dir: Path
) -> EncodedCorpus:
    """Encode a table, or take the arrays from the cache.

    With a limit, pairs with an empty side and long ones are treated as it says; without one, every pair is kept as it
    is.
    """
    settings = [LAYOUT, table.key, table.fingerprint, tokenizers.src.to_json(), tokenizers.tgt.to_json(), str(limit)]
    folder = cache_dir / f"ids-{sha256(json.dumps(settings).encode()).hexdigest()[:16]}"
    if not folder.exists():
        with atomic_shared_folder(folder) as beside:
            filtered = _write(table, tokenizers, limit, beside)
            (beside / "filtered.json").write_text(json.dumps(asdict(filtered)), encoding="utf-8")
    filtered = FilterCounts(**json.loads((folder / "filtered.json").read_text(encoding="utf-8")))
    text_rows = np.load(folder / "rows.npy", mmap_mode="r")
    return EncodedCorpus(_load_side(folder, "src"), _load_side(folder, "tgt"), table, text_rows, filtered)


def _load_side(folder: Path, name: str) -> EncodedSide:
    offsets = np.load(folder / f"{name}.offsets.npy", mmap_mode="r")
    path = folder / f"{name}.ids"
    ids: Any = np.memmap(path, np.int32, mode="r") if path.stat().st_size else np.empty(0, np.int32)
    return EncodedSide(ids, offsets)


def _write(table: ParallelCorpus, tokenizers: TokenizerPair, limit: LengthLimit | None, folder: Path) -> FilterCounts:
    filtered = FilterCounts()
    lengths: tuple[list[Offsets], list[Offsets]] = ([np.zeros(1, np.int64)], [np.zeros(1, np.int64)])
    rows = [np.empty(0, np.int32)]
    row = 0
    with (folder / "src.ids").open("wb") as src_file, (folder / "tgt.ids").open("wb") as tgt_file:
        for block in blocks(iter(table), BLOCK, "encoded", len(table)):
            texts = [text for text, _ in block], [text for _, text in block]
            coded = list(zip(tokenizers.src.encode(texts[0]), tokenizers.tgt.encode(texts[1]), strict=True))
            kept = [*range(len(block))] if limit is None else _keep(block, coded, limit, filtered, row)
            rows.append(np.array(kept, np.int32) + row)
            row += len(block)
            for side, file in enumerate((src_file, tgt_file)):
                ids = [coded[i][side] for i in kept]
                lengths[side].append(np.array([*map(len, ids)], np.int64))
                file.write(np.fromiter(chain.from_iterable(ids), np.int32).tobytes())
    np.save(folder / "rows.npy", np.concatenate(rows))
    for name, counted in zip(("src", "tgt"), lengths, strict=True):
        np.save(folder / f"{name}.offsets.npy", np.cumsum(np.concatenate(counted)))
    return filtered


def _keep(
    texts: list[tuple[str, str]],
    coded: list[tuple[list[int], list[int]]],
    limit: LengthLimit,
    filtered: FilterCounts,
    first_row: int,
) -> list[int]:
    """Which pairs of a block are trained on; long ones are cut in place, and all that is lost is counted."""
    longest = limit.max_length - 1  # the end symbol takes one place
    kept: list[int] = []
    for i, ((src_text, tgt_text), (src, tgt)) in enumerate(zip(texts, coded, strict=True)):
        if not limit.keep_empty and not (src and tgt and src_text.strip() and tgt_text.strip()):
            filtered.count("empty", first_row + i)
        elif max(len(src), len(tgt)) <= longest:
            kept.append(i)
        elif limit.too_long == "truncate":
            filtered.count("truncated", first_row + i)
            del src[longest:], tgt[longest:]
            kept.append(i)
        else:
            filtered.count("too_long", first_row + i)
    return kept
