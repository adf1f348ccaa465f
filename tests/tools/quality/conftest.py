"""A corpus in shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from transformer_mt.data.corpus import ParallelCorpus, Shard, TableWriter, join_fingerprints


@pytest.fixture
def write_shards(workdir: Path) -> Callable[..., ParallelCorpus]:
    """`write_shards(pairs, size)`: write a corpus in shards of some size."""

    def write_shards(pairs: Sequence[tuple[str, str]], size: int) -> ParallelCorpus:
        shards: list[Shard] = []
        hashes: list[str] = []
        for first in range(0, len(pairs), size):
            part = pairs[first : first + size]
            path = workdir / f"{len(pairs)}-{size}-{first}.arrow"
            with TableWriter(path) as table:
                for start in range(0, len(part), 50):
                    src, tgt = zip(*part[start : start + 50], strict=True)
                    table.write(src, tgt, [0] * len(src), range(first + start + 1, first + start + 1 + len(src)))
            shards.append(Shard(path, len(part), ["t.en"]))
            hashes.append(table.hasher.hexdigest())
        return ParallelCorpus(shards, f"shards-{size}", join_fingerprints(hashes))

    return write_shards
