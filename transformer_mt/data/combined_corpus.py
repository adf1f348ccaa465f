"""Combine the corpora of several sources into one cached table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from transformer_mt.data.arrow_table import TableWriter
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.system.disk_space import check_cache_space
from transformer_mt.system.files import atomic_shared_folder, make_once

FORMAT_VERSION = 1  # of the table; part of its key


def combine_corpora(corpora: Mapping[str, ParallelCorpus], cache_dir: Path) -> ParallelCorpus:
    """Return one corpus with the pairs of all sources, source by source.

    Raises:
        UserError: The disk has no space for the table.
    """
    from datasets import Dataset

    parts = [[name, corpus.key, corpus.fingerprint] for name, corpus in corpora.items()]
    folder = cache_dir / f"combined-{sha256(json.dumps([FORMAT_VERSION, parts]).encode()).hexdigest()[:16]}"

    def make() -> None:
        check_cache_space(cache_dir, sum(corpus.n_bytes for corpus in corpora.values()), "the pairs of all sources")
        with atomic_shared_folder(folder) as temporary:
            _write_table(corpora, temporary)

    make_once(folder, make)
    digest = json.loads((folder / "table.json").read_text(encoding="utf-8"))["sha256"]
    return ParallelCorpus(
        Dataset.from_file(str(folder / "pairs.arrow")),
        [file for corpus in corpora.values() for file in corpus.files],
        folder.name,
        digest,
        filters=tuple(
            replace(report, name=f"{report.name} of {name}")
            for name, corpus in corpora.items()
            for report in corpus.filters
        ),
        source_sizes={name: len(corpus) for name, corpus in corpora.items()},
    )


def _write_table(corpora: Mapping[str, ParallelCorpus], folder: Path) -> None:
    n_files = 0
    with TableWriter(folder / "pairs.arrow") as table:
        for corpus in corpora.values():
            for batch in corpus.batches():
                files = batch["file"].to_numpy() + np.int32(n_files)
                table.write(batch["src"].to_pylist(), batch["tgt"].to_pylist(), files, batch["line"].to_numpy())
            n_files += len(corpus.files)
    (folder / "table.json").write_text(json.dumps({"sha256": table.text_hash()}), encoding="utf-8")
