"""Fixtures of the data tests: a working folder, and corpora from two text files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from transformer_mt.data.corpus import ParallelCorpus, Shard, TableWriter, join_fingerprints
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a temporary folder, and let `datasets` keep its cache there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub-cache")
    return tmp_path


@pytest.fixture
def write_corpus(workdir: Path) -> Callable[..., ParallelCorpus]:
    """`write_corpus(pairs, name="t")`: write t.en and t.de and load them as a corpus."""

    def write_corpus(pairs: Sequence[tuple[str, str]], name: str = "t") -> ParallelCorpus:
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            file = workdir / f"{name}.{language}"
            if not file.exists() or file.read_text(encoding="utf-8") != text:  # a new time would change the cache key
                file.write_text(text, encoding="utf-8")
        return load_corpus(Source(src=(f"{name}.en",), tgt=(f"{name}.de",)), "en", "de", Path("cache"))

    return write_corpus


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
